"""Which images to label next: scores of doubt, and a choice of several that does not repeat itself."""

from __future__ import annotations

import numpy as np

from cnaps.errors import InputError

STRATEGIES = ("diverse", "entropy", "margin", "variation-ratio", "random")


def doubt(probabilities: np.ndarray, strategy: str = "entropy", *, seed: int = 0) -> np.ndarray:
    """How much a label would tell, for each row of class probabilities (N, C): higher is more, within 0..1.

    >>> doubt(np.array([[0.5, 0.5], [1.0, 0.0]])).tolist()
    [1.0, 0.0]
    """
    rows, ways = probabilities.shape
    if strategy in ("entropy", "diverse"):
        logs = np.log(np.clip(probabilities, 1e-12, 1))
        return np.clip(-(probabilities * logs).sum(1) / np.log(max(ways, 2)), 0, 1) + 0.0
    if strategy == "margin":
        top = np.sort(probabilities, axis=1)
        return np.subtract(1, top[:, -1] - top[:, -2]) if ways > 1 else 1 - top[:, -1]
    if strategy == "variation-ratio":
        return np.subtract(1, probabilities.max(1))
    if strategy == "random":
        return np.random.default_rng(seed).random((rows,))
    raise InputError(f"no strategy named {strategy!r}; there are: {', '.join(STRATEGIES)}")


def choose(
    probabilities: np.ndarray, features: np.ndarray, n: int, strategy: str = "diverse", *, seed: int = 0
) -> list[int]:
    """The `n` rows to label next, best first.

    `diverse` takes the most doubtful first and then, one at a time, what is doubtful and unlike everything
    taken so far: a near-duplicate of a chosen image has next to nothing to add. The others rank by `doubt`.

    >>> twins = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    >>> choose(np.array([[0.5, 0.5], [0.49, 0.51], [0.3, 0.7]]), twins, 2)
    [0, 2]
    """
    scores = doubt(probabilities, strategy, seed=seed)
    n = min(n, len(scores))
    if strategy != "diverse":
        return np.argsort(-scores, kind="stable")[:n].tolist()
    unit = features / np.clip(np.linalg.norm(features, axis=1, keepdims=True), 1e-12, None)
    novelty = np.ones(len(scores))  # 1 - the highest cosine to what was taken
    left = np.ones(len(scores), bool)
    taken: list[int] = []
    for _ in range(n):
        best = int(np.argmax(np.where(left, scores * novelty + 1e-6 * scores, -1.0)))
        taken.append(best)
        left[best] = False
        novelty = np.minimum(novelty, np.clip(1 - unit @ unit[best], 0, 1))
    return taken
