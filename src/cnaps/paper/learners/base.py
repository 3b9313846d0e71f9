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
from torch import Tensor, nn

from cnaps.maths.statistics import ClassStatistics
from cnaps.nn.frozen import CHUNK


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


class ImageFeatures(Protocol):
    """Features of images that do not depend on a task."""

    size: int

    def __call__(self, pixels: Tensor) -> Tensor:
        """(N, 3, S, S) -> (N, size)."""

    def narrow(self, every: Tensor) -> Tensor:
        """Of these features, those that a method reads."""


class FeatureLearner(ABC):
    """A method that needs no more than frozen features; many tasks can then share those of one image."""

    name = ""

    def __init__(self, frozen: ImageFeatures) -> None:
        self.frozen = frozen

    @abstractmethod
    def fit(self, features: Tensor, labels: Tensor) -> Predictor:
        """Learn a task from features (N, d); the predictor reads features (M, d)."""

    def adapt(self, images: Tensor, labels: Tensor) -> Predictor:
        """Learn a task from pixels."""
        fitted = self.fit(self.frozen(images), labels)
        return replace(fitted, logits=lambda pixels: fitted.logits(self.frozen(pixels)))


@dataclass
class FittedClassifier:
    """What a trained method has learned of a task: a network to features, a classifier of them."""

    classes: Tensor  # sorted labels (C,)
    features: Callable[[Tensor], Tensor]  # float images (M, 3, H, W) -> (M, d)
    classify: Callable[[Tensor], Tensor]  # (M, d) -> (M, C)
    numbers: int  # that belong to the task alone

    def logits(self, images: Tensor) -> Tensor:
        """(M, 3, H, W) -> (M, C)."""
        return self.classify(self.features(images))


def count_numbers(classifier: object) -> int:
    """How many numbers a classifier consists of."""
    held = classifier.buffers() if isinstance(classifier, nn.Module) else vars(classifier).values()
    return sum(value.numel() for value in held if isinstance(value, Tensor))


def class_means(features: Tensor, labels: Tensor) -> Tensor:
    """The mean feature of each class, (C, d).

    >>> class_means(torch.tensor([[1.0], [3.0], [5.0]]), torch.tensor([0, 0, 1])).tolist()
    [[2.0], [5.0]]
    """
    return ClassStatistics.of(features, labels, int(labels.max()) + 1, scatter=False).means
