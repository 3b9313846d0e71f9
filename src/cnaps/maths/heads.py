"""psi_w: from class statistics to a classifier of features.

A head has learned numbers, shared by all tasks; for each task it makes a classifier, a function from features
(M, d) to logits (M, C). Both work on numpy arrays and on tensors, where gradients flow through them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from array_api_compat import is_torch_array

from cnaps.errors import InputError
from cnaps.maths.arrays import (
    Array,
    cast,
    device,
    eye,
    namespace,
    sigmoid,
    spread_out,
    unit,
    unit_groups,
)
from cnaps.maths.statistics import ClassStatistics


class Classifier(Protocol):
    """The classifier of one task."""

    def __call__(self, features: Array) -> Array:
        """Embedded features (M, d) -> logits (M, C)."""


class Head:
    """`embed` prepares features for statistics and classifier; `classifier` makes the classifier of a task.

    `groups` are the widths of the features that stand side by side (the pooled outputs of several stages);
    `numbers` what was learned, by name.
    """

    name: ClassVar[str]
    needs_scatter: ClassVar[bool] = False

    def __init__(self, groups: Sequence[int], numbers: Mapping[str, Array]) -> None:
        self.groups, self.numbers = list(groups), numbers

    def emphasis(self, like: Array) -> Array:
        """How much each feature counts where two images are compared (d,)."""
        return namespace(like).ones((sum(self.groups),), dtype=like.dtype, device=device(like))

    def embed(self, features: Array) -> Array:
        """(N, d) -> (N, d)."""
        return features

    def classifier(self, statistics: ClassStatistics) -> Classifier:
        """From statistics of embedded features."""
        raise NotImplementedError

    def directions(self, statistics: ClassStatistics) -> Array:
        """In which directions (n, d) of emphasised features scatter matters most to the classifier."""
        means = statistics.means
        return (means - namespace(means).mean(means, axis=0)) * self.emphasis(means)

    def scatter_of(self, statistics: ClassStatistics) -> tuple[Array, ...]:
        """The scatter of each class, which must be there."""
        if statistics.scatter is None:
            raise InputError(f"the {self.name} head needs statistics with scatter; adapt with this head again")
        return statistics.scatter


class LinearHead(Head):
    """The paper's: weights and bias of each class from its mean feature, by two small networks."""

    name = "linear"

    def classifier(self, statistics: ClassStatistics) -> LinearClassifier:
        """Weights (C, d), biases (C,)."""
        means = cast(statistics.means, self.numbers["weight_net.0.weight"])
        return LinearClassifier(self._run("weight_net", means) + means, self._run("bias_net", means)[:, 0])

    def _run(self, network: str, x: Array) -> Array:
        xp = namespace(x)
        for layer in (0, 2, 4):
            x = x @ self.numbers[f"{network}.{layer}.weight"].T + self.numbers[f"{network}.{layer}.bias"]
            if layer < 4:
                x = xp.where(x > 0, x, xp.expm1(xp.where(x > 0, xp.zeros_like(x), x)))  # ELU
        return x


@dataclass(frozen=True)
class LinearClassifier:
    """logits = W x + b."""

    weight: Array
    bias: Array

    def __call__(self, features: Array) -> Array:
        """(M, d) -> (M, C)."""
        return features @ self.weight.T + self.bias


class UnitHead(Head):
    """Reads features of which each group is of unit length."""

    def embed(self, features: Array) -> Array:
        """Each group of unit length."""
        return unit_groups(features, self.groups)


