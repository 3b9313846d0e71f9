"""What a head says of each example once it has learned from all the others, in closed form: nothing is refitted.

Taking one example away moves a mean; the rest follows from inner products between examples, and from changes of
low rank to matrices that are inverted once for a class. No gradients, so numpy alone, in double precision.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from cnaps.errors import InputError
from cnaps.maths.arrays import sigmoid, split
from cnaps.maths.heads import (
    CosineHead,
    Head,
    LinearHead,
    MahalanobisHead,
    RidgeHead,
    few_shot_bias,
    orthonormal_rows,
)
from cnaps.maths.statistics import ClassStatistics


def left_out_logits(head: Head, features: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Logits (N, C) of each example by a classifier of the others.

    Embedded features (N, d), labels of 0..C-1 (N,). Rows of NaN stand for examples that are alone in their class.

    >>> from cnaps.maths.heads import create_head
    >>> head = create_head("cosine", [4], {"log_temperature": np.zeros(1), "centring": np.zeros(1)})
    >>> features = head.embed(np.eye(4) + 0.1)
    >>> left_out_logits(head, features[[0, 0, 1, 1]], np.array([0, 0, 1, 1])).argmax(1).tolist()
    [0, 0, 1, 1]
    """
    kinds = {LinearHead: _linear, RidgeHead: _ridge, CosineHead: _cosine, MahalanobisHead: _mahalanobis}
    rule = kinds.get(type(head))
    if rule is None:
        raise InputError(f"a {type(head).__name__} does not say how it would judge without one of its examples")
    exact = type(head)(head.groups, {name: np.asarray(v, np.float64) for name, v in head.numbers.items()})
    members = (labels == np.arange(int(labels.max()) + 1)[:, None]).astype(np.float64)  # (C, N)
    logits = rule(exact, np.asarray(features, np.float64), labels, members)  # type: ignore[operator]
    logits[members.sum(1)[labels] < 2] = math.nan
    return logits


def _linear(head: LinearHead, x: np.ndarray, labels: np.ndarray, members: np.ndarray) -> np.ndarray:
    """Weights of a class come from its own mean alone, so only one logit of an example changes."""
    counts = members.sum(1)
    means = members @ x / counts[:, None]
    own = means[labels]
    fewer = own + (own - x) / np.maximum(counts[labels] - 1, 1)[:, None]
    every, alone = (head.classifier(ClassStatistics(counts, some)) for some in (means, fewer))
    changed = (alone.weight * x).sum(1) + alone.bias
    return np.where(members.T > 0, changed[:, None], every(x))


def _cosine(head: CosineHead, x: np.ndarray, labels: np.ndarray, members: np.ndarray) -> np.ndarray:
    """The sum over groups, each with a temperature and a share of centring."""
    logits = np.zeros_like(members.T)
    temperatures, shares = np.exp(head.numbers["log_temperature"]), sigmoid(head.numbers["centring"])
    for part, temperature, share in zip(split(x, head.groups), temperatures, shares, strict=True):
        kernel = part @ part.T
        for k, mine, averages in _by_class(labels, members):
            around = _Centred(kernel, share * kernel, share**2 * kernel, averages, k, mine)
            logits[mine] += temperature * around.cosines
    return logits


def _ridge(head: RidgeHead, x: np.ndarray, labels: np.ndarray, members: np.ndarray) -> np.ndarray:
    """Regression in its dual form: (K + ridge D) a = Y, D the sizes of the classes on a diagonal.

    The answer of such a system for an example that it has not seen is y_i - a_i / (inverse)_ii, whatever that
    example's own target and ridge. K is of centred examples: of rank two apart from one that is the same for all.
    """
    ways, numbers = len(members), head.numbers
    shares, temperature = sigmoid(numbers["centring"]), np.exp(numbers["log_temperature"])
    weighted = [w * p for w, p in zip(np.exp(numbers["log_weight"]), split(x, head.groups), strict=True)]
    grams = [part @ part.T for part in weighted]
    kernel, crossed, squared = (
        np.stack([s**power * g for s, g in zip(shares, grams, strict=True)]).sum(0) for power in range(3)
    )
    ridge = np.exp(numbers["log_ridge"]) / (members.sum() - 1) * ways
    wanted = members.T - 1 / ways  # (N, C)
    logits = np.zeros_like(wanted)
    for k, mine, averages in _by_class(labels, members):
        around = _Centred(kernel, crossed, squared, averages, k, mine)
        inverse = np.linalg.inv(kernel + np.diag(ridge / averages.max(0)))
        ones, solved = inverse.sum(1), around.centre @ inverse  # (N,), (m, N)
        # the change of rank two lies along the ones and the centre: Woodbury
        cross = around.centre @ ones - 1
        corner = (solved * around.centre).sum(1) - around.length
        middle = np.stack([np.full_like(cross, ones.sum()), cross, cross, corner], 1).reshape(-1, 2, 2)
        own = np.stack([ones[mine], solved[:, mine].diagonal()], 1)  # (m, 2)
        change = np.linalg.solve(middle, own[:, :, None])[:, :, 0]
        diagonal = inverse.diagonal()[mine] - (own * change).sum(1)
        answers = (inverse @ wanted)[mine] - change[:, :1] * (ones @ wanted) - change[:, 1:] * (solved @ wanted)
        regression = wanted[mine] - answers / diagonal[:, None]
        counts = np.tile(1 / averages.max(1), (len(mine), 1))  # (m, C)
        deviation = kernel.diagonal().sum() - kernel.diagonal()[mine] - (counts * around.norms).sum(1)
        ridge_itself = np.exp(numbers["log_ridge"])
        bias = few_shot_bias(counts, deviation, around.spread, around.size, ridge_itself, temperature)
        logits[mine] = temperature[0] * regression + temperature[1] * around.cosines + bias
    return logits


