"""Comparisons on frozen features: prototypes (a class is its mean) and matching (a class is its examples)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from cnaps.paper.learners.base import FeatureLearner, Predictor, class_means


class ProtoNet(FeatureLearner):
    """Prototypical networks: the squared distance to the mean of each class."""

    name = "protonet"
    scale = 15.0  # on unit-length features; chosen by the likelihood of validation tasks

    def fit(self, features: Tensor, labels: Tensor) -> Predictor:
        """Class means are all there is to learn."""
        prototypes = class_means(features, labels)
        return Predictor(lambda x: -self.scale * torch.cdist(x, prototypes).square(), prototypes.numel())


class MatchingNet(FeatureLearner):
    """Matching networks: attention over all context images by cosine similarity; a class is the sum of its own."""

    name = "matchingnet"
    scale = 20.0

    def fit(self, features: Tensor, labels: Tensor) -> Predictor:
        """The context itself is the classifier."""
        members = F.one_hot(labels).to(features.dtype)  # (N, C)

        def logits(x: Tensor) -> Tensor:
            return (torch.softmax(self.scale * x @ features.T, 1) @ members).clamp_min(1e-8).log()

        return Predictor(logits, features.numel())
