"""Features of a backbone as it is: what comparisons without adaptation read."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from cnaps.nn.backbones.base import Backbone, staged_features

CHUNK = 64  # images run at once where no gradient is wanted


class FrozenFeatures:
    """Pixels -> features (N, d) of unit length, of a backbone as it is; folded, so as fast as can be.

    With `every_stage` they are the pooled outputs of all stages side by side, each of the same length.
    """

    def __init__(self, backbone: Backbone, *, every_stage: bool = False) -> None:
        self.normalisation, self.every_stage = backbone.normalisation, every_stage
        self.groups = backbone.groups(every_stage=every_stage)
        self.size = sum(self.groups)
        self._pools, self._modules = backbone.pools[1:], backbone.ready(learn=False)

    def __call__(self, pixels: Tensor) -> Tensor:
        """(N, 3, S, S) -> (N, d)."""
        return unit_features(self.raw(pixels), self.groups)

    @torch.no_grad()
    def raw(self, pixels: Tensor) -> Tensor:
        """(N, 3, S, S) -> (N, d), of whatever length."""
        parts = [
            staged_features(self._modules, self._pools, self.normalisation(part), every_stage=self.every_stage)
            for part in pixels.split(CHUNK)
        ]
        return torch.cat(parts)

    def narrow(self, every: Tensor) -> Tensor:
        """Of features of every stage (N, D), those that this gives (N, d)."""
        return every if self.every_stage else unit_features(every[:, -self.size :], self.groups)


def unit_features(features: Tensor, groups: Sequence[int]) -> Tensor:
    """Every group of features (N, d) of the same length, all together of length one.

    >>> unit_features(torch.tensor([[3.0, 4.0, 0.0, 2.0]]), [2, 2]).square().sum().item()
    1.0
    """
    parts = [F.normalize(part, dim=1) for part in features.split(list(groups), 1)]
    return torch.cat(parts, 1) / len(parts) ** 0.5
