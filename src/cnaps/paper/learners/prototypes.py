"""Comparisons of features: prototypes (a class is its mean) and matching (a class is its examples).

Each once on frozen features, and once trained on tasks, as it was published: then the features themselves are
learned, and the scale of the comparison with them.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cnaps.nn.backbones import Backbone
from cnaps.nn.model import ModelConfig
from cnaps.paper.learners.base import FeatureLearner, Predictor, class_means, count_numbers
from cnaps.paper.learners.embedding import EmbeddingModel


class Prototypes(nn.Module):
    """logits = - scale |x - mean|^2."""

    means: Tensor

    def __init__(self, features: Tensor, labels: Tensor, scale: Tensor) -> None:
        super().__init__()
        self.scale = scale
        self.register_buffer("means", class_means(features, labels))

    def forward(self, features: Tensor) -> Tensor:
        """(M, d) -> (M, C)."""
        return -self.scale * torch.cdist(features, self.means).square()


class Matching(nn.Module):
    """logits = log of the attention over a class's examples, by scaled cosine similarity."""

    examples: Tensor

    def __init__(self, features: Tensor, labels: Tensor, scale: Tensor) -> None:
        super().__init__()
        self.scale, self.members = scale, F.one_hot(labels).to(features.dtype)  # (N, C)
        self.register_buffer("examples", features)

    def forward(self, features: Tensor) -> Tensor:
        """(M, d) -> (M, C)."""
        attention = torch.softmax(self.scale * features @ self.examples.T, 1)
        return (attention @ self.members).clamp_min(1e-8).log()


class _Comparison(FeatureLearner):
    """On frozen features, with a scale that was chosen by the likelihood of validation tasks."""

    comparison: type[nn.Module]
    scale: float

    def fit(self, features: Tensor, labels: Tensor) -> Predictor:
        """Nothing is optimised."""
        made = self.comparison(features, labels, torch.tensor(self.scale))
        return Predictor(made, count_numbers(made))


class ProtoNet(_Comparison):
    """Prototypical networks on frozen features."""

    name, comparison, scale = "protonet", Prototypes, 15.0


class MatchingNet(_Comparison):
    """Matching networks on frozen features."""

    name, comparison, scale = "matchingnet", Matching, 20.0


class _TrainedComparison(EmbeddingModel):
    """The same on features that training on tasks changes, with a learned scale."""

    frozen: type[_Comparison]

    def __init__(self, config: ModelConfig | None = None, backbone: Backbone | None = None) -> None:
        super().__init__(config, backbone)
        self.log_scale = nn.Parameter(torch.tensor(math.log(self.frozen.scale)))
        self.train(False)

    def classifier(self, features: Tensor, labels: Tensor) -> nn.Module:
        """The comparison with the learned scale."""
        return self.frozen.comparison(features, labels, self.log_scale.exp())


class TrainedProtoNet(_TrainedComparison):
    """Prototypical networks, trained on tasks."""

    kind, frozen = "protonet", ProtoNet


class TrainedMatchingNet(_TrainedComparison):
    """Matching networks, trained on tasks; without their embeddings of the whole context."""

    kind, frozen = "matchingnet", MatchingNet
