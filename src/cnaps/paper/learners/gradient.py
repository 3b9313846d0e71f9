"""Methods that learn a task by gradient descent from the shared backbone.

They differ in what of the network they learn: all of it, FiLM layers, or residual adapters. A linear classifier is
learned with it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cnaps.nn.backbones.base import Backbone, staged_features
from cnaps.nn.film import bind, skeleton, unite
from cnaps.nn.frozen import unit_features
from cnaps.paper.learners.base import Predictor, class_means
from cnaps.paper.learners.prototypes import ProtoNet

PATIENCE = 20  # steps that a network may say the same of every image before learning ends


@dataclass(frozen=True)
class Part:
    """What of a network a task learns."""

    modules: Callable[[], list[nn.Module]]  # the stem and the stages as they are now
    learned: list[Tensor]
    # These normalise by the batch at hand while a task is learned, and by the whole context from then on.
    norms: Sequence[nn.BatchNorm2d] = ()


@dataclass(frozen=True)
class Descent:
    """How a task is learned. `head` starts from zeros, or from prototypes: then no step at all is a ProtoNet."""

    steps: int
    rate: float  # of Adam
    head: Literal["zeros", "prototypes"] = "zeros"
    batch: int | None = 16  # context images a step; None: all of them
    balanced: bool = False  # every class counts alike in the loss, however many images it has


class GradientLearner:
    """Adam on the cross-entropy of the context, on features of the last stage or of every stage."""

    def __init__(
        self,
        name: str,
        backbone: Backbone,
        part: Callable[[Backbone], Part],
        descent: Descent,
        *,
        every_stage: bool = False,
    ) -> None:
        self.name, self.backbone, self.part, self.descent = name, backbone, part, descent
        self.every_stage = every_stage

    @torch.enable_grad()
    def adapt(
        self, images: Tensor, labels: Tensor, watch: Callable[[int, Predictor], None] | None = None
    ) -> Predictor:
        """Learn a copy of what is to be learned; the backbone itself stays as it is.

        `watch` is shown the predictor as it is after so many steps, where norms are stored ones.
        """
        part, pixels = self.part(self.backbone), self.backbone.normalisation
        from_prototypes = self.descent.head == "prototypes"
        groups = self.backbone.groups(every_stage=self.every_stage)
        batch = self.descent.batch or len(images)

        def embed(images: Tensor) -> Tensor:
            features = staged_features(
                part.modules(), self.backbone.pools[1:], pixels(images), every_stage=self.every_stage
            )
            return unit_features(features, groups) if from_prototypes else features

        with torch.no_grad():
            features = torch.cat([embed(some) for some in images.split(batch)])
            weight, bias = start_head(features, labels, prototypes=from_prototypes)
        parameters = [*part.learned, weight.requires_grad_(), bias.requires_grad_()]
        # not fused: that takes a gradient whose layout in memory is another than its weight's for one that is not
        optimiser = torch.optim.Adam(parameters, lr=self.descent.rate)
        generator = torch.Generator().manual_seed(0)
        shares = labels.bincount().reciprocal() if self.descent.balanced else None
        collapsed = 0  # steps in a row
        count = sum(value.numel() for value in parameters)
        predictor = Predictor(lambda x: F.linear(embed(x), weight, bias), count)
        for step in range(1, self.descent.steps + 1):
            some = torch.randperm(len(labels), generator=generator)[:batch]
            features = embed(images[some])
            loss = F.cross_entropy(F.linear(features, weight, bias), labels[some], shares)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            if watch is not None:
                watch(step, predictor)
            collapsed = collapsed + 1 if _all_alike(features.detach()) else 0
            if collapsed == PATIENCE:
                break  # it says the same of every image: what further steps can change is the bias
        if part.norms:
            with torch.no_grad():
                embed(images)  # leaves the context's statistics in the norms
            for norm in part.norms:
                norm.eval()
        return predictor


def _all_alike(features: Tensor) -> bool:
    return len(features) > 1 and bool(features.std(0).amax() <= 1e-4 * features.abs().amax())


def start_head(features: Tensor, labels: Tensor, *, prototypes: bool) -> tuple[Tensor, Tensor]:
    """Weights (C, d) and biases (C,) to start from.

    Prototypes give ProtoNet's logits: -s |x - m|^2 is 2 s m x - s |m|^2 and a part that all classes share.
    """
    means = class_means(features, labels)
    if not prototypes:
        return torch.zeros_like(means), means.new_zeros(len(means))
    return 2 * ProtoNet.scale * means, -ProtoNet.scale * means.square().sum(1)


def all_layers(backbone: Backbone) -> Part:
    """Every weight: fine-tuning. Norms keep their stored statistics."""
    network = copy.deepcopy(backbone).requires_grad_(True)
    return Part(lambda: network.ready(learn=True), list(network.parameters()))


def all_layers_and_norms(backbone: Backbone) -> Part:
    """Every weight, normalised by the context's own statistics as in Meta-Dataset."""
    network = copy.deepcopy(backbone).requires_grad_(True)
    norms = [module for module in network.modules() if isinstance(module, nn.BatchNorm2d)]
    for norm in norms:
        norm.train()
        norm.momentum = 1.0  # remember the last batch alone
    return Part(lambda: network.ready(learn=True), list(network.parameters()), norms)


