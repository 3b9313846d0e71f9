"""The paper's ResNet-18 for 84 pixels: a 5x5 stem of stride 2, no max-pool, eight basic blocks."""

from __future__ import annotations

import itertools

from torch import Tensor, nn

from cnaps.nn.backbones.base import Backbone
from cnaps.nn.fused import FusedConv2d


class BasicBlock(nn.Module):
    """conv, norm, ReLU, conv, norm, sum with the (down-sampled) input, ReLU."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2: nn.Module = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.relu1 = nn.ReLU(inplace=True)
        self.relu2 = nn.ReLU(inplace=True)
        self.downsample: nn.Module | None = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        """(N, C_in, H, W) -> (N, C_out, H / stride, W / stride)."""
        shortcut = x if self.downsample is None else self.downsample(x)
        x = self.relu1(self.bn1(self.conv1(x)))
        if isinstance(self.conv2, FusedConv2d):
            return self.conv2.plus(x, shortcut, self.relu2)
        return self.relu2(self.bn2(self.conv2(x)) + shortcut)


def _stem() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 64, 5, 2, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True)
    )  # 84 -> 41


def resnet18() -> Backbone:
    """As published code has it: the scaling block first, one adaptation stage a layer, 7,680 FiLM numbers."""
    widths = (64, 64, 128, 256, 512)
    stages = [
        nn.Sequential(BasicBlock(i, o, 1 if i == o else 2), BasicBlock(o, o))
        for i, o in itertools.pairwise(widths)
    ]
    sites = [[f"{block}.{norm}" for block in range(2) for norm in ("bn1", "bn2")] for _ in stages]
    return Backbone(_stem(), stages, image_size=84, sites=sites)


def resnet18_paper() -> Backbone:
    """As the paper's tables have it: the scaling block second, every block an adaptation stage of its own."""
    blocks = [BasicBlock(64, 64), BasicBlock(64, 64)]
    for i, o in ((64, 128), (128, 256), (256, 512)):
        blocks += [BasicBlock(i, i), BasicBlock(i, o, 2)]
    stages = [nn.Sequential(block) for block in blocks]
    return Backbone(_stem(), stages, image_size=84, sites=[["0.bn1", "0.bn2"]] * len(stages))
