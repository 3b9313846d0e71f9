"""Continual methods on features of a backbone that nothing changes: what needs no training at all.

Both keep sums, so the order of the steps does not matter and nothing is forgotten but by rivals that come later.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


class ClassMeans:
    """The nearest mean of the features of a class, by its cosine."""

    def __init__(self, classes: int, width: int) -> None:
        self.sums = torch.zeros(classes, width)

    def learn(self, images: Tensor, labels: Tensor) -> None:
        """Features (N, d) of one step."""
        self.sums.index_add_(0, labels, images)

    def logits(self, images: Tensor) -> Tensor:
        """(M, d) -> (M, K)."""
        return F.normalize(images, dim=1) @ F.normalize(self.sums, dim=1).T


class Ridge:
    """Ridge regression from features to classes; `strength` is for features whose mean square is one."""

    def __init__(self, classes: int, width: int, *, strength: float) -> None:
        self.strength = strength
        self.gram = torch.zeros(width + 1, width + 1)
        self.sums = torch.zeros(width + 1, classes)
        self._weights: Tensor | None = None  # (d + 1, K)

    def learn(self, images: Tensor, labels: Tensor) -> None:
        """Features (N, d) of one step."""
        x = _with_one(images)
        self.gram += x.T @ x
        self.sums.index_add_(1, labels, x.T)
        self._weights = None

    def logits(self, images: Tensor) -> Tensor:
        """(M, d) -> (M, K)."""
        if self._weights is None:
            held = self.gram + self.strength * torch.eye(len(self.gram))
            self._weights = torch.cholesky_solve(self.sums, torch.linalg.cholesky(held))
        return _with_one(images) @ self._weights


def _with_one(features: Tensor) -> Tensor:
    """(N, d) -> (N, d + 1), for the bias."""
    return torch.cat([features, torch.ones(len(features), 1)], 1)
