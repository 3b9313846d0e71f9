"""What is kept of the examples of each class: counts, means and, where a head needs it, scatter.

All of it adds up: statistics of two sets merge into those of their union, in any order, so a classifier learns
on without the images it has seen.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

RANK = 64  # rows of scatter that a class keeps when it learns on; while it has fewer than twice as many, all


@dataclass(frozen=True)
class ClassStatistics:
    """Statistics of C classes with d-dimensional features."""

    counts: Tensor  # (C,) float
    means: Tensor  # (C, d)
    scatter: tuple[Tensor, ...] | None = None  # for each class F (r, d), F'F = sum (x - mean)(x - mean)', r <= d

    @classmethod
    def of(cls, features: Tensor, labels: Tensor, ways: int, *, scatter: bool) -> ClassStatistics:
        """From features (N, d) and class indices (N,) in 0..ways-1, each of which occurs."""
        counts = torch.bincount(labels, minlength=ways).to(features.dtype)
        sums = features.new_zeros(ways, features.shape[1]).index_add(0, labels, features)
        means = sums / counts[:, None]
        if not scatter:
            return cls(counts, means)
        rows = features - means[labels]
        return cls(counts, means, tuple(_bounded(rows[labels == k]) for k in range(ways)))

    def select(self, indices: Tensor) -> ClassStatistics:
        """The statistics of some of the classes."""
        indices = indices.to(self.means.device)
        scatter = None if self.scatter is None else tuple(self.scatter[i] for i in indices.tolist())
        return ClassStatistics(self.counts[indices], self.means[indices], scatter)

    def merge(self, other: ClassStatistics, place: Tensor, ways: int) -> ClassStatistics:
        """Statistics of both sets; class i of `other` is class `place[i]` of the result, new ones at the end.

        Means are kept in double precision from here on, so that thousands of merges do not drift. Scatter is
        that of the union up to 2 RANK rows a class; beyond, its weakest directions are dropped, so that a merge
        costs the same however many examples there were.
        """
        place = place.to(self.means.device)
        counts = self.means.new_zeros(ways, dtype=torch.float64)
        means = self.means.new_zeros(ways, self.means.shape[1], dtype=torch.float64)
        known = len(self.counts)
        counts[:known], means[:known] = self.counts.double(), self.means.double()
        added = torch.zeros_like(counts).index_copy(0, place, other.counts.double())
        moved = torch.zeros_like(means).index_copy(0, place, other.means.double())
        share = (added / (counts + added).clamp_min(1))[:, None]
        gap = moved - means
        scatter = None
        if self.scatter is not None and other.scatter is not None:
            between = (counts * added / (counts + added).clamp_min(1)).sqrt()[:, None] * gap
            parts: list[list[Tensor]] = [[f] for f in self.scatter] + [[] for _ in range(ways - known)]
            for i, k in enumerate(place.tolist()):
                parts[k] += [other.scatter[i], between[k : k + 1].to(other.scatter[i].dtype)]
            scatter = tuple(_bounded(torch.cat(rows), RANK) for rows in parts)
        return ClassStatistics(counts + added, means + share * gap, scatter)


def _bounded(rows: Tensor, rank: int | None = None) -> Tensor:
    """At most d rows with the same product rows' rows, or only the `rank` strongest of more than twice as many."""
    rows = rows[rows.abs().amax(1) > 0] if len(rows) else rows
    if rank is not None and len(rows) > 2 * rank and rows.shape[1] > rank:
        return strongest(rows, rank)
    return rows if len(rows) <= rows.shape[1] else torch.linalg.qr(rows, mode="r").R


def strongest(rows: Tensor, rank: int) -> Tensor:
    """At most `rank` rows whose product comes closest to rows' rows (n, d); without those that add nothing.

    >>> strongest(torch.tensor([[3.0, 0.0], [4.0, 0.0], [0.0, 1.0]]), 1).abs()
    tensor([[5., 0.]])
    """
    if len(rows) == 0:
        return rows
    exact = rows.double() if len(rows) <= rows.shape[1] else torch.linalg.qr(rows.double(), mode="r").R
    values, vectors = torch.linalg.eigh(exact @ exact.T)
    keep = vectors[:, values > 1e-9 * values.sum()][:, -rank:]
    return (keep.T @ exact).to(rows.dtype)


def in_shared_basis(
    factors: tuple[Tensor, ...], directions: Tensor, size: int, rank: int
) -> tuple[Tensor, list[Tensor]]:
    """Factors (r_k, d) by a basis (size, d) for all, and rows (at most rank, size) for each.

    The basis holds `directions` (n, d) exactly, and what is strongest beside them.
    """
    first = torch.linalg.qr(directions.double().T).Q  # (d, n)
    rest = torch.cat([strongest(rows, rank) for rows in factors]).double()
    rest = strongest(rest - rest @ first @ first.T, max(0, size - first.shape[1]))
    basis = torch.linalg.qr(torch.cat([first, rest.T], 1)).Q.T.to(directions.dtype)
    return basis, [strongest(rows @ basis.T, rank) for rows in factors]
