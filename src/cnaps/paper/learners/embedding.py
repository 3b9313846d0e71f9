"""A backbone whose features are read as they are, trained on tasks: what five of the compared methods share.

Training changes LoRA terms of the backbone (model.lora_rank) or all of it (theta.mode), as it does for CNAPs;
features are those of the last stage or of all stages (model.features).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Unpack

import torch
from torch import Tensor

from cnaps.maths.statistics import ClassStatistics
from cnaps.nn.backbones.base import Backbone, staged_features
from cnaps.nn.film import StageFilm
from cnaps.nn.frozen import CHUNK, unit_features
from cnaps.nn.lora import LoRA
from cnaps.nn.model import ModelConfig
from cnaps.nn.task_model import AdaptOptions, TaskModel
from cnaps.paper.learners.base import FittedClassifier, count_numbers


class EmbeddingModel(TaskModel):
    """Unit features of a backbone, perhaps with LoRA; `classifier` makes a task's classifier of them."""

    def __init__(self, config: ModelConfig | None = None, backbone: Backbone | None = None) -> None:
        super().__init__(config, backbone)
        if self.config.lora_rank:
            self.lora = LoRA(self.backbone.stages, self.config.lora_rank)

    def classifier(self, features: Tensor, labels: Tensor) -> Callable[[Tensor], Tensor]:
        """From a fitted task's `features` (N, d) and labels 0..C-1 (N,) to a function to logits (M, C).

        That of the method's head, unless it makes classifiers in another way.
        """
        statistics = ClassStatistics.of(features, labels, int(labels.max()) + 1, scatter=self.head.needs_scatter)
        return self.head.classifier(statistics)

    def adapt(self, images: Tensor, labels: Tensor, **options: Unpack[AdaptOptions]) -> FittedClassifier:
        """One pass over the context; of the options `learn` alone matters."""
        classes, index = self.check_task(images, labels)
        network = self.network(learn=options.get("learn", False))
        classifier = self.classifier(self.run(network, images), index)
        return FittedClassifier(classes, partial(self.run, network), classifier, count_numbers(classifier))

    def network(self, film: Sequence[StageFilm] = (), *, learn: bool = False) -> Callable[[Tensor], Tensor]:
        """From float images to unit features, with LoRA and perhaps FiLM."""
        parts, pools = self._parts(film, learn=learn), self.backbone.pools[1:]
        return lambda images: unit_features(
            staged_features(parts, pools, images, every_stage=self.every_stage), self.groups
        )

    def run(self, network: Callable[[Tensor], Tensor], images: Tensor) -> Tensor:
        """In chunks, unless norms read the batch as a whole."""
        whole = self.config.backbone_norm == "batch"
        parts = images.to(self.device).split(len(images) if whole else CHUNK)
        return torch.cat([network(part) for part in parts])
