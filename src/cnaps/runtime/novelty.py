"""Images that are none of the classes: how far from all of them is too far."""

from __future__ import annotations

import numpy as np

from cnaps.maths.arrays import unit

NONE = "none of these"  # the answer for such an image
# By `python -m benchmarks.studio COLLECTIONS`: at most one in twenty images of the classes is taken for none.
STRANGE = 0.95  # the share of examples that fit their class better than a stranger does
_ENOUGH = 4  # examples that have another one in their class
# What classes have in common, strangers of their kind have too: most of it is left out (tools/compare_novelty.py).
_COMMON = 0.75


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