def film_layers(backbone: Backbone) -> Part:
    """A scale and a shift for each channel of each site: 2 C numbers a layer."""
    film = [
        [(torch.ones(c, requires_grad=True), torch.zeros(c, requires_grad=True)) for c in sites]
        for sites in backbone.site_channels
    ]

    def modules() -> list[nn.Module]:
        parts = zip(backbone.stages, backbone.sites, backbone.stage_units, film, strict=True)
        stages = [unite(bind(stage, sites, values), units) for stage, sites, units, values in parts]
        return [backbone.stem, *stages]

    return Part(modules, [value for stage in film for site in stage for value in site])


def residual_adapters(backbone: Backbone) -> Part:
    """A 1x1 convolution beside every spatial convolution of the stages: C^2 numbers a layer."""
    weights = [
        [torch.zeros(adapter_shape(stage, name), requires_grad=True) for name in spatial_convolutions(stage)]
        for stage in backbone.stages
    ]

    def modules() -> list[nn.Module]:
        parts = zip(backbone.stages, backbone.stage_units, weights, strict=True)
        return [backbone.stem, *[unite(with_adapters(stage, mine), units) for stage, units, mine in parts]]

    return Part(modules, [weight for mine in weights for weight in mine])


def spatial_convolutions(stage: nn.Module) -> list[str]:
    """The names of a stage's convolutions that look beyond a point."""
    convs = [(name, module) for name, module in stage.named_modules() if isinstance(module, nn.Conv2d)]
    return [name for name, conv in convs if max(conv.kernel_size) > 1]


def adapter_shape(stage: nn.Module, name: str) -> tuple[int, int, int, int]:
    """Of the 1x1 convolution that stands beside the one of that name."""
    conv = stage.get_submodule(name)
    assert isinstance(conv, nn.Conv2d)
    return conv.out_channels, conv.in_channels, 1, 1


def with_adapters(stage: nn.Module, weights: Sequence[Tensor]) -> nn.Module:
    """A stage with 1x1 convolutions beside its spatial ones; gradients flow into their weights."""
    adapted = skeleton(stage)
    for name, weight in zip(spatial_convolutions(stage), weights, strict=True):
        adapted.set_submodule(name, ParallelAdapter(adapted.get_submodule(name), weight))
    return adapted


class ParallelAdapter(nn.Module):
    """A convolution and, added to it, a 1x1 convolution whose weight belongs to a task."""

    def __init__(self, conv: nn.Module, weight: Tensor) -> None:
        super().__init__()
        assert isinstance(conv, nn.Conv2d)
        self.conv, self.weight = conv, weight

    def forward(self, x: Tensor) -> Tensor:
        """(N, C_in, H, W) -> (N, C_out, H / stride, W / stride)."""
        return self.conv(x) + F.conv2d(x, self.weight, stride=self.conv.stride)
