"""What a head says of each example once it has learned from all the others, in closed form: nothing is refitted.

Taking one example away moves a mean; the rest follows from inner products between examples, and from changes of
low rank to matrices that are inverted once for a class.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from cnaps.errors import InputError
from cnaps.nn.heads import (
    CosineHead,
    Head,
    LinearClassifier,
    LinearHead,
    MahalanobisHead,
    RidgeHead,
    orthonormal_rows,
)
from cnaps.nn.statistics import ClassStatistics


@torch.no_grad()
def left_out_logits(head: Head, features: Tensor, labels: Tensor) -> Tensor:
    """Logits (N, C) of each example by a classifier of the others, in double precision.

    Embedded features (N, d), labels of 0..C-1 (N,). Rows of NaN stand for examples that are alone in their class.

    >>> head, features = CosineHead([4]), F.normalize(torch.eye(4) + 0.1)
    >>> left_out_logits(head, features[[0, 0, 1, 1]], torch.tensor([0, 0, 1, 1])).argmax(1).tolist()
    [0, 0, 1, 1]
    """
    features, labels = features.detach().double(), labels.to(features.device)
    members = F.one_hot(labels).double().T  # (C, N)
    if type(head) is LinearHead:
        logits = _linear(head, features, labels, members)
    elif isinstance(head, RidgeHead):
        logits = _ridge(head, features, labels, members)
    elif isinstance(head, CosineHead):
        logits = _cosine(head, features, labels, members)
    elif isinstance(head, MahalanobisHead):
        logits = _mahalanobis(features, labels, members)
    else:
        raise InputError(f"examples cannot be left out of a {type(head).__name__}: there is no closed form for it")
    return logits.masked_fill((members.sum(1)[labels] < 2)[:, None], math.nan).cpu()


def _linear(head: LinearHead, x: Tensor, labels: Tensor, members: Tensor) -> Tensor:
    """Weights of a class come from its own mean alone, so only one logit of an example changes."""
    counts = members.sum(1)
    means = members @ x / counts[:, None]
    own = means[labels]
    fewer = own + (own - x) / (counts[labels] - 1).clamp_min(1)[:, None]
    every, alone = (head.classifier(ClassStatistics(counts, some)).double() for some in (means, fewer))
    assert isinstance(alone, LinearClassifier)
    changed = (alone.weight * x).sum(1) + alone.bias
    return torch.where(members.T > 0, changed[:, None], every(x))


def _cosine(head: CosineHead, x: Tensor, labels: Tensor, members: Tensor) -> Tensor:
    """The sum over groups, each with a temperature and a share of centring."""
    logits = torch.zeros_like(members.T)
    temperatures, shares = head.log_temperature.double().exp(), torch.sigmoid(head.centring.double())
    for part, temperature, share in zip(x.split(head.groups, 1), temperatures, shares, strict=True):
        kernel = part @ part.T
        for k, mine, averages in _by_class(labels, members):
            around = _Centred(kernel, share * kernel, share**2 * kernel, averages, k, mine)
            logits[mine] += temperature * around.cosines
    return logits


def _ridge(head: RidgeHead, x: Tensor, labels: Tensor, members: Tensor) -> Tensor:
    """Regression in its dual form: (K + ridge D) a = Y, D the sizes of the classes on a diagonal.

    The answer of such a system for an example that it has not seen is y_i - a_i / (inverse)_ii, whatever that
    example's own target and ridge. K is of centred examples: of rank two apart from one that is the same for all.
    """
    ways = len(members)
    shares, temperature = torch.sigmoid(head.centring.double()), head.log_temperature.double().exp()
    weighted = [w * part for w, part in zip(head.log_weight.double().exp(), x.split(head.groups, 1), strict=True)]
    grams = [part @ part.T for part in weighted]
    kernel, crossed, squared = (
        torch.stack([s**power * g for s, g in zip(shares, grams, strict=True)]).sum(0) for power in range(3)
    )
    ridge = head.log_ridge.double().exp() / (members.sum() - 1) * ways
    wanted = members.T - 1 / ways  # (N, C)
    logits = torch.zeros_like(wanted)
    for k, mine, averages in _by_class(labels, members):
        around = _Centred(kernel, crossed, squared, averages, k, mine)
        inverse = torch.linalg.inv(kernel + torch.diag(ridge / averages.amax(0)))
        ones, solved = inverse.sum(1), around.centre @ inverse  # (N,), (m, N)
        # the change of rank two lies along the ones and the centre: Woodbury
        cross = around.centre @ ones - 1
        corner = (solved * around.centre).sum(1) - around.length
        middle = torch.stack([ones.sum().expand_as(cross), cross, cross, corner], 1).view(-1, 2, 2)
        own = torch.stack([ones[mine], solved[:, mine].diagonal()], 1)  # (m, 2)
        change = torch.linalg.solve(middle, own)
        diagonal = inverse.diagonal()[mine] - (own * change).sum(1)
        answers = (inverse @ wanted)[mine] - change[:, :1] * (ones @ wanted) - change[:, 1:] * (solved @ wanted)
        regression = wanted[mine] - answers / diagonal[:, None]
        logits[mine] = temperature[0] * regression + temperature[1] * around.cosines
    return logits


class _Centred:
    """The m examples of class k, each beside class means and a centre that were made without it.

    `kernel` are the inner products of all examples, `crossed` and `squared` the same with the share of centring
    once and twice.
    """

    def __init__(self, kernel: Tensor, crossed: Tensor, squared: Tensor, averages: Tensor, k: int, mine: Tensor):
        rows, weight = torch.arange(len(mine)), averages[k, mine[0]]
        shares = averages.mean(0).repeat(len(mine), 1)  # (m, N): what each example adds to the centre
        shares[rows, mine] = 0
        self.centre = shares @ crossed  # (m, N): inner products of examples with the centre
        self.length = ((shares @ squared) * shares).sum(1)  # (m,): of the centre, squared
        itself, own = kernel.diagonal()[mine], self.centre[rows, mine]
        mean_kernel = averages @ kernel  # (C, N)
        inner = mean_kernel[:, mine].T.clone()  # (m, C): inner products with the class means
        norms = (mean_kernel * averages).sum(1).repeat(len(mine), 1)  # (m, C): of the class means, squared
        middle = self.centre @ averages.T  # (m, C): inner products of class means with the centre
        norms[:, k] += weight * (weight * itself - 2 * inner[:, k])
        inner[:, k] -= weight * itself
        middle[:, k] -= weight * own
        length = self.length[:, None]
        sizes = (norms - 2 * middle + length) * (itself - 2 * own)[:, None].add(length)
        self.cosines = (inner - middle - own[:, None] + length) / sizes.clamp_min(1e-24).sqrt()  # (m, C)


def _mahalanobis(x: Tensor, labels: Tensor, members: Tensor) -> Tensor:
    """Without an example the covariance of all loses a direction, and that of its class another."""
    x = x @ orthonormal_rows(x).T  # (N, r)
    counts, total = members.sum(1), len(x)
    means = members @ x / counts[:, None]
    apart = x - x.mean(0)
    task = apart.T @ apart / max(total - 2, 1)
    lost = total / (total - 1) / max(total - 2, 1)
    logits = torch.zeros_like(members.T)
    for k, n in enumerate(counts.tolist()):
        gaps = x - means[k]
        mine = labels == k
        within = gaps[mine].T @ gaps[mine]
        for some, left in ((mine, n - 1), (~mine, n)):
            share, scale = left / (left + 1), max(left - 1, 1)
            inverse = torch.linalg.inv(
                share / scale * within + (1 - share) * task + torch.eye(x.shape[1], dtype=x.dtype, device=x.device)
            )
            gap = gaps[some] * (n / max(n - 1, 1) if left < n else 1)
            gone = [math.sqrt((1 - share) * lost) * apart[some]]
            if left < n:
                gone.append(math.sqrt(share / scale * n / max(n - 1, 1)) * gaps[some])
            along = torch.stack(gone, 1)  # (m, p, r): S = inverse^-1 - along'along
            solved = along @ inverse
            middle = torch.eye(len(gone), dtype=x.dtype, device=x.device) - solved @ along.mT
            inner = solved @ gap[:, :, None]  # (m, p, 1)
            more = (inner * torch.linalg.solve(middle, inner)).sum((1, 2))
            logits[some, k] = -((gap @ inverse) * gap).sum(1) - more
    return logits


def _by_class(labels: Tensor, members: Tensor) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Each class of several examples: its number, its examples, and what examples add to the mean of each class.

    One example of the class will be missing, so its others count for a little more.
    """
    for k, n in enumerate(members.sum(1).tolist()):
        if n > 1:
            counts = members.sum(1)
            counts[k] -= 1
            yield k, torch.nonzero(labels == k).flatten(), members / counts[:, None]
