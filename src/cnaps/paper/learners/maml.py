"""MAML of first order and Proto-MAML: a start from which a few gradient steps learn a task.

The start is the backbone itself, trained with `cnaps train --learner fomaml`; a task's weights are the start plus
what the steps added, and the gradient of the targets' loss goes to the start as if the steps were constants.

As in Meta-Dataset, norms take the statistics of the context, for its own images and for the targets', and steps
and rates are its best ones. Unlike there, the gradient of a step is no longer than `clip`: the first steps of 0.1
tear a network that was trained by classification and not yet on tasks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cnaps.nn.backbones.base import Backbone, staged_features
from cnaps.nn.film import set_tensor, skeleton
from cnaps.nn.frozen import unit_features
from cnaps.nn.model import ModelConfig
from cnaps.nn.task_model import AdaptOptions, TaskModel
from cnaps.paper.learners.base import FittedClassifier
from cnaps.paper.learners.gradient import start_head

Weights = dict[str, Tensor]


class Maml(TaskModel):
    """First-order MAML: a zero classifier, plain gradient steps on everything; more of them when tested."""

    kind = "fomaml"
    steps, more_steps, rate, prototypes = 10, 5, 0.1, False
    clip = 1.0  # the longest gradient of a step
    context_norms = True  # statistics of the context; else those that the norms have stored

    def __init__(self, config: ModelConfig | None = None, backbone: Backbone | None = None) -> None:
        super().__init__(config, backbone)
        self.train(False)

    def phi_parameters(self) -> Iterator[nn.Parameter]:
        """What is meta-learned: the start."""
        yield from self.backbone.parameters()

    def adapt(self, images: Tensor, labels: Tensor, **options: Unpack[AdaptOptions]) -> FittedClassifier:
        """Take the steps: those of training if `learn`."""
        classes, index = self.check_task(images, labels)
        training = options.get("learn", False)
        start: Weights = dict(self.backbone.named_parameters())
        weight, bias = self._head(start, images, index)
        start |= {"head.weight": weight, "head.bias": bias}
        now = {name: value.detach().clone() for name, value in start.items()}
        for _step in range(self.steps + (0 if training else self.more_steps)):
            slopes = self._slopes(now, images, index)
            now = {name: value.detach() - self.rate * slopes[name] for name, value in now.items()}
        # the value of `now`, the gradient of `start`
        adapted = (
            {name: value + (now[name] - value).detach() for name, value in start.items()} if training else now
        )
        norms = self._statistics(now, images)
        return FittedClassifier(
            classes,
            lambda x: self.embed(adapted, x, norms),
            lambda features: F.linear(features, adapted["head.weight"], adapted["head.bias"]),
            sum(value.numel() for value in adapted.values()),
        )

    def _head(self, start: Weights, images: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        if not self.prototypes:
            size = (int(index.max()) + 1, sum(self.groups))
            return images.new_zeros(size), images.new_zeros(size[0])
        return start_head(self.embed(start, images), index, prototypes=True)

    @torch.enable_grad()
    def _slopes(self, now: Weights, images: Tensor, index: Tensor) -> Weights:
        """The gradient of the context's mean loss, no longer than `clip`."""
        now = {name: value.requires_grad_() for name, value in now.items()}
        logits = F.linear(self.embed(now, images), now["head.weight"], now["head.bias"])
        found = torch.autograd.grad(F.cross_entropy(logits, index), list(now.values()))
        norm = torch.sqrt(torch.stack([slope.square().sum() for slope in found]).sum())
        return {name: slope / (norm / self.clip).clamp_min(1) for name, slope in zip(now, found, strict=True)}

    @torch.no_grad()
    def _statistics(self, weights: Weights, images: Tensor) -> Weights:
        """The statistics of the context under these weights: buffers of the norms."""
        norms = {name: value.clone() for name, value in self.backbone.named_buffers()}
        if self.context_norms:
            self._run(weights, images, norms, learn=True)
        return norms

    def embed(self, weights: Weights, images: Tensor, norms: Weights | None = None) -> Tensor:
        """Features (N, d) of the backbone with these weights; of unit length for prototypes.

        `norms` are statistics to normalise by; without them, those of the images themselves.
        """
        if norms is None:
            stored = {name: value.clone() for name, value in self.backbone.named_buffers()}
            return self._run(weights, images, stored, learn=self.context_norms)
        return self._run(weights, images, norms, learn=False)

    def _run(self, weights: Weights, images: Tensor, norms: Weights, *, learn: bool) -> Tensor:
        """With `learn`, norms normalise by the batch, and `norms` are changed to its statistics."""
        network = skeleton(self.backbone)
        for module in network.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.train(learn)
                module.momentum = 1.0
        for name, value in {**weights, **norms}.items():
            place, _, tensor = name.rpartition(".")
            if place != "head":
                set_tensor(network.get_submodule(place), tensor, value)
        parts, pools = network.ready(learn=True), network.pools[1:]
        features = staged_features(parts, pools, images, every_stage=self.every_stage)
        return unit_features(features, self.groups) if self.prototypes else features


class ProtoMaml(Maml):
    """MAML whose classifier starts from prototypes, so that one step is enough."""

    kind = "proto-maml"
    steps, more_steps, rate, prototypes = 1, 5, 0.02, True


class FixedNormsProtoMaml(ProtoMaml):
    """The same with the stored statistics of the norms, which a small context tells too little of."""

    kind = "proto-maml-fixed-norms"
    context_norms = False
