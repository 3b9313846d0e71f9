"""Which images to label next: scores of uncertainty, and a choice of several that does not repeat itself."""

from __future__ import annotations

import os
from collections.abc import Sequence, Sized
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from cnaps.errors import InputError
from cnaps.progress import progress_bar

if TYPE_CHECKING:
    from cnaps.images.inputs import Images, OnError
    from cnaps.runtime.task import FittedTask

CANDIDATES = 10  # for each image wanted, how many of the most uncertain a diverse choice looks at
NEAR = 0.5  # of the usual distance between two images: what is nearer to one that was taken counts less
STRATEGIES = ("diverse", "entropy", "margin", "variation-ratio", "random")


def uncertainty(
    probabilities: np.ndarray, strategy: str = "entropy", *, seed: int | np.random.Generator = 0
) -> np.ndarray:
    """How much a label would tell, for each row of class probabilities (N, C): higher is more, within 0..1.

    >>> uncertainty(np.array([[0.5, 0.5], [1.0, 0.0]])).tolist()
    [1.0, 0.0]
    """
    rows, ways = probabilities.shape
    check_strategy(strategy)
    if strategy == "entropy":
        logs = np.log(np.clip(probabilities, 1e-12, 1))
        return np.clip(-(probabilities * logs).sum(1) / np.log(max(ways, 2)), 0, 1) + 0.0
    if strategy in ("margin", "diverse"):
        top = np.sort(probabilities, axis=1)
        return np.subtract(1, top[:, -1] - top[:, -2]) if ways > 1 else 1 - top[:, -1]
    if strategy == "variation-ratio":
        return np.subtract(1, probabilities.max(1))
    return np.random.default_rng(seed).random((rows,))


def check_strategy(name: str) -> str:
    """The name of a strategy that there is."""
    if name not in STRATEGIES:
        raise InputError(f"no strategy named {name!r}; there are: {', '.join(STRATEGIES)}")
    return name


def choose(
    probabilities: np.ndarray,
    features: np.ndarray,
    n: int,
    strategy: str = "diverse",
    *,
    seed: int | np.random.Generator = 0,
) -> list[int]:
    """The `n` rows to label next, best first.

    `diverse` takes what `margin` does, one at a time, but for what is nearly the same as something taken so far: a
    near-duplicate of a chosen image has next to nothing to add. The others rank by `uncertainty`.

    >>> twins = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    >>> choose(np.array([[0.5, 0.5], [0.49, 0.51], [0.3, 0.7]]), twins, 2)
    [0, 2]
    """
    scores = uncertainty(probabilities, strategy, seed=seed)
    n = min(n, len(scores))
    if strategy == "diverse" and n > 1:
        return spread_out(scores, features, n)
    return np.argsort(-scores, kind="stable")[:n].tolist()


def spread_out(scores: np.ndarray, features: np.ndarray, n: int, near: float = NEAR) -> list[int]:
    """`n` rows of high scores (N,), one at a time, that are not near-duplicates by their features (N, d).

    An image counts less the nearer it is to one that was taken, from `near` times the usual distance on.
    """
    unit = features / np.clip(np.linalg.norm(features, axis=1, keepdims=True), 1e-12, None)
    weight = np.ones(len(scores))
    left = np.ones(len(scores), bool)
    taken: list[int] = []
    for _ in range(n):
        best = int(np.argmax(np.where(left, scores * weight + 1e-6 * scores, -1.0)))
        taken.append(best)
        left[best] = False
        distance = np.clip(1 - unit @ unit[best], 0, 1)
        if len(taken) == 1:
            reach = max(near * float(np.median(distance)), 1e-6)
        weight = np.minimum(weight, distance / reach)
    return taken


@dataclass(frozen=True)
class Suggestion:
    """An image worth a label: its place in the pool, how much its label would tell, what it looks like so far."""

    index: int
    path: str | None  # where the pool is a list of files
    score: float  # 0..1
    label: Any
    probability: float


def suggest(
    task: FittedTask,
    pool: Images,
    n: int = 20,
    strategy: str = "diverse",
    *,
    seed: int = 0,
    on_error: OnError | None = None,
) -> list[Suggestion]:
    """The `n` images of a pool of any size to label next, best first; see `choose`.

    The pool streams by and only the best are kept: for `diverse` the features of CANDIDATES * n of them,
    among which it then chooses. A broken image is handed to `on_error`; without it, it is raised.
    """
    if n < 1:
        raise InputError(f"at least one image can be suggested, not {n}")
    check_strategy(strategy)
    chance = np.random.default_rng(seed)
    most = n * CANDIDATES if strategy == "diverse" else n
    kept: tuple[np.ndarray, ...] | None = None  # scores, places, probabilities, features; best first
    with progress_bar() as bar:
        row = bar.add_task("looking", total=len(pool) if isinstance(pool, Sized) else None, note="")
        for where, features, probabilities in task.embed(pool, on_error):
            scores = uncertainty(probabilities, strategy, seed=chance)
            found: tuple[np.ndarray, ...] = (scores, np.array(where), probabilities, features)
            if kept is not None:
                found = tuple(np.concatenate(pair) for pair in zip(kept, found, strict=True))
            best = np.argsort(-found[0], kind="stable")[:most]
            kept = tuple(part[best] for part in found)
            bar.update(row, completed=where[-1] + 1)
    if kept is None:
        return []
    scores, places, probabilities, vectors = kept
    order = choose(probabilities, vectors, n) if strategy == "diverse" else range(len(scores))

    def suggestion(i: int) -> Suggestion:
        place, best = int(places[i]), int(probabilities[i].argmax())
        image = pool[place] if isinstance(pool, Sequence) else None
        path = os.fspath(image) if isinstance(image, str | os.PathLike) else None
        return Suggestion(place, path, float(scores[i]), task.names[best], float(probabilities[i, best]))

    return [suggestion(i) for i in order]
