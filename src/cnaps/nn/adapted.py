"""`Adapted`: what one pass over a context set gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from cnaps.errors import InputError
from cnaps.maths.heads import Classifier
from cnaps.maths.statistics import ClassStatistics
from cnaps.nn.backbones.base import staged_features
from cnaps.nn.checks import check_images
from cnaps.nn.film import Film
from cnaps.nn.task_model import TaskModel, gradients

if TYPE_CHECKING:
    from cnaps.nn.model import CNAPs


@dataclass(eq=False)
class Adapted:
    """The classifier of one task: FiLM parameters and class statistics, and the model they belong to.

    Training and comparisons use it; with `learn`, gradients flow through it. A task that is kept, learns on, is
    saved or exported is a `cnaps.runtime.task.FittedTask`.
    """

    model: CNAPs
    film: Film
    classes: Tensor  # sorted labels (C,)
    statistics: ClassStatistics
    task_embedding: Tensor  # z_G
    image_size: int  # of the context: the network is the one for this size
    context_features: Tensor  # (N, d) of the context itself
    network: AdaptedNetwork  # the one that read the context
    learn: bool

    def features(self, images: Tensor, *, chunk_size: int | None = None) -> Tensor:
        """Adapted features (M, d) of float images (M, 3, H, W), as the head's classifier reads them."""
        check_images(images, "images", self.model.backbone.min_image_size)
        images = images.to(self.model.device)
        if self.model.config.backbone_norm == "batch":
            chunk_size = len(images)  # norms read all of them
        with gradients(self.learn):
            parts = images.split(chunk_size or default_chunk(images.device))
            return torch.cat([self.network(part) for part in parts])

    def logits(self, images: Tensor, *, chunk_size: int | None = None) -> Tensor:
        """Logits (M, C) of float images (M, 3, H, W); columns in the order of `classes`."""
        return self.classify(self.features(images, chunk_size=chunk_size))

    def classify(self, features: Tensor) -> Tensor:
        """Logits (M, C) of adapted features (M, d)."""
        with gradients(self.learn):
            return self.classifier(features)

    def predict(self, images: Tensor) -> Tensor:
        """The most probable label of each image (M,)."""
        with torch.no_grad():
            return self.classes[self.logits(images).argmax(1).cpu()]

    @cached_property
    def classifier(self) -> Classifier:
        """From embedded features (M, d) to logits (M, C)."""
        with gradients(self.learn):
            return self.model.head.classifier(self.statistics)

    @torch.no_grad()
    def fold(self) -> nn.Module:
        """A plain network from float images to logits: convolutions with bias, no norm, no FiLM.

        For prediction only: it is a copy without gradients, and needs the model no longer.
        """
        if self.model.config.backbone_norm == "batch":
            raise InputError("a model that normalises by batch statistics cannot be folded")
        network = self.model.network(self.film, self.image_size, fuse=False)
        return _Folded(network, self.model.head.classifier(self.statistics)).eval()


class AdaptedNetwork(nn.Module):
    """Stem, adapted stages, pooling: from images to the features that a task's classifier reads."""

    def __init__(self, model: TaskModel, parts: Sequence[nn.Module]) -> None:
        super().__init__()
        self.parts, self.pools = nn.ModuleList(parts), model.backbone.pools[1:]
        self.head, self.every_stage = model.head, model.every_stage

    def forward(self, images: Tensor) -> Tensor:
        """(M, 3, H, W) -> (M, d)."""
        return self.head.embed(staged_features(self.parts, self.pools, images, every_stage=self.every_stage))


class _Folded(nn.Module):
    """Features and classifier as one network."""

    def __init__(self, network: nn.Module, classifier: Classifier) -> None:
        super().__init__()
        self.network, self.classifier = network, classifier

    def forward(self, images: Tensor) -> Tensor:
        """(M, 3, H, W) -> (M, C)."""
        return self.classifier(self.network(images))


def default_chunk(device: torch.device) -> int:
    """How many images are run at once: few enough for a processor's cache, many enough to keep a GPU busy."""
    return 32 if device.type == "cpu" else 256
