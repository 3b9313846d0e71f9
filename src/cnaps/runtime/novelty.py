"""Images that are none of the classes: how far from all of them is too far."""

from __future__ import annotations

import math

import numpy as np

from cnaps.maths.arrays import unit

NONE = "none of these"  # the answer for such an image
# By `python -m benchmarks.studio COLLECTIONS`: at most one in twenty images of the classes is taken for none.
STRANGE = 0.95  # the share of examples that fit their class better than a stranger does
_ENOUGH = 4  # examples that have another one in their class
# What classes have in common, strangers of their kind have too: most of it is left out (tools/compare_novelty.py).
_COMMON = 0.75
# For answers of the ridge head, by tools/compare_novelty.py on validation domains; fitted to training tasks
# (tools/learn_novelty.py) they come out much the same.
EASE = 0.5  # of how much surer a class is of its own examples than others of theirs, so much is taken back
_FEW = 4.0  # as of so many examples of an average class, beside a class's own
FLAT = 5.0  # features that are spread out evenly lie near to nothing: so much for them
MIDDLE, STEEP = 9.0, 2.0  # the familiarity of which novelty is 1, and how far from there it goes; no order changes


def common_part(means: np.ndarray) -> np.ndarray:
    """What features lose before they are compared with class means (C, d): a share of the middle (d,)."""
    return _COMMON * means.mean(0) if len(means) > 1 else np.zeros_like(means[0])


def novelty(features: np.ndarray, means: np.ndarray, emphasis: np.ndarray | float = 1.0) -> np.ndarray:
    """How unlike all classes features (n, d) are, 0..2: one minus the highest cosine to a class mean (C, d).

    >>> novelty(np.array([[1.0, 0], [0, 1], [-1, -1]]), np.eye(2)).round(2).tolist()
    [0.0, 0.0, 1.24]
    """
    common = common_part(means)
    cosines = unit((features - common) * emphasis) @ unit((means - common) * emphasis).T
    return 1 - cosines.max(1, initial=-1.0)


def none_level(
    features: np.ndarray, labels: np.ndarray, emphasis: np.ndarray | float = 1.0, share: float = STRANGE
) -> float | None:
    """The novelty beyond which an image looks like none of the classes.

    That of the examples that fit their class worst, each seen against the others of its class (leave-one-out);
    None where too few examples have another one beside them.

    >>> none_level(np.array([[1, 0], [1, 0.1], [0, 1], [0.1, 1]]), np.array([0, 0, 1, 1])) < 0.01
    True
    """
    _, labels, counts = np.unique(labels, return_inverse=True, return_counts=True)
    means = np.zeros((len(counts), features.shape[1]))
    np.add.at(means, labels, features / counts[labels][:, None])
    accompanied = counts[labels] > 1
    if accompanied.sum() < _ENOUGH:
        return None
    own, mine = features[accompanied], labels[accompanied]
    others = means[mine] + (means[mine] - own) / (counts[mine] - 1)[:, None]  # the class without the example
    common = common_part(means)
    if len(means) > 1:
        common = common + _COMMON * (others - means[mine]) / len(means)
    cosines = (unit((own - common) * emphasis) * unit((others - common) * emphasis)).sum(1)
    return float(np.quantile(1 - cosines, share))


def strangeness(logits: np.ndarray, features: np.ndarray, ease: np.ndarray, last: int) -> np.ndarray:
    """How unlike all classes images are, 0..2, by the logits (n, C) and features (n, d) that they have.

    The logarithm of the sum of exponentials says how much of the classes is there at all (the energy). `ease` (C,)
    is that of `class_ease`, `last` the width of the last stage's features, which are of unit length.

    >>> strangeness(np.array([[12.0, 0], [3, 3]]), np.array([[1.0, 0], [1, 0]]), np.zeros(2), 2).round(2).tolist()
    [0.07, 1.42]
    """
    present = np.logaddexp.reduce(logits.astype(np.float64) - EASE * ease, axis=1)
    flat = np.abs(features[:, -last:].astype(np.float64)).sum(1) / last**0.5
    return 2 / (1 + np.exp((present + FLAT * flat - MIDDLE) / STEEP))


def class_ease(left_out: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """How much surer than others each class (C,) is of its own examples, by their left-out logits (n, C).

    Rows of NaN stand for examples that could not be left out. A class of few examples is held near the others.

    >>> class_ease(np.array([[9.0, 0], [9, 0], [0, 5], [0, 5]]), np.array([0, 0, 1, 1])).round(2).tolist()
    [0.67, -0.67]
    """
    known = np.isfinite(left_out).all(1)
    if not known.any():
        return np.zeros(left_out.shape[1])
    present, own = np.logaddexp.reduce(left_out[known], axis=1), labels[known]
    apart = present - present.mean()
    ways = left_out.shape[1]
    return np.bincount(own, apart, minlength=ways) / (np.bincount(own, minlength=ways) + _FEW)


def strange_level(
    left_out: np.ndarray, features: np.ndarray, ease: np.ndarray, last: int, share: float = STRANGE
) -> float | None:
    """The strangeness beyond which an image is none of the classes, by left-out logits (n, C) of examples.

    One more image of the classes is below it as often as `share` says (conformal prediction); with too few
    examples to say so, it is that of the strangest one, and None with fewer than four.
    """
    known = np.isfinite(left_out).all(1)
    if known.sum() < _ENOUGH:
        return None
    found = np.sort(strangeness(left_out[known], features[known], ease, last))
    return float(found[min(math.ceil(share * (len(found) + 1) - 1e-9), len(found)) - 1])