class CosineHead(UnitHead):
    """Cosine similarity to the mean of each class, times a learned temperature.

    Each group is of unit length and is weighed by a temperature of its own. Before comparing, a learned share of
    the centre of all classes is taken away from features and means: what all classes of a task have in common
    does not tell them apart.
    """

    name = "cosine"

    def emphasis(self, like: Array) -> Array:
        """By the temperature of each group."""
        scale = self.numbers["log_temperature"]
        return cast(spread_out(namespace(scale).exp(scale / 2), self.groups), like)

    def classifier(self, statistics: ClassStatistics) -> CosineClassifier:
        """Centre (d,), centred unit prototypes (C, d) times their temperature."""
        centring, scale = self.numbers["centring"], self.numbers["log_temperature"]
        xp = namespace(centring)
        means = cast(statistics.means, centring)
        centre = xp.mean(means, axis=0) * spread_out(sigmoid(centring), self.groups)
        prototypes = unit_groups(means - centre, self.groups) * spread_out(xp.exp(scale), self.groups)
        return CosineClassifier(prototypes, centre, tuple(self.groups))


@dataclass(frozen=True)
class CosineClassifier:
    """logits = sum over groups of temperature * cos(x - centre, prototype - centre)."""

    prototypes: Array
    centre: Array
    groups: tuple[int, ...]

    def __call__(self, features: Array) -> Array:
        """(M, d) -> (M, C)."""
        return unit_groups(features - self.centre, self.groups) @ self.prototypes.T


class RidgeHead(UnitHead):
    """Ridge regression onto the classes, in closed form, beside the cosine similarity to the class means.

    Prototypes are hard to beat with one example a class, regression with many; a learned mix takes the better of
    both. Each group is of unit length and has a learned weight. All of it follows from class statistics by one
    solve of the size of the context.

    Images are more like the mean of many examples than like a single one, whatever their class, so a class of few
    examples is given what it lacks: `few_shot_bias`.
    """

    name = "ridge"
    needs_scatter = True

    def emphasis(self, like: Array) -> Array:
        """The learned weight of each group."""
        log_weight = self.numbers["log_weight"]
        return cast(spread_out(namespace(log_weight).exp(log_weight), self.groups), like)

    def classifier(self, statistics: ClassStatistics) -> RidgeClassifier:
        """Regression weights (C, d), unit prototypes (C, d), both times their temperature."""
        scatter = self.scatter_of(statistics)
        log_weight = self.numbers["log_weight"]
        xp, weight = namespace(log_weight), self.emphasis(log_weight)  # (d,)
        means, counts = cast(statistics.means, weight), cast(statistics.counts, weight)
        centre = xp.mean(means, axis=0) * spread_out(sigmoid(self.numbers["centring"]), self.groups)
        prototypes = (means - centre) * weight
        average = xp.mean(counts)
        balance = xp.sqrt(average / counts)  # every class counts alike, however many examples it has
        within = [cast(rows, weight) * weight * balance[k] for k, rows in enumerate(scatter)]
        spokes = prototypes * xp.sqrt(average)
        rows = xp.concat([*within, spokes], axis=0)  # (n, d): rows'rows is the second moment of all examples
        ways = means.shape[0]
        wanted = (eye(ways, rows) - 1 / ways) * xp.sqrt(average)  # one-hot, centred
        ridge = xp.exp(self.numbers["log_ridge"])
        regression = _ridge(rows, spokes, wanted, ridge)
        temperature = xp.exp(self.numbers["log_temperature"])
        deviation = sum(xp.sum((cast(rows, weight) * weight) ** 2) for rows in scatter)
        spread = xp.sum(((means - xp.mean(means, axis=0)) * weight) ** 2)
        size = xp.sum(prototypes**2) / ways
        bias = few_shot_bias(counts, deviation, spread, size, ridge, temperature)
        return RidgeClassifier(
            regression * temperature[0], unit(prototypes) * temperature[1], centre, weight, bias
        )

    def directions(self, statistics: ClassStatistics) -> Array:
        """With the solution and what it is solved for kept, the regression is the same, whatever else is lost."""
        made = self.classifier(statistics)
        return namespace(made.weight).concat([made.regression, made.prototypes], axis=0)


_GIVEN_BACK = 0.6  # chosen on validation domains, measured on others: `make unequal`


