"""TADAM-style conditioning: FiLM of every stage from the mean class prototype of the un-adapted features."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cnaps.maths.statistics import ClassStatistics
from cnaps.nn.adaptation import FilmAdaptation
from cnaps.nn.adapted import Adapted, default_chunk
from cnaps.nn.backbones import Backbone
from cnaps.nn.context import Context
from cnaps.nn.film import Film, SiteFilm
from cnaps.nn.model import CNAPs, ModelConfig
from cnaps.paper.learners.base import class_means

BUCKETS = 2048  # classes of the auxiliary task


class Tadam(CNAPs):
    """Two passes over the context: one without FiLM for the prototypes, one with it for the classifier.

    The auxiliary task of training is to tell all training classes apart: adapted class means are classified into
    buckets, which classes fall into by a hash of their names, so that no list of classes has to be kept.
    """

    kind = "tadam"
    auxiliary_weight = 0.1

    def __init__(self, config: ModelConfig | None = None, backbone: Backbone | None = None) -> None:
        plain = {"adaptation": "none", "embedding_size": 0, "head": "cosine", "features": "last"}
        super().__init__(replace(config or ModelConfig(), **plain), backbone)  # type: ignore[arg-type]
        self.adaptation = FilmAdaptation(
            self.backbone.channels,
            self.backbone.site_channels,
            autoregressive=False,
            embedding_size=self.backbone.feature_size,
            width=self.config.generator_width,
        )
        self.auxiliary = nn.Linear(self.backbone.feature_size, BUCKETS)
        self.train(False)

    def _adapt(self, images: Tensor, classes: Tensor, index: Tensor, *_: Any, **__: Any) -> Adapted:
        assert self.adaptation is not None
        images = images.to(self.device).contiguous(memory_format=torch.channels_last)
        index = index.to(self.device)
        with torch.no_grad():  # theta is fixed, and nothing before the prototypes is learned
            plain = self._features(images, ())
            embedding = class_means(F.normalize(plain, dim=1), index).mean(0)
        stages = range(len(self.backbone.stages))
        film = tuple(self.adaptation.stage_film(stage, embedding, None, index) for stage in stages)
        features = self._features(images, film)
        statistics = ClassStatistics.of(self.head.embed(features), index, len(classes), scatter=False)
        return Adapted(self, Film(film), classes, statistics, embedding, len(images))

    def _features(self, images: Tensor, film: tuple[tuple[SiteFilm, ...], ...]) -> Tensor:
        context = Context(images, chunk_size=default_chunk(self.device))
        context.run(self._stem())
        for stage in range(len(self.backbone.stages)):
            context.run(self._stage(stage, film[stage] if film else None))
        return context.readout(self.backbone.pools[-1])

    def auxiliary_loss(self, adapted: Adapted, names: Sequence[str]) -> Tensor:
        """Which of all training classes each class of the task is; `names` in the order of its labels."""
        wanted = torch.tensor([zlib.crc32(name.encode()) % BUCKETS for name in names], device=self.device)
        logits = 10 * F.linear(adapted.statistics.means, F.normalize(self.auxiliary.weight, dim=1))
        return self.auxiliary_weight * F.cross_entropy(logits, wanted)
