"""`Adapted`: what one pass over a context set gives, with the history that training needs."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from cnaps.errors import InputError
from cnaps.maths.heads import Classifier
from cnaps.maths.statistics import ClassStatistics
from cnaps.nn.checks import check_images
from cnaps.nn.film import Film
from cnaps.nn.heads import Head

if TYPE_CHECKING:
    from cnaps.nn.model import CNAPs


class Adapted:
    """The classifier of one task: FiLM parameters and class statistics, and the model they belong to.

    Training and comparisons use it, and gradients flow through it. A task that is kept, learns on, is saved or
    exported is a `cnaps.runtime.task.FittedTask`.
    """

    def __init__(
        self,
        model: CNAPs,
        film: Film,
        classes: Tensor,
        statistics: ClassStatistics,
        task_embedding: Tensor,
        image_size: int,
    ) -> None:
        self.model = model
        self.film = film
        self.classes = classes  # sorted labels (C,)
        self.statistics = statistics
        self.task_embedding = task_embedding  # z_G
        self.image_size = image_size  # of the context: the network is the one for this size
        self.context_features: Tensor | None = None  # (N, d) of the context itself

    def features(self, images: Tensor, *, chunk_size: int | None = None) -> Tensor:
        """Adapted features (M, d) of float images (M, 3, H, W), as the head's classifier reads them."""
        check_images(images, "images", self.model.backbone.min_image_size)
        images = images.to(self.model.device)
        if self.model.config.backbone_norm == "batch":
            return self._network()(images)
        network = self._network() if torch.is_grad_enabled() else self._folded_network
        return torch.cat([network(part) for part in images.split(chunk_size or default_chunk(images.device))])

    def logits(self, images: Tensor, *, chunk_size: int | None = None) -> Tensor:
        """Logits (M, C) of float images (M, 3, H, W); columns in the order of `classes`."""
        return self.classify(self.features(images, chunk_size=chunk_size))

    def classify(self, features: Tensor) -> Tensor:
        """Logits (M, C) of adapted features (M, d)."""
        return (self.classifier if torch.is_grad_enabled() else self._fixed_classifier)(features)

    def predict(self, images: Tensor) -> Tensor:
        """The most probable label of each image (M,)."""
        with torch.no_grad():
            return self.classes[self.logits(images).argmax(1).cpu()]

    @property
    def classifier(self) -> Classifier:
        """From embedded features (M, d) to logits (M, C)."""
        return self.model.head.classifier(self.statistics)

    def fold(self) -> nn.Module:
        """A plain network from float images to logits: convolutions with bias, no norm, no FiLM.

        For prediction only: it is a copy without gradients, and needs the model no longer.
        """
        if self.model.config.backbone_norm == "batch":
            raise InputError("a model that normalises by batch statistics cannot be folded")
        with torch.no_grad():
            return _Folded(self._network(fuse=False), self._fixed_classifier).eval()

    def detach(self) -> Adapted:
        """The same task without the history that training needs."""
        s = self.statistics
        scatter = None if s.scatter is None else tuple(f.detach() for f in s.scatter)
        statistics = replace(s, means=s.means.detach(), scatter=scatter)
        film, embedding = self.film.detach(), self.task_embedding.detach()
        return Adapted(self.model, film, self.classes, statistics, embedding, self.image_size)

    def keep(self, modules: list[nn.Module]) -> None:
        """Predict with the folded stem and stages that read the context, instead of folding them again."""
        self.__dict__["_folded_network"] = AdaptedNetwork(
            modules[0],
            modules[1:],
            self.model.backbone.pools[1:],
            self.model.head,
            self.model.config.features == "all",
        )

    @cached_property
    def _folded_network(self) -> AdaptedNetwork:
        with torch.no_grad():
            return self._network()

    @cached_property
    def _fixed_classifier(self) -> Classifier:
        with torch.no_grad():
            return self.classifier

    def _network(self, *, fuse: bool = True) -> AdaptedNetwork:
        return self.model.network(self.film, self.image_size, fuse=fuse)


class AdaptedNetwork(nn.Module):
    """Stem, adapted stages, pooling: from images to the features that a task's classifier reads."""

    def __init__(
        self, stem: nn.Module, stages: list[nn.Module], pools: nn.ModuleList, head: Head, every_stage: bool
    ) -> None:
        super().__init__()
        self.stem, self.stages, self.pools = stem, nn.ModuleList(stages), pools
        self.head, self.every_stage = head, every_stage

    def forward(self, images: Tensor) -> Tensor:
        """(M, 3, H, W) -> (M, d)."""
        x = self.stem(images.contiguous(memory_format=torch.channels_last))
        pooled = []
        for i, (stage, pool) in enumerate(zip(self.stages, self.pools, strict=True)):
            x = stage(x)
            if self.every_stage or i == len(self.stages) - 1:
                pooled.append(pool(x))
        return self.head.embed(torch.cat(pooled, 1))


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


def running_mean(earlier: Tensor, earlier_count: int, latest: Tensor, latest_count: int) -> Tensor:
    """The mean over everything seen so far, in double precision, so that thousands of updates do not drift."""
    share = latest_count / (latest_count + earlier_count)
    return earlier.double() + share * (latest.double() - earlier.double())
