"""VERSA (ML-PIP): distributions over the classifier's weights, from each class's mean feature by a network."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cnaps.maths.heads import Classifier, LinearClassifier
from cnaps.maths.statistics import ClassStatistics
from cnaps.nn.backbones import Backbone
from cnaps.nn.heads import LinearHead
from cnaps.nn.model import ModelConfig
from cnaps.paper.learners.embedding import EmbeddingModel


class VersaHead(LinearHead):
    """The linear head gives the means; one more layer gives the log-variances of weights and bias."""

    samples = 10
    length = 5.0  # of features: weights that begin as class means are then good prototypes

    def __init__(self, features: int, bias_width: int | None = None) -> None:
        super().__init__([features], bias_width)
        self.log_variance = nn.Linear(features, features + 1)
        nn.init.zeros_(self.log_variance.weight)
        nn.init.constant_(self.log_variance.bias, -8.0)  # nearly certain at first: the deterministic head

    def embed(self, features: Tensor) -> Tensor:
        """All of one length."""
        return self.length * features

    def classifier(self, statistics: ClassStatistics) -> Classifier:
        """Draws weights (L, C, d) and biases (L, C); in eval mode always the same draws."""
        mean = super().classifier(statistics)
        assert isinstance(mean, LinearClassifier)
        spread = (self.log_variance(statistics.means.to(mean.weight)) / 2).exp()  # (C, d + 1)
        generator = None if self.training else torch.Generator(spread.device).manual_seed(0)
        noise = torch.randn(self.samples, *spread.shape, generator=generator, device=spread.device)
        drawn = torch.cat([mean.weight, mean.bias[:, None]], 1) + noise * spread  # (L, C, d + 1)
        return SampledClassifier(drawn[..., :-1], drawn[..., -1], self.length)


class SampledClassifier(nn.Module):
    """logits = log of the mean over samples of softmax(W x + b), for unit features made longer."""

    weight: Tensor
    bias: Tensor

    def __init__(self, weight: Tensor, bias: Tensor, length: float) -> None:
        super().__init__()
        self.length = length
        self.register_buffer("weight", weight)
        self.register_buffer("bias", bias)

    def forward(self, features: Tensor) -> Tensor:
        """(M, d) -> (M, C)."""
        x = self.length * features
        each = torch.stack([F.linear(x, w, b) for w, b in zip(self.weight, self.bias, strict=True)])
        return torch.logsumexp(each.log_softmax(2), 0) - math.log(len(each))


class Versa(EmbeddingModel):
    """Unit features, and the sampled head."""

    kind = "versa"

    def __init__(self, config: ModelConfig | None = None, backbone: Backbone | None = None) -> None:
        super().__init__(config, backbone)
        self.head = VersaHead(sum(self.groups), self.config.bias_width)
        self.train(False)

    def classifier(self, features: Tensor, labels: Tensor) -> Callable[[Tensor], Tensor]:
        """Drawn weights and biases from class means."""
        return super().classifier(self.head.embed(features), labels)
