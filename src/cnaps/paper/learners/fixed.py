"""Trained methods whose network no task changes: many tasks then share the features of one image."""

from __future__ import annotations

import torch
from torch import Tensor

from cnaps.maths.statistics import ClassStatistics
from cnaps.nn.film import Film
from cnaps.nn.frozen import CHUNK
from cnaps.nn.model import CNAPs
from cnaps.nn.task_model import TaskModel
from cnaps.paper.learners.base import FeatureLearner, Predictor, count_numbers
from cnaps.paper.learners.embedding import EmbeddingModel


class FixedFeatures:
    """What the network of a trained model gives, folded once."""

    def __init__(self, model: EmbeddingModel | CNAPs) -> None:
        self._preprocess = model.preprocess
        self.size = sum(model.groups)
        with torch.no_grad():
            self._network = (
                model.network(Film(()), model.image_size) if isinstance(model, CNAPs) else model.network()
            )

    @torch.no_grad()
    def __call__(self, pixels: Tensor) -> Tensor:
        """(N, 3, S, S) -> (N, size), in parts."""
        return torch.cat([self._network(self._preprocess(part)) for part in pixels.split(CHUNK)])

    def narrow(self, every: Tensor) -> Tensor:
        """They are for one method alone."""
        return every


class FixedLearner(FeatureLearner):
    """A trained model of which only the classifier belongs to a task."""

    def __init__(self, model: EmbeddingModel | CNAPs, name: str) -> None:
        super().__init__(FixedFeatures(model))
        self.model, self.name = model, name

    @torch.no_grad()
    def fit(self, features: Tensor, labels: Tensor) -> Predictor:
        """The same classifier as the model makes from pixels."""
        if isinstance(self.model, EmbeddingModel):
            made = self.model.classifier(features, labels)
            return Predictor(made, count_numbers(made))
        head = self.model.head
        statistics = ClassStatistics.of(features, labels, int(labels.max()) + 1, scatter=head.needs_scatter)
        classifier = head.classifier(statistics)
        return Predictor(classifier, count_numbers(classifier))


def fixed(model: TaskModel, name: str) -> FixedLearner | None:
    """The model as a method on features that stay, where no task changes its network; else None."""
    if isinstance(model, EmbeddingModel) and type(model).adapt is EmbeddingModel.adapt:
        return FixedLearner(model, name)
    if isinstance(model, CNAPs) and model.adaptation is None:
        return FixedLearner(model, name)
    return None