class _Centred:
    """The m examples of class k, each beside class means and a centre that were made without it.

    `kernel` are the inner products of all examples, `crossed` and `squared` the same with the share of centring
    once and twice.
    """

    def __init__(
        self,
        kernel: np.ndarray,
        crossed: np.ndarray,
        squared: np.ndarray,
        averages: np.ndarray,
        k: int,
        mine: np.ndarray,
    ) -> None:
        rows, weight = np.arange(len(mine)), averages[k, mine[0]]
        shares = np.tile(averages.mean(0), (len(mine), 1))  # (m, N): what each example adds to the centre
        shares[rows, mine] = 0
        middles = ((shares @ kernel) * shares).sum(1)  # (m,): of the mean of class means, squared
        self.centre = shares @ crossed  # (m, N): inner products of examples with the centre
        self.length = ((shares @ squared) * shares).sum(1)  # (m,): of the centre, squared
        itself, own = kernel.diagonal()[mine], self.centre[rows, mine]
        mean_kernel = averages @ kernel  # (C, N)
        inner = mean_kernel[:, mine].T.copy()  # (m, C): inner products with the class means
        norms = (mean_kernel * averages).sum(1)[None].repeat(len(mine), 0)  # (m, C): of the class means, squared
        middle = self.centre @ averages.T  # (m, C): inner products of class means with the centre
        norms[:, k] += weight * (weight * itself - 2 * inner[:, k])
        inner[:, k] -= weight * itself
        middle[:, k] -= weight * own
        self.norms, self.spread = norms, norms.sum(1) - len(averages) * middles
        length = self.length[:, None]
        prototypes = norms - 2 * middle + length
        self.size = prototypes.mean(1)  # (m,): of the prototypes, squared
        sizes = prototypes * ((itself - 2 * own)[:, None] + length)
        self.cosines = (inner - middle - own[:, None] + length) / np.sqrt(np.maximum(sizes, 1e-24))  # (m, C)


def _mahalanobis(head: MahalanobisHead, x: np.ndarray, labels: np.ndarray, members: np.ndarray) -> np.ndarray:
    """Without an example the covariance of all loses a direction, and that of its class another."""
    x = x @ orthonormal_rows(x).T  # (N, r)
    counts, total = members.sum(1), len(x)
    means = members @ x / counts[:, None]
    apart = x - x.mean(0)
    task = apart.T @ apart / max(total - 2, 1)
    lost = total / (total - 1) / max(total - 2, 1)
    logits = np.zeros_like(members.T)
    for k, n in enumerate(counts.tolist()):
        gaps = x - means[k]
        mine = labels == k
        within = gaps[mine].T @ gaps[mine]
        for some, left in ((mine, n - 1), (~mine, n)):
            share, scale = left / (left + 1), max(left - 1, 1)
            inverse = np.linalg.inv(share / scale * within + (1 - share) * task + np.eye(x.shape[1]))
            gap = gaps[some] * (n / max(n - 1, 1) if left < n else 1)
            gone = [math.sqrt((1 - share) * lost) * apart[some]]
            if left < n:
                gone.append(math.sqrt(share / scale * n / max(n - 1, 1)) * gaps[some])
            along = np.stack(gone, 1)  # (m, p, r): S = inverse^-1 - along'along
            solved = along @ inverse
            middle = np.eye(len(gone)) - solved @ along.transpose(0, 2, 1)
            inner = solved @ gap[:, :, None]  # (m, p, 1)
            more = (inner * np.linalg.solve(middle, inner)).sum((1, 2))
            logits[some, k] = -((gap @ inverse) * gap).sum(1) - more
    return logits


def _by_class(labels: np.ndarray, members: np.ndarray) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Each class of several examples: its number, its examples, and what examples add to the mean of each class.

    One example of the class will be missing, so its others count for a little more.
    """
    for k, n in enumerate(members.sum(1).tolist()):
        if n > 1:
            counts = members.sum(1)
            counts[k] -= 1
            yield k, np.flatnonzero(labels == k), members / counts[:, None]
