"""psi_w: from class statistics to a classifier of features.

A head is learned once; for each task it makes a classifier, a plain module from features (M, d) to logits (M, C)
that is all that prediction and export need.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cnaps.errors import InputError
from cnaps.nn.statistics import ClassStatistics


class Head(nn.Module):
    """`embed` prepares features for statistics and classifier; `classifier` makes the classifier of a task."""

    needs_scatter = False

    @property
    def emphasis(self) -> Tensor:
        """How much each feature counts where two images are compared: (d,), or one number for all."""
        return torch.ones(())

    def embed(self, features: Tensor) -> Tensor:
        """(N, d) -> (N, d)."""
        return features

    def classifier(self, statistics: ClassStatistics) -> nn.Module:
        """A module from embedded features (M, d) to logits (M, C)."""
        raise NotImplementedError

    def directions(self, statistics: ClassStatistics) -> Tensor:
        """In which directions (n, d) of emphasised features scatter matters most to the classifier."""
        means = statistics.means.to(torch.get_default_dtype())
        return (means - means.mean(0)) * self.emphasis


class LinearHead(Head):
    """The paper's: weights and bias of each class from its mean feature, by two small networks."""

    def __init__(self, features: int, bias_width: int | None = None) -> None:
        super().__init__()
        bias_width = bias_width or features
        self.weight_net = _elu_net(features, features, features)
        self.bias_net = _elu_net(features, bias_width, 1)

    def classifier(self, statistics: ClassStatistics) -> nn.Module:
        """Weights (C, d), biases (C,)."""
        means = statistics.means.to(next(self.parameters()).dtype)  # (C, d)
        return LinearClassifier(self.weight_net(means) + means, self.bias_net(means).squeeze(1))


def _elu_net(inputs: int, width: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inputs, width), nn.ELU(), nn.Linear(width, width), nn.ELU(), nn.Linear(width, outputs)
    )


class LinearClassifier(nn.Module):
    """logits = W x + b."""

    weight: Tensor
    bias: Tensor

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.register_buffer("weight", weight)
        self.register_buffer("bias", bias)

    def forward(self, features: Tensor) -> Tensor:
        """(M, d) -> (M, C)."""
        return F.linear(features, self.weight, self.bias)


class CosineHead(Head):
    """Cosine similarity to the mean of each class, times a learned temperature.

    Features may be of several groups (the pooled outputs of several stages); each group is of unit length, and
    is weighed by a temperature of its own. Before comparing, a learned share of the centre of all classes is
    taken away from features and means: what all classes of a task have in common does not tell them apart.
    """

    def __init__(self, groups: Sequence[int], temperature: float = 10.0) -> None:
        super().__init__()
        self.groups = list(groups)
        start = torch.full((len(self.groups),), temperature / len(self.groups))
        self.log_temperature = nn.Parameter(start.log())
        self.centring = nn.Parameter(torch.zeros(len(self.groups)))  # through a sigmoid: starts at one half

    @property
    def emphasis(self) -> Tensor:
        """By the temperature of each group."""
        return (self.log_temperature / 2).exp().repeat_interleave(self._sizes())

    def embed(self, features: Tensor) -> Tensor:
        """Each group of unit length."""
        return _unit_groups(features, self.groups)

    def classifier(self, statistics: ClassStatistics) -> nn.Module:
        """Centre (d,), centred unit prototypes (C, d) times their temperature."""
        means = statistics.means.to(self.centring.dtype)
        share = torch.sigmoid(self.centring).repeat_interleave(self._sizes())
        centre = means.mean(0) * share
        prototypes = self.embed(means - centre)
        scale = self.log_temperature.exp().repeat_interleave(self._sizes())
        return CosineClassifier(prototypes * scale, centre, self.groups)

    def _sizes(self) -> Tensor:
        return torch.tensor(self.groups, device=self.centring.device)


class CosineClassifier(nn.Module):
    """logits = sum over groups of temperature * cos(x - centre, prototype - centre)."""

    prototypes: Tensor
    centre: Tensor

    def __init__(self, prototypes: Tensor, centre: Tensor, groups: list[int]) -> None:
        super().__init__()
        self.groups = groups
        self.register_buffer("prototypes", prototypes)
        self.register_buffer("centre", centre)

    def forward(self, features: Tensor) -> Tensor:
        """(M, d) -> (M, C)."""
        return F.linear(_unit_groups(features - self.centre, self.groups), self.prototypes)


