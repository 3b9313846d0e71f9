"""Feature extractors: a registry of names, and `Backbone`, which wraps any network of convolutions and norms.

>>> from cnaps.nn.backbones import create_backbone, list_backbones
>>> "resnet18" in list_backbones(), create_backbone("efficientnet_lite0").feature_size
(True, 1280)
"""

from __future__ import annotations

from collections.abc import Callable

from cnaps.errors import InputError
from cnaps.nn.backbones.base import Backbone, Normalisation
from cnaps.nn.backbones.efficientnet import efficientnet_lite0
from cnaps.nn.backbones.resnet import resnet18, resnet18_paper

_REGISTRY: dict[str, Callable[[], Backbone]] = {
    "resnet18": resnet18,
    "resnet18-paper": resnet18_paper,
    "efficientnet_lite0": efficientnet_lite0,
}


def register_backbone(name: str, factory: Callable[[], Backbone]) -> None:
    """Make a backbone of one's own known by name, so that models built on it can be saved and loaded."""
    _REGISTRY[name] = factory


def list_backbones() -> list[str]:
    """The names that `create_backbone` takes."""
    return sorted(_REGISTRY)


def create_backbone(name: str) -> Backbone:
    """A new backbone by its registered name."""
    if name not in _REGISTRY:
        raise InputError(f"no backbone named {name!r}; there are: {', '.join(list_backbones())}")
    backbone = _REGISTRY[name]()
    backbone.name = name
    return backbone


__all__ = ["Backbone", "Normalisation", "create_backbone", "list_backbones", "register_backbone"]