def few_shot_bias(
    counts: Array, deviation: Array, spread: Array, size: Array, ridge: Array, temperature: Array
) -> Array:
    """What is added to the logit of each class (..., C), by its number of examples; nothing if all have as many.

    Of the variance of a mean of n examples the share w / (w + b n) is chance, with w the variance within classes
    and b that between them: an image's answer to its own class falls short by this share of how firmly regression
    and cosine answer at all. About half of it puts the border between two classes back into the middle.

    `deviation` (...,) is the sum of squared distances of examples from their class mean, `spread` that of class
    means from their centre, `size` the mean of the squared lengths of prototypes.

    >>> import numpy as np
    >>> given = (np.array(value) for value in (23.0, 2.0, 0.8, 0.4, [8.0, 5.0]))
    >>> few_shot_bias(np.array([1.0, 5.0, 20.0]), *given).round(2).tolist()
    [4.19, 1.34, 0.0]
    """
    xp, ways = namespace(counts), counts.shape[-1]
    freedom = xp.sum(counts, axis=-1) - ways
    within = deviation / xp.where(freedom > 1, freedom, xp.ones_like(freedom))
    apart = spread / max(ways - 1, 1)
    between = apart - within * xp.mean(1 / counts, axis=-1)
    between = xp.where(between > 0, between, xp.zeros_like(between))
    chance = within[..., None] / (within[..., None] + between[..., None] * counts + 1e-12)
    seen = xp.mean(counts, axis=-1) * apart
    cosine = xp.where(apart < size, apart / (size + 1e-12), xp.ones_like(size))
    strength = temperature[0] * seen / (seen + ridge) + temperature[1] * cosine
    return _GIVEN_BACK * strength[..., None] * (chance - xp.min(chance, axis=-1, keepdims=True))


def _ridge(rows: Array, spokes: Array, wanted: Array, ridge: Array) -> Array:
    """(rows'rows + ridge I)^-1 spokes'wanted, transposed (C, d), in the smaller of its two forms."""
    xp, (count, width) = namespace(rows), rows.shape
    if count > width:
        return xp.linalg.solve(rows.T @ rows + ridge * eye(width, rows), spokes.T @ wanted).T
    padding = xp.zeros((count - wanted.shape[0], wanted.shape[1]), dtype=rows.dtype, device=device(rows))
    return xp.linalg.solve(rows @ rows.T + ridge * eye(count, rows), xp.concat([padding, wanted], axis=0)).T @ rows


@dataclass(frozen=True)
class RidgeClassifier:
    """logits = W v + P v / |v| + bias with v = weight * (x - centre)."""

    regression: Array
    prototypes: Array
    centre: Array
    weight: Array
    bias: Array

    def __call__(self, features: Array) -> Array:
        """(M, d) -> (M, C)."""
        v = (features - self.centre) * self.weight
        return v @ self.regression.T + unit(v) @ self.prototypes.T + self.bias


class MahalanobisHead(Head):
    """Simple CNAPs: squared Mahalanobis distance to each class mean; nothing is learned.

    S_k = l cov_k + (1 - l) cov_task + I with l = n_k / (n_k + 1). Both covariances live in the span of the
    context features, so a d x d matrix is never built: without gradients everything happens in an orthonormal
    basis of at most N dimensions, with gradients in the dual (Woodbury's) form, which needs no basis.
    """

    name = "mahalanobis"
    needs_scatter = True

    def classifier(self, statistics: ClassStatistics) -> Classifier:
        """Distances in the dual form where gradients are wanted, else in a basis, which is smaller."""
        scatter = self.scatter_of(statistics)
        means = statistics.means
        xp = namespace(means)
        means = xp.astype(means, scatter[0].dtype)
        counts = cast(statistics.counts, means)
        factors = [cast(rows, means) for rows in scatter]  # each (r_k, d)
        total = float(xp.sum(counts))
        centre = xp.sum(counts[:, None] * means, axis=0) / total
        between = xp.sqrt(counts)[:, None] * (means - centre)
        task = xp.concat([*factors, between], axis=0) / max(total - 1, 1.0) ** 0.5  # task'task = cov_task
        sizes = [float(n) for n in counts]
        own = [rows / max(n - 1, 1.0) ** 0.5 for rows, n in zip(factors, sizes, strict=True)]
        shares = [n / (n + 1) for n in sizes]
        if is_torch_array(means) and means.requires_grad:
            return _dual_classifier(means, own, task, shares)
        basis = orthonormal_rows(xp.concat([*factors, means], axis=0))  # (r, d)
        task = task @ basis.T
        task, identity = task.T @ task, eye(basis.shape[0], means)
        whitening = []
        for rows, share in zip(own, shares, strict=True):
            rows = rows @ basis.T
            lower = xp.linalg.cholesky(share * (rows.T @ rows) + (1 - share) * task + identity)
            whitening.append(xp.linalg.inv(lower))
        return MahalanobisClassifier(basis, means @ basis.T, xp.stack(whitening))


