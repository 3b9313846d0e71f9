"""What every test may ask for."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path

import pytest
from torch import nn

from cnaps.nn.backbones import Backbone, register_backbone

os.environ.setdefault("MPLBACKEND", "Agg")

ROOT = Path(__file__).resolve().parents[1]


def small_backbone(*widths: int) -> Backbone:
    """A stem and stages of one convolution each, every one halving the image: quick, and able to learn digits."""

    def stage(inputs: int, outputs: int) -> nn.Module:
        convolution = nn.Conv2d(inputs, outputs, 3, stride=2, padding=1, bias=False)
        return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU())

    stem, *stages = (stage(inputs, outputs) for inputs, outputs in pairwise((3, *widths)))
    return Backbone(stem, stages, image_size=32)


SMALL_BACKBONE = "small-for-tests"
register_backbone(SMALL_BACKBONE, lambda: small_backbone(16, 32, 48))


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder with real data sets and recorded outputs that stands beside the project, or a skip."""
    folder = ROOT.parent / "shared"
    if not (folder / "datasets").is_dir():
        pytest.skip("needs the shared data sets in ../shared, which are not here")
    return folder
