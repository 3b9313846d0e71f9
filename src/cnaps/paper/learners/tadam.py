"""In the style of TADAM: FiLM of every stage from the mean class prototype of the un-adapted features.

As in the original (Oreshkin et al., 2018): every layer is conditioned on the mean of the class prototypes, by
networks of a few residual layers with a post-multiplier that starts near nothing; the metric has a learned scale;
all training classes are told apart in an auxiliary task. Otherwise than there: cosine similarities in place of
Euclidean distances; the auxiliary task classifies class means, not images, into hashed buckets of class names, and
its share does not fall; the backbone is pre-trained and not trained from nothing; tasks have any number of ways.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cnaps.nn.adaptation import FilmAdaptation
from cnaps.nn.backbones import Backbone
from cnaps.nn.film import Film
from cnaps.nn.heads import CosineHead
from cnaps.nn.model import ModelConfig
from cnaps.nn.task_model import AdaptOptions
from cnaps.paper.learners.base import FittedClassifier, class_means, count_numbers
from cnaps.paper.learners.embedding import EmbeddingModel

BUCKETS = 2048  # classes of the auxiliary task


@dataclass
class TadamTask(FittedClassifier):
    """With what its FiLM was made from, and what the auxiliary task reads."""

    film: Film
    task_embedding: Tensor  # the mean class prototype (d,)
    means: Tensor  # of adapted features, (C, d)


class Tadam(EmbeddingModel):
    """Two passes over the context: one without FiLM for the prototypes, one with it for the classifier."""

    kind = "tadam"
    auxiliary_weight = 0.1

    def __init__(self, config: ModelConfig | None = None, backbone: Backbone | None = None) -> None:
        super().__init__(config, backbone)
        size = sum(self.groups)
        self.head = CosineHead(self.groups)
        self.adaptation = FilmAdaptation(
            self.backbone.channels,
            self.backbone.site_channels,
            autoregressive=False,
            embedding_size=size,
            width=self.config.generator_width,
        )
        self.auxiliary = nn.Linear(size, BUCKETS)
        self.train(False)

    def regularization(self) -> Tensor:
        """The sum of R^2 over all FiLM generators, as CNAPs have it."""
        return self.adaptation.regularization()

    def adapt(self, images: Tensor, labels: Tensor, **options: Unpack[AdaptOptions]) -> TadamTask:
        """Prototypes, FiLM, classifier."""
        classes, index = self.check_task(images, labels)
        with torch.no_grad():  # nothing before the prototypes is learned from them
            embedding = class_means(self.run(self.network(), images), index).mean(0)
        stages = range(len(self.backbone.stages))
        film = Film(tuple(self.adaptation.stage_film(stage, embedding, None, index) for stage in stages))
        network = self.network(film.stages, learn=options.get("learn", False))
        embedded = self.head.embed(self.run(network, images))
        made = self.classifier(embedded, index)
        numbers, means = len(film) + count_numbers(made), class_means(embedded, index)
        return TadamTask(
            classes, lambda x: self.head.embed(self.run(network, x)), made, numbers, film, embedding, means
        )

    def auxiliary_loss(self, adapted: TadamTask, names: Sequence[str]) -> Tensor:
        """Which of all training classes each class of the task is; `names` in the order of its labels."""
        wanted = torch.tensor([zlib.crc32(name.encode()) % BUCKETS for name in names], device=self.device)
        logits = 10 * F.linear(F.normalize(adapted.means, dim=1), F.normalize(self.auxiliary.weight, dim=1))
        return self.auxiliary_weight * F.cross_entropy(logits, wanted)
