"""How well the given labels fit: each example judged by the others, and images that fit no class.

All of it follows from stored features and class statistics; no image passes through the network again. FiLM stays
as all examples made it, so figures for very few examples are a little kind; `LeftOut.enough` says when they are
too few to mean anything.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import torch
from torch import Tensor

from cnaps.nn.heads import Head
from cnaps.nn.statistics import ClassStatistics


@torch.no_grad()
def leave_one_out(head: Head, features: Tensor, labels: Tensor, temperature: float = 1.0) -> np.ndarray:
    """Class probabilities (N, C) of each example by a classifier that has not seen it.

    Features (N, d) are as the head's classifier reads them, labels are 0..C-1. Rows of NaN stand for examples
    that are alone in their class: without them the class would not exist.
    """
    ways = int(labels.max()) + 1
    whole = ClassStatistics.of(features, labels, ways, scatter=head.needs_scatter)
    answers = torch.full((len(features), ways), math.nan, dtype=torch.float64)
    members = [torch.nonzero(labels == k).flatten() for k in range(ways)]
    for i, k in enumerate(labels.tolist()):
        count = whole.counts[k]
        if count < 2:
            continue
        counts, means, scatter = whole.counts.clone(), whole.means.clone(), whole.scatter
        counts[k] = count - 1
        means[k] = (count * means[k] - features[i]) / (count - 1)
        if scatter is not None:
            others = features[members[k][members[k] != i]]
            scatter = (*scatter[:k], others - means[k], *scatter[k + 1 :])
        logits = head.classifier(ClassStatistics(counts, means, scatter))(features[i : i + 1])
        answers[i] = (logits[0].double() / temperature).softmax(0).cpu()
    return answers.numpy()


@dataclass(frozen=True)
class LeftOut:
    """Accuracy over examples that were left out in turn, with a 95% interval (Wilson's)."""

    correct: int
    total: int
    low: float
    high: float
    enough: bool  # at least three examples of every class and ten in all

    @classmethod
    def of(cls, probabilities: np.ndarray, labels: np.ndarray) -> LeftOut:
        """From the answer of `leave_one_out`.

        >>> LeftOut.of(np.array([[0.9, 0.1], [0.2, 0.8], [0.7, 0.3]]), np.array([0, 1, 1])).correct
        2
        """
        judged = ~np.isnan(probabilities).any(1)
        total = int(judged.sum())
        correct = int((probabilities[judged].argmax(1) == labels[judged]).sum())
        low, high = wilson(correct, total)
        return cls(correct, total, low, high, bool(total >= 10 and np.bincount(labels).min() >= 3))


def wilson(correct: int, total: int, level: float = 0.95) -> tuple[float, float]:
    """An interval for a share of successes that stays sensible for small numbers.

    >>> [round(x, 2) for x in wilson(9, 10)]
    [0.6, 0.98]
    """
    if total == 0:
        return 0.0, 1.0
    z = NormalDist().inv_cdf((1 + level) / 2)
    share, z2 = correct / total, z * z / total
    middle, half = share + z2 / 2, z * math.sqrt(share * (1 - share) / total + z2 / (4 * total))
    return max(0.0, (middle - half) / (1 + z2)), min(1.0, (middle + half) / (1 + z2))


def suspects(probabilities: np.ndarray, labels: np.ndarray, *, at_least: float = 0.3) -> list[tuple[int, int]]:
    """Examples whose label looks wrong, worst first, each with the class that fits better.

    Suspicious is an example for which another class is more probable than its own by `at_least`.

    >>> suspects(np.array([[0.9, 0.1], [0.2, 0.8]]), np.array([1, 1]))
    [(0, 0)]
    """
    rows = np.arange(len(labels))
    best = np.nan_to_num(probabilities).argmax(1)
    gap = np.nan_to_num(probabilities[rows, best] - probabilities[rows, labels])
    order = [int(i) for i in np.argsort(-gap, kind="stable") if gap[i] >= at_least]
    return [(i, int(best[i])) for i in order]


@dataclass(frozen=True)
class Outsiders:
    """Tells images of none of the classes by how close they come to the nearest class.

    What "close" means in a task is read off its examples: how near each is to the others of its class, and how
    near to classes it does not belong to, which is what a stranger looks like.
    """

    means: np.ndarray  # (C, d), unit length
    threshold: float

    @classmethod
    def of(cls, features: np.ndarray, labels: np.ndarray) -> Outsiders | None:
        """From examples (N, d); None where too few classes have a second example."""
        x = _unit(features)
        ways = int(labels.max()) + 1
        counts = np.bincount(labels, minlength=ways)
        sums = np.zeros((ways, x.shape[1]))
        np.add.at(sums, labels, x)
        judged = counts[labels] > 1
        if ways < 2 or judged.sum() < 4:
            return None
        own = _unit(sums[labels[judged]] - x[judged])
        inside = (x[judged] * own).sum(1)
        means = _unit(sums)
        others = x @ means.T
        others[np.arange(len(x)), labels] = -1
        outside = others.max(1)
        # between what members and strangers look like, nearer to the strangers: a false alarm costs trust
        threshold = float(np.quantile(outside, 0.5) * 0.6 + np.quantile(inside, 0.1) * 0.4)
        return cls(means, min(threshold, float(inside.min())))

    def closeness(self, features: np.ndarray) -> np.ndarray:
        """The cosine to the nearest class mean (N,): the lower, the more likely an image of no class."""
        return (_unit(features) @ self.means.T).max(1)

    def __call__(self, features: np.ndarray) -> np.ndarray:
        """Which images (N,) look like none of the classes."""
        return self.closeness(features) < self.threshold


def project(features: np.ndarray) -> np.ndarray:
    """Features (N, d) as points of a plane (N, 2) within -1..1, by their principal components.

    >>> project(np.eye(3)).shape
    (3, 2)
    """
    centred = features - features.mean(0)
    u, s, _ = np.linalg.svd(centred @ centred.T, hermitian=True)  # by the (N, N) products: N is small, d is not
    points = np.zeros((len(features), 2))
    points[:, : min(2, len(s))] = (u * np.sqrt(s))[:, :2]
    signs = np.sign(points[np.abs(points).argmax(0), [0, 1]])  # the same picture every time
    points = points * np.where(signs == 0, 1, signs)
    points -= (points.min(0) + points.max(0)) / 2
    return points / max(float(np.abs(points).max()), 1e-9)


def _unit(rows: np.ndarray) -> np.ndarray:
    rows = np.asarray(rows, np.float64)
    return rows / np.clip(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12, None)
