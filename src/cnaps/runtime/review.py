"""How well the given labels fit: each example judged by the others.

All of it follows from stored features and class statistics; no image passes through the network again. FiLM stays
as all examples made it, so figures for very few examples are a little kind; `LeftOut.enough` says when they are
too few to mean anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from cnaps.errors import InputError
from cnaps.runtime.accuracy import wilson

if TYPE_CHECKING:
    from cnaps.runtime.task import FittedTask


_SUSPICIOUS = 0.3  # by so much another class is more probable than the label


@dataclass(frozen=True)
class Judgement:
    """How well an example fits its label by the others; `fit` is NaN where it is alone in its class."""

    index: int  # which example, in the order they were given
    label: Any
    fit: float  # the probability of its label
    better: Any  # the most probable other class
    better_fit: float
    suspicious: bool


def review(task: FittedTask, pixels: np.ndarray, given: Sequence[Any]) -> list[Judgement]:
    """Examples of a task, as pixels uint8 (N, 3, S, S) and the label of each, the worst fit first."""
    names, labels = np.unique(given, return_inverse=True)
    if names.tolist() != task.names:
        raise InputError("the examples to review must be of the classes that were learned, all of them")
    return judge(task.left_out(task.features(pixels), labels), labels, task.names)


def judge(probabilities: np.ndarray, labels: np.ndarray, names: Sequence[Any]) -> list[Judgement]:
    """From the answer of `FittedTask.left_out`: all examples, the worst fit first.

    >>> first, *_ = judge(np.array([[0.2, 0.8], [0.9, 0.1]]), np.array([1, 1]), ["cat", "dog"])
    >>> first.index, first.better, first.suspicious
    (1, 'cat', True)
    """
    rows = np.arange(len(labels))
    others = probabilities.copy()
    others[rows, labels] = -1
    best = others.argmax(1)
    fit, better_fit = probabilities[rows, labels], probabilities[rows, best]
    suspicious = {i for i, _ in suspects(probabilities, labels)}
    return [
        Judgement(int(i), names[labels[i]], float(fit[i]), names[best[i]], float(better_fit[i]), i in suspicious)
        for i in np.argsort(fit, kind="stable")  # NaN comes last
    ]


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
        """From the answer of `FittedTask.left_out`.

        >>> LeftOut.of(np.array([[0.9, 0.1], [0.2, 0.8], [0.7, 0.3]]), np.array([0, 1, 1])).correct
        2
        """
        judged = ~np.isnan(probabilities).any(1)
        total = int(judged.sum())
        correct = int((probabilities[judged].argmax(1) == labels[judged]).sum())
        low, high = wilson(correct, total)
        return cls(correct, total, low, high, bool(total >= 10 and np.bincount(labels).min() >= 3))


def suspects(probabilities: np.ndarray, labels: np.ndarray) -> list[tuple[int, int]]:
    """Examples whose label looks wrong, worst first, each with the class that fits better.

    Suspicious is an example for which another class is more probable than its own by far.

    >>> suspects(np.array([[0.9, 0.1], [0.2, 0.8]]), np.array([1, 1]))
    [(0, 0)]
    """
    rows = np.arange(len(labels))
    best, own = np.nan_to_num(probabilities).argmax(1), probabilities[rows, labels]
    gap = np.nan_to_num(probabilities[rows, best] - own)
    # by the fit of the label alone: a wrong one fits worse than a hard one, whatever else the image looks like
    order = [int(i) for i in np.argsort(own, kind="stable") if gap[i] >= _SUSPICIOUS]
    return [(i, int(best[i])) for i in order]


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
