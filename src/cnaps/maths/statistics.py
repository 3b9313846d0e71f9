"""What is kept of the examples of each class: counts, means and, where a head needs it, scatter.

All of it adds up: statistics of two sets merge into those of their union, in any order, so a classifier learns
on without the images it has seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cnaps.maths.arrays import Array, cast, device, members_of, namespace

RANK = 64  # rows of scatter that a class keeps when it learns on; while it has fewer than twice as many, all


@dataclass(frozen=True)
class ClassStatistics:
    """Statistics of C classes with d-dimensional features.

    >>> import numpy as np
    >>> some = ClassStatistics.of(np.eye(4), np.array([0, 0, 1, 1]), 2, scatter=True)
    >>> some.counts.tolist(), some.means.shape, [len(rows) for rows in some.scatter]
    ([2.0, 2.0], (2, 4), [2, 2])
    """

    counts: Array  # (C,) float
    means: Array  # (C, d)
    scatter: tuple[Array, ...] | None = None  # for each class F (r, d), F'F = sum (x - mean)(x - mean)', r <= d

    @classmethod
    def of(
        cls, features: Array, labels: Array, ways: int, *, scatter: bool, weights: Array | None = None
    ) -> ClassStatistics:
        """From features (N, d) and class indices (N,) in 0..ways-1, each of which occurs.

        An example of weight 2 (N,) counts as one that was seen twice.
        """
        xp = namespace(features)
        members = members_of(labels, ways, features)
        if weights is not None:
            members = members * cast(weights, features)
        counts = xp.sum(members, axis=1)
        means = members @ features / counts[:, None]
        if not scatter:
            return cls(counts, means)
        rows = features - xp.take(means, labels, axis=0)
        if weights is not None:
            rows = rows * xp.sqrt(cast(weights, features))[:, None]
        return cls(counts, means, tuple(_bounded(rows[labels == k]) for k in range(ways)))

    def select(self, indices: Sequence[int]) -> ClassStatistics:
        """The statistics of some of the classes."""
        places = list(indices)
        scatter = None if self.scatter is None else tuple(self.scatter[i] for i in places)
        return ClassStatistics(self.counts[places], self.means[places], scatter)

    def merge(self, other: ClassStatistics, place: Sequence[int], ways: int) -> ClassStatistics:
        """Statistics of both sets; class i of `other` is class `place[i]` of the result, new ones at the end.

        Means are kept in double precision from here on, so that thousands of merges do not drift. Scatter is
        that of the union up to 2 RANK rows a class; beyond, its weakest directions are dropped, so that a merge
        costs the same however many examples there were.
        """
        xp, known = namespace(self.means), self.counts.shape[0]
        counts, means = _placed(self, range(known), ways)
        added, moved = _placed(other, place, ways)
        together = xp.where(counts + added > 0, counts + added, xp.ones_like(counts))
        gap = moved - means
        scatter = None
        if self.scatter is not None and other.scatter is not None:
            between = xp.sqrt(counts * added / together)[:, None] * gap
            parts: list[list[Array]] = [[f] for f in self.scatter] + [[] for _ in range(ways - known)]
            for i, k in enumerate(place):
                parts[k] += [other.scatter[i], cast(between[k : k + 1], other.scatter[i])]
            scatter = tuple(_bounded(xp.concat(rows, axis=0), RANK) for rows in parts)
        return ClassStatistics(counts + added, means + (added / together)[:, None] * gap, scatter)


def _placed(statistics: ClassStatistics, place: Sequence[int], ways: int) -> tuple[Array, Array]:
    """Counts (ways,) and means (ways, d) in double precision, each class in its place, zeros elsewhere."""
    xp = namespace(statistics.means)
    counts, means = (xp.astype(part, xp.float64) for part in (statistics.counts, statistics.means))
    chosen = [[float(i == k) for i in place] for k in range(ways)]
    where = xp.asarray(chosen, dtype=xp.float64, device=device(means))  # (ways, C)
    return where @ counts, where @ means


def _bounded(rows: Array, rank: int | None = None) -> Array:
    """At most d rows with the same product rows' rows, or only the `rank` strongest of more than twice as many."""
    xp, (count, width) = namespace(rows), rows.shape
    rows = rows[xp.any(rows != 0, axis=1)] if count else rows
    if rank is not None and rows.shape[0] > 2 * rank and width > rank:
        return strongest(rows, rank)
    return rows if rows.shape[0] <= width else xp.linalg.qr(rows)[1]


def strongest(rows: Array, rank: int) -> Array:
    """At most `rank` rows whose product comes closest to rows' rows (n, d); without those that add nothing.

    >>> import numpy as np
    >>> abs(strongest(np.array([[3.0, 0.0], [4.0, 0.0], [0.0, 1.0]]), 1)).round(9).tolist()
    [[5.0, 0.0]]
    """
    if rows.shape[0] == 0 or rank == 0:
        return rows[:0]
    xp = namespace(rows)
    exact = xp.astype(rows, xp.float64)
    if exact.shape[0] > exact.shape[1]:
        exact = xp.linalg.qr(exact)[1]
    values, vectors = xp.linalg.eigh(exact @ exact.T)
    keep = vectors[:, values > 1e-9 * xp.sum(values)][:, -rank:]
    return cast(keep.T @ exact, rows)


def in_shared_basis(
    factors: tuple[Array, ...], directions: Array, size: int, rank: int
) -> tuple[Array, list[Array]]:
    """Factors (r_k, d) by a basis (size, d) for all, and rows (at most rank, size) for each.

    The basis holds `directions` (n, d) exactly, and what is strongest beside them.
    """
    xp = namespace(directions)
    first = xp.linalg.qr(xp.astype(directions, xp.float64).T)[0]  # (d, n)
    rest = xp.concat([xp.astype(strongest(rows, rank), xp.float64) for rows in factors], axis=0)
    rest = strongest(rest - rest @ first @ first.T, max(0, size - first.shape[1]))
    basis = cast(xp.linalg.qr(xp.concat([first, rest.T], axis=1))[0].T, directions)
    return basis, [strongest(rows @ basis.T, rank) for rows in factors]
