"""Riemannian walk (Chaudhry et al., 2018)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from cnaps.paper.continual.base import Coreset, Quadratic

DECAY = 0.9  # of the running Fisher information
KEPT = 20  # examples of each class that are kept, as many as VCL's coreset
SMALL = 1e-8


class RiemannianWalk(Quadratic):
    """Weights count by the Fisher information and by what a walk in its metric gained, each scaled to 0..1.

    A few examples of each class are kept, and all classes compete in the loss, as for its single-head figures.
    """

    strength = 2.0

    def __init__(self, network: nn.Module, classes: int, *, strength: float | None = None, **options: int) -> None:
        super().__init__(network, classes, strength=strength, **options)
        self.fisher = [torch.zeros_like(p) for p in self.parameters]
        self.gains = [torch.zeros_like(p) for p in self.parameters]
        self.scores = [torch.zeros_like(p) for p in self.parameters]
        self.memory = Coreset(KEPT, self.generator)
        self.earlier = 0.0  # the share of earlier steps among the classes so far

    def meet(self, labels: Tensor) -> None:
        """All classes so far compete."""
        super().meet(torch.cat([labels, self.memory.labels]))
        kept = len(self.memory.labels.unique())
        self.earlier = kept / (kept + len(labels.unique()))

    def loss(self, x: Tensor, labels: Tensor) -> Tensor:
        """Of the batch and of kept examples, each with the share of its classes among those so far."""
        now = super().loss(x, labels)
        if not len(self.memory.labels):
            return now
        chosen = torch.randint(len(self.memory.labels), (self.batch,), generator=self.generator)
        before = super().loss(self.memory.x[chosen], self.memory.labels[chosen])
        return now + (before - now) * self.earlier

    def follow(self, gradients: Sequence[Tensor], before: Sequence[Tensor]) -> None:
        """The running Fisher information, and the gain for the distance in its metric."""
        rows = zip(self.fisher, self.gains, gradients, self.parameters, before, strict=True)
        for fisher, gain, gradient, p, old in rows:
            fisher.mul_(DECAY).add_(gradient.square(), alpha=1 - DECAY)
            moved = p.detach() - old
            gain += (-gradient * moved / (0.5 * fisher * moved.square() + SMALL)).clamp_min(0)

    def consolidate(self, x: Tensor, labels: Tensor) -> None:
        """Scores are averaged over steps; keep some examples."""
        first = not len(self.memory.labels)
        for score, gain in zip(self.scores, self.gains, strict=True):
            score.copy_(gain if first else (score + gain) / 2)
            gain.zero_()
        self.weights = [f + s for f, s in zip(_scaled(self.fisher), _scaled(self.scores), strict=True)]
        self.memory.add(x, labels)


def _scaled(values: Sequence[Tensor]) -> list[Tensor]:
    most = max(float(value.max()) for value in values)
    return [value / max(most, SMALL) for value in values]
