"""What every method of the comparison is: `adapt` reads labelled images and gives a predictor.

All methods share a backbone, its weights and the image size. A learner never changes the parts it was given: what
it learns of a task lives in the predictor.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from cnaps.nn.backbones.base import Backbone, pool
from cnaps.nn.film import fold

CHUNK = 64  # images run at once where no gradient is wanted


@dataclass(frozen=True)
class Predictor:
    """The classifier of a task: pixels (M, 3, S, S), or features (M, d), to logits (M, C)."""

    logits: Callable[[Tensor], Tensor]
    parameters: int  # numbers that belong to the task alone

    @torch.no_grad()
    def __call__(self, inputs: Tensor) -> Tensor:
        """In parts, so that memory does not grow with the number of images."""
        return torch.cat([self.logits(part) for part in inputs.split(CHUNK)])


class Learner(Protocol):
    """A method: pixels of 0..255 (N, 3, S, S) and labels 0..C-1 (N,) in, a predictor of logits out."""

    name: str

    def adapt(self, images: Tensor, labels: Tensor) -> Predictor:
        """Learn a task."""


class FrozenFeatures:
    """Pixels -> features (N, d) of a backbone as it is; folded, so as fast as can be.

    The pooled last stage, of unit length; with `every_stage` all stages side by side, each of unit length.
    `image_size` is that of the images it wants, if not everybody's.
    """

    def __init__(self, backbone: Backbone, *, every_stage: bool = False, image_size: int | None = None) -> None:
        self.normalisation, self.image_size, self.every_stage = backbone.normalisation, image_size, every_stage
        self.size = sum(backbone.channels[1:]) if every_stage else backbone.feature_size
        found = zip(backbone.stages, backbone.stage_units, strict=True)
        self._stages = [fold(stage, units, fuse=True) for stage, units in found]
        self._stem = fold(backbone.stem, backbone.stem_units, fuse=True)

    @torch.no_grad()
    def __call__(self, pixels: Tensor) -> Tensor:
        """(N, 3, S, S) -> (N, d)."""
        return torch.cat([self._features(part) for part in pixels.split(CHUNK)])

    def _features(self, pixels: Tensor) -> Tensor:
        x, pooled = self._stem(self.normalisation(pixels)), []
        for stage in self._stages:
            x = stage(x)
            pooled.append(pool(x))
        return torch.cat([F.normalize(each.float(), dim=1) for each in pooled[0 if self.every_stage else -1 :]], 1)


class FeatureLearner(ABC):
    """A method that needs no more than frozen features; many tasks can then share those of one image."""

    name = ""

    def __init__(self, frozen: FrozenFeatures) -> None:
        self.frozen = frozen

    @abstractmethod
    def fit(self, features: Tensor, labels: Tensor) -> Predictor:
        """Learn a task from features (N, d); the predictor reads features (M, d)."""

    def adapt(self, images: Tensor, labels: Tensor) -> Predictor:
        """Learn a task from pixels."""
        fitted = self.fit(self.frozen(images), labels)
        return replace(fitted, logits=lambda pixels: fitted.logits(self.frozen(pixels)))


def class_means(features: Tensor, labels: Tensor) -> Tensor:
    """The mean feature of each class, (C, d).

    >>> class_means(torch.tensor([[1.0], [3.0], [5.0]]), torch.tensor([0, 0, 1])).tolist()
    [[2.0], [5.0]]
    """
    ways = int(labels.max()) + 1
    sums = features.new_zeros(ways, features.shape[1]).index_add(0, labels, features)
    return sums / torch.bincount(labels, minlength=ways)[:, None]
