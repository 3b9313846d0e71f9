"""Small models that are quick to make and to train."""

from __future__ import annotations

from itertools import pairwise

from torch import nn

from cnaps.nn.backbones import Backbone, register_backbone


def small_backbone(*widths: int) -> Backbone:
    """A stem and stages of one convolution each, every one halving the image: quick, and able to learn digits."""

    def stage(inputs: int, outputs: int) -> nn.Module:
        convolution = nn.Conv2d(inputs, outputs, 3, stride=2, padding=1, bias=False)
        return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU())

    stem, *stages = (stage(inputs, outputs) for inputs, outputs in pairwise((3, *widths)))
    return Backbone(stem, stages, image_size=32)


def random_film(model: nn.Module, strength: float = 0.3) -> None:
    """Make FiLM show: R of a trained size, where that of a new model leaves FiLM close to the identity."""
    for name, value in model.named_parameters():
        if name.endswith("regulariser"):
            nn.init.normal_(value, 0, strength)


SMALL_BACKBONE = "small-for-tests"
register_backbone(SMALL_BACKBONE, lambda: small_backbone(16, 32, 48))
