"""MAML of first order and Proto-MAML: a start from which a few gradient steps learn a task.

The start is the backbone itself, trained with `cnaps train --learner fomaml`; a task's weights are the start plus
what the steps added, and the gradient of the targets' loss goes to the start as if the steps were constants.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from cnaps.maths.heads import LinearClassifier
from cnaps.nn.backbones import Backbone
from cnaps.nn.checks import check_labels
from cnaps.nn.model import CNAPs, ModelConfig
from cnaps.paper.learners.base import CHUNK
from cnaps.paper.learners.gradient import start_head

Weights = dict[str, Tensor]


class Maml(CNAPs):
    """First-order MAML: a zero classifier, plain gradient steps on everything; more of them when tested."""

    kind = "fomaml"
    steps, more_steps, rate, prototypes = 10, 5, 0.1, False
    clip = 1.0  # the longest gradient of a step: steps of 0.1 tear a network that was not meta-trained yet

    def __init__(self, config: ModelConfig | None = None, backbone: Backbone | None = None) -> None:
        # none of CNAPs' networks takes part; the mahalanobis head is one without weights
        plain = {"adaptation": "none", "embedding_size": 0, "head": "mahalanobis", "features": "last"}
        super().__init__(replace(config or ModelConfig(), **plain), backbone)  # type: ignore[arg-type]

    def phi_parameters(self) -> Iterator[nn.Parameter]:
        """What is meta-learned: the start."""
        yield from self.backbone.parameters()

    def adapt(self, images: Tensor, labels: Tensor, **_: object) -> MamlAdapted:  # type: ignore[override]
        """Take the steps; with gradients enabled, those of training."""
        training = torch.is_grad_enabled()
        classes, index = check_labels(labels, len(images))
        start: Weights = dict(self.backbone.named_parameters())
        weight, bias = self._head(start, images, index)
        start |= {"head.weight": weight, "head.bias": bias}
        now = {name: value.detach().clone() for name, value in start.items()}
        for _step in range(self.steps + (0 if training else self.more_steps)):
            slopes = self._slopes(now, images, index)
            now = {name: value - self.rate * slopes[name] for name, value in now.items()}
        # the value of `now`, the gradient of `start`
        adapted = {name: value + (now[name] - value).detach() for name, value in start.items()}
        return MamlAdapted(self, adapted if training else now, classes)

    def _head(self, start: Weights, images: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        if not self.prototypes:
            size = (int(index.max()) + 1, self.backbone.feature_size)
            return images.new_zeros(size), images.new_zeros(size[0])
        features = torch.cat([self.embed(start, part) for part in images.split(CHUNK)])
        return start_head(features, index, prototypes=True)

    @torch.enable_grad()
    def _slopes(self, now: Weights, images: Tensor, index: Tensor) -> Weights:
        """The gradient of the context's mean loss, added up over parts."""
        now = {name: value.requires_grad_() for name, value in now.items()}
        total = {name: torch.zeros_like(value) for name, value in now.items()}
        for part, labels in zip(images.split(CHUNK), index.split(CHUNK), strict=True):
            logits = F.linear(self.embed(now, part), now["head.weight"], now["head.bias"])
            loss = F.cross_entropy(logits, labels, reduction="sum") / len(images)
            for name, slope in zip(now, torch.autograd.grad(loss, list(now.values())), strict=True):
                total[name] += slope
        norm = torch.sqrt(torch.stack([slope.square().sum() for slope in total.values()]).sum())
        return {name: slope / (norm / self.clip).clamp_min(1) for name, slope in total.items()}

    def embed(self, weights: Weights, images: Tensor) -> Tensor:
        """Features (N, d) of the backbone with these weights; of unit length for prototypes."""
        own = {name: value for name, value in weights.items() if not name.startswith("head.")}
        features = functional_call(self.backbone, own, (images,))
        return F.normalize(features, dim=1) if self.prototypes else features


class ProtoMaml(Maml):
    """MAML whose classifier starts from prototypes, so that one step is enough."""

    kind = "proto-maml"
    steps, more_steps, rate, prototypes = 1, 5, 0.02, True


class MamlAdapted:
    """The classifier of a task: a whole set of weights."""

    def __init__(self, model: Maml, weights: Weights, classes: Tensor) -> None:
        self.model, self.weights, self.classes = model, weights, classes

    @property
    def classifier(self) -> LinearClassifier:
        """The last layer."""
        return LinearClassifier(self.weights["head.weight"], self.weights["head.bias"])

    def features(self, images: Tensor) -> Tensor:
        """Features (M, d) of float images (M, 3, H, W)."""
        return self.model.embed(self.weights, images)

    def classify(self, features: Tensor) -> Tensor:
        """Logits (M, C) of features (M, d)."""
        return self.classifier(features)

    def logits(self, images: Tensor) -> Tensor:
        """(M, 3, H, W) -> (M, C)."""
        return self.classify(self.features(images))
