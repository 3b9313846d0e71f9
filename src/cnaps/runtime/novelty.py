"""Images that are none of the classes: how far from all of them is too far."""

from __future__ import annotations

import numpy as np

NONE = "none of these"  # the answer for such an image
# By `python -m benchmarks.studio COLLECTIONS`: at most one in twenty images of the classes is taken for none.
STRANGE = 0.95  # the share of examples that fit their class better than a stranger does
_ENOUGH = 4  # examples that have another one in their class


def none_level(
    features: np.ndarray, labels: np.ndarray, emphasis: np.ndarray | float = 1.0, share: float = STRANGE
) -> float | None:
    """The novelty (see `FittedTask.novelty`) beyond which an image looks like none of the classes.

    That of the examples that fit their class worst, each seen against the others of its class (leave-one-out);
    None where too few examples have another one beside them.

    >>> none_level(np.array([[1, 0], [1, 0.1], [0, 1], [0.1, 1]]), np.array([0, 0, 1, 1])) < 0.01
    True
    """
    _, labels, counts = np.unique(labels, return_inverse=True, return_counts=True)
    sums = np.zeros((len(counts), features.shape[1]))
    np.add.at(sums, labels, features)
    accompanied = counts[labels] > 1
    if accompanied.sum() < _ENOUGH:
        return None
    own = features[accompanied] * emphasis
    others = (sums[labels[accompanied]] - features[accompanied]) * emphasis
    lengths = np.linalg.norm(own, axis=1) * np.linalg.norm(others, axis=1)
    cosines = (own * others).sum(1) / np.maximum(lengths, 1e-12)
    return float(np.quantile(1 - cosines, share))
