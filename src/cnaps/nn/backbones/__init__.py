"""Feature extractors: a registry of names, networks of other libraries, and `Backbone`, which wraps any of them.

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


def create_backbone(name: str, *, image_size: int | None = None, local_files_only: bool = True) -> Backbone:
    """A new backbone by its registered name, or a network of another library (see `open_backbone`).

    Its weights are random until `load_pretrained`. `image_size` matters for networks of other libraries alone:
    they are made for one size.
    """
    if ":" in name and name not in _REGISTRY:
        from cnaps.nn.backbones.named import named_backbone

        return named_backbone(name, image_size=image_size, local_files_only=local_files_only)
    if name not in _REGISTRY:
        raise InputError(
            f"no backbone named {name!r}; there are: {', '.join(list_backbones())}, transformers:FOLDER, timm:NAME"
        )
    backbone = _REGISTRY[name]()
    backbone.name = name
    return backbone


def open_backbone(name: str, *, image_size: int | None = None, local_files_only: bool = True) -> Backbone:
    """A backbone with its pre-trained weights; `Backbone.digest` tells them from others.

    `transformers:FOLDER` and `transformers:HUB/ID` are networks of transformers (ViT, DINOv2, DINOv3, ConvNeXt,
    SigLIP, CLIP, ResNet, EfficientNet and others), `timm:NAME` those of timm. Files on this machine only, unless
    `local_files_only` is false; weights as safetensors; never code that comes with weights.
    """
    return create_backbone(name, image_size=image_size, local_files_only=local_files_only).load_pretrained()


def check_sites(backbone: Backbone) -> None:
    """Refuse a backbone in which FiLM has nothing to change."""
    if not all(backbone.site_channels):
        stage = backbone.site_channels.index([])
        raise InputError(
            f"stage {stage} of the backbone {backbone.name} has no norms, so FiLM has nothing to change there: "
            'choose another cut into stages, or adaptation = "none" for the features as they are'
        )


__all__ = [
    "Backbone",
    "Normalisation",
    "check_sites",
    "create_backbone",
    "list_backbones",
    "open_backbone",
    "register_backbone",
]