class RidgeHead(Head):
    """Ridge regression onto the classes, in closed form, beside the cosine similarity to the class means.

    Prototypes are hard to beat with one example a class, regression with many; a learned mix takes the better of
    both. Features may be of several groups (the pooled outputs of several stages), each of unit length and with a
    learned weight. All of it follows from class statistics by one solve of the size of the context.
    """

    needs_scatter = True

    def __init__(self, groups: Sequence[int]) -> None:
        super().__init__()
        self.groups = list(groups)
        # the last stage counts most at first, since it is what the backbone was trained for
        start = torch.tensor([0.7**i for i in reversed(range(len(self.groups)))])
        self.log_weight = nn.Parameter(start.log())
        self.centring = nn.Parameter(torch.zeros(len(self.groups)))  # through a sigmoid: starts at one half
        self.log_ridge = nn.Parameter(torch.tensor(0.4).log())
        self.log_temperature = nn.Parameter(torch.tensor([8.0, 5.0]).log())  # of the regression, of the cosine

    @property
    def emphasis(self) -> Tensor:
        """The learned weight of each group."""
        return self.log_weight.exp().repeat_interleave(torch.tensor(self.groups, device=self.log_weight.device))

    def embed(self, features: Tensor) -> Tensor:
        """Each group of unit length."""
        return _unit_groups(features, self.groups)

    def classifier(self, statistics: ClassStatistics) -> nn.Module:
        """Regression weights (C, d), unit prototypes (C, d), both times their temperature."""
        if statistics.scatter is None:
            raise InputError("the ridge head needs statistics with scatter; adapt with this head again")
        sizes = torch.tensor(self.groups, device=self.centring.device)
        weight = self.emphasis  # (d,)
        means = statistics.means.to(weight.dtype)
        centre = means.mean(0) * torch.sigmoid(self.centring).repeat_interleave(sizes)
        prototypes = (means - centre) * weight
        counts = statistics.counts.to(weight.dtype)
        balance = counts.mean() / counts  # every class counts alike, however many examples it has
        within = [f.to(weight.dtype) * weight * b.sqrt() for f, b in zip(statistics.scatter, balance, strict=True)]
        spokes = prototypes * counts.mean().sqrt()
        rows = torch.cat([*within, spokes])  # (n, d): rows'rows is the second moment of all examples
        ways = len(means)
        wanted = torch.eye(ways, dtype=rows.dtype, device=rows.device) - 1 / ways  # one-hot, centred
        regression = self._solve(rows, spokes, wanted * counts.mean().sqrt())
        temperature = self.log_temperature.exp()
        return RidgeClassifier(
            regression * temperature[0], F.normalize(prototypes, dim=1) * temperature[1], centre, weight
        )

    def directions(self, statistics: ClassStatistics) -> Tensor:
        """With the solution and what it is solved for kept, the regression is the same, whatever else is lost."""
        made = self.classifier(statistics)
        assert isinstance(made, RidgeClassifier)
        return torch.cat([made.regression, made.prototypes])

    def _solve(self, rows: Tensor, spokes: Tensor, wanted: Tensor) -> Tensor:
        """(rows'rows + ridge I)^-1 spokes'wanted, transposed (C, d), in the smaller of its two forms."""
        ridge = self.log_ridge.exp()
        if len(rows) > rows.shape[1]:
            system = rows.T @ rows + ridge * torch.eye(rows.shape[1], dtype=rows.dtype, device=rows.device)
            return torch.linalg.solve(system, spokes.T @ wanted).T
        system = rows @ rows.T + ridge * torch.eye(len(rows), dtype=rows.dtype, device=rows.device)
        padded = torch.cat([wanted.new_zeros(len(rows) - len(wanted), wanted.shape[1]), wanted])
        return torch.linalg.solve(system, padded).T @ rows


class RidgeClassifier(nn.Module):
    """logits = W v + P v / |v| with v = weight * (x - centre)."""

    regression: Tensor
    prototypes: Tensor
    centre: Tensor
    weight: Tensor

    def __init__(self, regression: Tensor, prototypes: Tensor, centre: Tensor, weight: Tensor) -> None:
        super().__init__()
        self.register_buffer("regression", regression)
        self.register_buffer("prototypes", prototypes)
        self.register_buffer("centre", centre)
        self.register_buffer("weight", weight)

    def forward(self, features: Tensor) -> Tensor:
        """(M, d) -> (M, C)."""
        v = (features - self.centre) * self.weight
        return F.linear(v, self.regression) + F.linear(F.normalize(v, dim=1), self.prototypes)


def _unit_groups(features: Tensor, groups: list[int]) -> Tensor:
    """Each group of columns scaled to unit length."""
    return torch.cat([F.normalize(group, dim=1) for group in features.split(groups, 1)], 1)


