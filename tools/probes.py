"""The best that a notebook does with the same backbone: logistic regression whose C is chosen on the context.

Six of them: features of the last stage or of all stages, of images of 96, 160 or 224 pixels.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import minimize

STRENGTHS = (10.0, 100.0, 1000.0, 10000.0)  # scikit-learn's C
FOLDS = 3
DEFAULT = 1000.0  # where no class has two examples, so that nothing can be left out
SIZES = (96, 160, 224)


def probe(context: np.ndarray, labels: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Logits (M, C) of target features (M, d), from context features (N, d) of unit length and labels 0..C-1 (N,).

    Solutions live in the span of the context, so everything happens in at most N dimensions.
    """
    centre = context.mean(0)
    x = (context - centre).astype(np.float64)
    values, vectors = np.linalg.eigh(x @ x.T)
    keep = values > 1e-10 * values[-1]
    turn = x.T @ (vectors[:, keep] / np.sqrt(values[keep]))  # (d, r), orthonormal columns
    inside = x @ turn
    w, b = solve(inside, labels, int(labels.max()) + 1, choose(inside, labels))
    return (targets - centre) @ turn @ w + b


def choose(x: np.ndarray, y: np.ndarray) -> float:
    """The C with the most left-out examples right; of several, the likeliest."""
    fold = np.full(len(y), -1)  # of classes with one example, that one is never left out
    for k in range(int(y.max()) + 1):
        mine = np.flatnonzero(y == k)
        if len(mine) > 1:
            fold[np.random.default_rng(k).permutation(mine)] = np.arange(len(mine)) % FOLDS
    if (fold >= 0).sum() == 0:
        return DEFAULT
    found = np.zeros((len(STRENGTHS), 2))
    for left in range(FOLDS):
        out = fold == left
        if not out.any():
            continue
        start = None
        for i, strength in enumerate(STRENGTHS):
            w, b = solve(x[~out], y[~out], int(y.max()) + 1, strength, start)
            start = (w, b)
            logits = x[out] @ w + b
            sure = logits[np.arange(out.sum()), y[out]] - np.logaddexp.reduce(logits, axis=1)
            found[i] += (logits.argmax(1) == y[out]).sum(), sure.sum()
    return STRENGTHS[max(range(len(STRENGTHS)), key=lambda i: tuple(found[i]))]


def solve(
    x: np.ndarray,
    y: np.ndarray,
    ways: int,
    strength: float,
    start: tuple[np.ndarray, np.ndarray] | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Weights (r, C) and biases (C,) of the convex problem, from `start` if given."""
    n, r = x.shape
    wanted = np.zeros((n, ways))
    wanted[np.arange(n), y] = 1

    def objective(flat: np.ndarray) -> tuple[float, np.ndarray]:
        w, b = flat[: r * ways].reshape(r, ways), flat[r * ways :]
        logits = x @ w + b
        logits -= logits.max(1, keepdims=True)
        odds = np.exp(logits)
        total = odds.sum(1, keepdims=True)
        loss = (np.log(total[:, 0]) - (logits * wanted).sum(1)).mean() + (w * w).sum() / (2 * strength * n)
        gap = (odds / total - wanted) / n
        return loss, np.concatenate([(x.T @ gap + w / (strength * n)).ravel(), gap.sum(0)])

    first = np.zeros(r * ways + ways) if start is None else np.concatenate([start[0].ravel(), start[1]])
    found = minimize(objective, first, jac=True, method="L-BFGS-B", options={"maxiter": 200, "gtol": 1e-5}).x
    return found[: r * ways].reshape(r, ways), found[r * ways :]
