"""Methods that learn a task by gradient descent from the shared backbone.

They differ in what of the network they learn: all of it, FiLM layers, or residual adapters. A linear classifier is
learned with it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cnaps.nn.backbones.base import Backbone
from cnaps.nn.film import bind, unite
from cnaps.paper.learners.base import Predictor, class_means
from cnaps.paper.learners.prototypes import ProtoNet

PATIENCE = 20  # steps that a network may say the same of every image before learning ends

# float images -> features (N, d), and the tensors to learn
Part = tuple[Callable[[Tensor], Tensor], list[Tensor]]


@dataclass(frozen=True)
class Descent:
    """How a task is learned. `head` starts from zeros, or from prototypes: then no step at all is a ProtoNet."""

    steps: int
    rate: float  # of Adam
    head: Literal["zeros", "prototypes"] = "zeros"
    batch: int = 16  # context images a step


class GradientLearner:
    """Adam on the cross-entropy of the context, batch norms with their stored statistics."""

    def __init__(self, name: str, backbone: Backbone, part: Callable[[Backbone], Part], descent: Descent) -> None:
        self.name, self.backbone, self.part, self.descent = name, backbone, part, descent

    @torch.enable_grad()
    def adapt(self, images: Tensor, labels: Tensor) -> Predictor:
        """Learn a copy of what is to be learned; the backbone itself stays as it is."""
        network, learned = self.part(self.backbone)
        embed = self._unit(network) if self.descent.head == "prototypes" else network
        pixels = self.backbone.normalisation
        with torch.no_grad():
            features = torch.cat([embed(pixels(part)) for part in images.split(self.descent.batch)])
            weight, bias = start_head(features, labels, prototypes=self.descent.head == "prototypes")
        parameters = [*learned, weight.requires_grad_(), bias.requires_grad_()]
        optimiser = torch.optim.Adam(parameters, lr=self.descent.rate, fused=True)
        generator = torch.Generator().manual_seed(0)
        collapsed = 0  # steps in a row
        for _ in range(self.descent.steps):
            some = torch.randperm(len(labels), generator=generator)[: self.descent.batch]
            features = embed(pixels(images[some]))
            loss = F.cross_entropy(F.linear(features, weight, bias), labels[some])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            collapsed = collapsed + 1 if _all_alike(features.detach()) else 0
            if collapsed == PATIENCE:
                break  # it says the same of every image: what further steps can change is the bias
        count = sum(value.numel() for value in parameters)
        return Predictor(lambda x: F.linear(embed(pixels(x)), weight, bias), count)

    @staticmethod
    def _unit(network: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        return lambda images: F.normalize(network(images), dim=1)


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
    """Every weight: fine-tuning."""
    network = copy.deepcopy(backbone).requires_grad_(True)
    return network, list(network.parameters())


def film_layers(backbone: Backbone) -> Part:
    """A scale and a shift for each channel of each site: 2 C numbers a layer."""
    film = [
        [(torch.ones(c, requires_grad=True), torch.zeros(c, requires_grad=True)) for c in sites]
        for sites in backbone.site_channels
    ]

    def network(images: Tensor) -> Tensor:
        x = backbone.stem(images.contiguous(memory_format=torch.channels_last))
        parts = zip(backbone.stages, backbone.sites, backbone.stage_units, film, strict=True)
        for stage, sites, units, values in parts:
            x = unite(bind(stage, sites, values), units)(x)
        return backbone.pools[-1](x)

    return network, [value for stage in film for site in stage for value in site]


def residual_adapters(backbone: Backbone) -> Part:
    """A 1x1 convolution beside every spatial convolution of the stages: C^2 numbers a layer."""
    network = copy.deepcopy(backbone).requires_grad_(False)
    adapters = []
    for stage in network.stages:
        for name, module in list(stage.named_modules()):
            if isinstance(module, nn.Conv2d) and max(module.kernel_size) > 1:
                adapters.append(ParallelAdapter(module))
                stage.set_submodule(name, adapters[-1])
    return network, [adapter.weight for adapter in adapters]


class ParallelAdapter(nn.Module):
    """A convolution and, added to it, a 1x1 convolution that starts at zero."""

    def __init__(self, conv: nn.Conv2d) -> None:
        super().__init__()
        self.conv = conv
        self.weight = nn.Parameter(torch.zeros(conv.out_channels, conv.in_channels, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        """(N, C_in, H, W) -> (N, C_out, H / stride, W / stride)."""
        return self.conv(x) + F.conv2d(x, self.weight, stride=self.conv.stride)
