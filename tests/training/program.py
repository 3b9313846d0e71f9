"""The command line with a small backbone of the tests' own; run as a program, so that it can be killed."""

from __future__ import annotations

from torch import nn

from cnaps.nn.backbones import Backbone, register_backbone


def _stage(inputs: int, outputs: int, stride: int = 2) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(),
    )


def tiny_backbone() -> Backbone:
    return Backbone(_stage(3, 8), [_stage(8, 16), _stage(16, 24)], image_size=32)


register_backbone("tiny-for-tests", tiny_backbone)

if __name__ == "__main__":
    from cnaps.cli import main

    main()