def _dual_classifier(
    means: Array, own: list[Array], task: Array, shares: list[float]
) -> DualMahalanobisClassifier:
    """With S = I + G'G: S^-1 = I - G' (I + G G')^-1 G, of the size of the context instead of the features."""
    xp, reductions = namespace(means), []
    for rows, share in zip(own, shares, strict=True):
        g = xp.concat([share**0.5 * rows, (1 - share) ** 0.5 * task], axis=0)  # (q, d)
        lower = xp.linalg.cholesky(eye(g.shape[0], g) + g @ g.T)
        reductions.append(xp.linalg.solve(lower, g))
    return DualMahalanobisClassifier(means, tuple(reductions))


@dataclass(frozen=True)
class DualMahalanobisClassifier:
    """logits = - |x - m_k|^2 + |H_k (x - m_k)|^2."""

    means: Array
    reductions: tuple[Array, ...]

    def __call__(self, features: Array) -> Array:
        """(M, d) -> (M, C)."""
        xp, columns = namespace(features), []
        for k, reduction in enumerate(self.reductions):
            gaps = features - self.means[k]  # (M, d)
            columns.append(xp.sum((gaps @ reduction.T) ** 2, axis=1) - xp.sum(gaps**2, axis=1))
        return xp.stack(columns, axis=1)


def orthonormal_rows(rows: Array) -> Array:
    """An orthonormal basis (r, d) whose span contains all rows (n, d), r = min(n, d)."""
    count, width = rows.shape
    return eye(width, rows) if count >= width else namespace(rows).linalg.qr(rows.T)[0].T


@dataclass(frozen=True)
class MahalanobisClassifier:
    """logits = - |L_k^-1 (B x - m_k)|^2 - |x|^2 + |B x|^2."""

    basis: Array  # (r, d)
    means: Array  # (C, r)
    whitening: Array  # (C, r, r)

    def __call__(self, features: Array) -> Array:
        """(M, d) -> (M, C)."""
        xp, features = namespace(features), cast(features, self.basis)
        inside = features @ self.basis.T  # (M, r)
        outside = xp.sum(features**2, axis=1) - xp.sum(inside**2, axis=1)  # the same for every class
        gaps = inside[None] - self.means[:, None]  # (C, M, r)
        distances = xp.sum((gaps @ xp.permute_dims(self.whitening, (0, 2, 1))) ** 2, axis=2)  # (C, M)
        return -(distances + outside).T


HEADS: dict[str, type[Head]] = {head.name: head for head in (LinearHead, CosineHead, RidgeHead, MahalanobisHead)}


def create_head(name: str, groups: Sequence[int], numbers: Mapping[str, Array]) -> Head:
    """A head by its name, for features made of `groups`, with what was learned.

    >>> import numpy as np
    >>> create_head("mahalanobis", [4], {}).needs_scatter
    True
    """
    if name not in HEADS:
        raise InputError(f"no head named {name!r}; there are: {', '.join(HEADS)}")
    return HEADS[name](groups, numbers)


__all__ = ["HEADS", "Classifier", "Head", "create_head", "few_shot_bias", "orthonormal_rows"]
