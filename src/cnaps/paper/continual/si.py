"""Synaptic intelligence (Zenke, Poole and Ganguli, 2017)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from cnaps.paper.continual.base import Quadratic

DAMPING = 0.001


class SynapticIntelligence(Quadratic):
    """Weights count by how much the loss fell because of them on the way, for the distance they went."""

    strength = 2.0  # twice the paper's c = 1: our penalty has a half

    def __init__(self, network: nn.Module, classes: int, *, strength: float | None = None, **options: int) -> None:
        super().__init__(network, classes, strength=strength, **options)
        self.paths = [torch.zeros_like(p) for p in self.parameters]

    def follow(self, gradients: Sequence[Tensor], before: Sequence[Tensor]) -> None:
        """Add to the path integral."""
        for path, gradient, p, old in zip(self.paths, gradients, self.parameters, before, strict=True):
            path -= gradient * (p.detach() - old)

    def consolidate(self, x: Tensor, labels: Tensor) -> None:
        """Add this step's importance and begin a new path."""
        for weight, path, p, anchor in zip(self.weights, self.paths, self.parameters, self.anchors, strict=True):
            weight += (path / ((p - anchor).square() + DAMPING)).clamp_min(0)
            path.zero_()