class MahalanobisHead(Head):
    """Simple CNAPs: squared Mahalanobis distance to each class mean; nothing is learned.

    S_k = l cov_k + (1 - l) cov_task + I with l = n_k / (n_k + 1). Both covariances live in the span of the
    context features, so a d x d matrix is never built: without gradients everything happens in an orthonormal
    basis of at most N dimensions, with gradients in the dual (Woodbury's) form, which needs no basis.
    """

    needs_scatter = True

    def classifier(self, statistics: ClassStatistics) -> nn.Module:
        """Distances in the dual form where gradients are wanted, else in a basis, which is smaller."""
        if statistics.scatter is None:
            raise InputError("the mahalanobis head needs statistics with scatter; adapt with this head again")
        means = statistics.means.to(torch.get_default_dtype())
        counts = statistics.counts.to(means.dtype)
        factors = [f.to(means.dtype) for f in statistics.scatter]  # each (r_k, d)
        centre = (counts[:, None] * means).sum(0) / counts.sum()
        between = counts.sqrt()[:, None] * (means - centre)
        task = torch.cat([*factors, between]) / (counts.sum() - 1).clamp_min(1).sqrt()  # task'task = cov_task
        own = [f / (n - 1).clamp_min(1).sqrt() for f, n in zip(factors, counts, strict=True)]
        shares = counts / (counts + 1)
        if torch.is_grad_enabled() and means.requires_grad:
            return _dual_classifier(means, own, task, shares)
        basis = orthonormal_rows(torch.cat([*factors, means]))  # (r, d)
        identity = torch.eye(len(basis), dtype=means.dtype, device=means.device)
        task = task @ basis.T
        task = task.T @ task
        whitening = []
        for rows, share in zip(own, shares, strict=True):
            rows = rows @ basis.T
            lower = torch.linalg.cholesky(share * rows.T @ rows + (1 - share) * task + identity)
            whitening.append(torch.linalg.solve_triangular(lower, identity, upper=False))
        return MahalanobisClassifier(basis, means @ basis.T, torch.stack(whitening))


def _dual_classifier(means: Tensor, own: list[Tensor], task: Tensor, shares: Tensor) -> DualMahalanobisClassifier:
    """With S = I + G'G: S^-1 = I - G' (I + G G')^-1 G, of the size of the context instead of the features."""
    reductions = []
    for rows, share in zip(own, shares, strict=True):
        g = torch.cat([share.sqrt() * rows, (1 - share).sqrt() * task])  # (q, d)
        lower = torch.linalg.cholesky(torch.eye(len(g), dtype=g.dtype, device=g.device) + g @ g.T)
        reductions.append(torch.linalg.solve_triangular(lower, g, upper=False))
    return DualMahalanobisClassifier(means, reductions)


class DualMahalanobisClassifier(nn.Module):
    """logits = - |x - m_k|^2 + |H_k (x - m_k)|^2."""

    def __init__(self, means: Tensor, reductions: list[Tensor]) -> None:
        super().__init__()
        self.means, self.reductions = means, reductions

    def forward(self, features: Tensor) -> Tensor:
        """(M, d) -> (M, C)."""
        gaps = features[None] - self.means[:, None]  # (C, M, d)
        inner = [(gap @ h.T).square().sum(1) for gap, h in zip(gaps, self.reductions, strict=True)]
        return (torch.stack(inner) - gaps.square().sum(2)).T


def orthonormal_rows(rows: Tensor) -> Tensor:
    """An orthonormal basis (r, d) whose span contains all rows (n, d), r = min(n, d)."""
    if len(rows) >= rows.shape[1]:
        return torch.eye(rows.shape[1], dtype=rows.dtype, device=rows.device)
    return torch.linalg.qr(rows.T).Q.T


class MahalanobisClassifier(nn.Module):
    """logits = - |L_k^-1 (B x - m_k)|^2 - |x|^2 + |B x|^2."""

    basis: Tensor
    means: Tensor
    whitening: Tensor

    def __init__(self, basis: Tensor, means: Tensor, whitening: Tensor) -> None:
        super().__init__()
        self.register_buffer("basis", basis)
        self.register_buffer("means", means)
        self.register_buffer("whitening", whitening)

    def forward(self, features: Tensor) -> Tensor:
        """(M, d) -> (M, C)."""
        inside = features @ self.basis.T  # (M, r)
        outside = features.square().sum(1) - inside.square().sum(1)  # the same for every class
        gaps = inside[None] - self.means[:, None]  # (C, M, r)
        distances = (gaps @ self.whitening.transpose(1, 2)).square().sum(2)  # (C, M)
        return -(distances + outside).T


def create_head(name: str, groups: Sequence[int], bias_width: int | None = None) -> Head:
    """A head by its name: linear, cosine, ridge or mahalanobis, for features made of `groups`."""
    if name == "linear":
        return LinearHead(sum(groups), bias_width)
    if name == "cosine":
        return CosineHead(groups)
    if name == "ridge":
        return RidgeHead(groups)
    if name == "mahalanobis":
        return MahalanobisHead()
    raise InputError(f"no head named {name!r}; there are: linear, cosine, ridge, mahalanobis")
