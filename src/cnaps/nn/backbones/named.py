"""Backbones by name: `transformers:FOLDER`, `transformers:HUB/ID` and `timm:NAME`.

Files on this machine only, unless asked; weights as safetensors; never code that comes with weights.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from cnaps.errors import CheckpointError, CnapsError, InputError, MissingPackageError
from cnaps.nn.backbones.base import Backbone, Normalisation
from cnaps.nn.backbones.cutting import Run, cut
from cnaps.nn.checks import first_of


def named_backbone(name: str, *, image_size: int | None = None, local_files_only: bool = True) -> Backbone:
    """The backbone of that name, its weights random until `load_pretrained`.

    Its graph is that of one image size: the one given, or the one the network was made for.
    """
    library, _, source = name.partition(":")
    if library not in _LIBRARIES:
        raise InputError(f"backbone {name!r}: there are transformers:FOLDER, transformers:HUB/ID and timm:NAME")
    if not source:
        raise InputError(f"backbone {name!r} names no network: write for example {_EXAMPLES[library]}")
    make = partial(_LIBRARIES[library], source, image_size, local_files_only)
    backbone: Backbone = make(False)
    backbone.name, backbone.pretrained = name, partial(_weights, make)
    return backbone


def _weights(make: Callable[[bool], Backbone]) -> dict[str, Tensor]:
    return make(True).state_dict()


def _backbone(
    network: nn.Module, image_size: int, normalisation: Normalisation, states: Run, features: Run
) -> Backbone:
    try:
        parts = cut(network, image_size, states, features)
    except (ValueError, RuntimeError, TypeError) as error:
        if isinstance(error, CnapsError):
            raise
        raise InputError(
            f"a {type(network).__name__} does not take images of {image_size}x{image_size} pixels: {error}"
        ) from error
    return Backbone(
        parts.stem,
        parts.stages,
        pools=parts.pools,
        image_size=image_size,
        min_image_size=image_size,
        size_step=0,
        normalisation=normalisation,
    )


# transformers


def _transformers(source: str, image_size: int | None, local: bool, pretrained: bool) -> Backbone:
    try:
        import transformers
    except ImportError as error:
        raise MissingPackageError(f"the backbone transformers:{source}", "transformers") from error
    if source.startswith((".", "/", "~")) or Path(source).exists():
        folder = Path(source).expanduser()
        if not (folder / "config.json").is_file():
            raise CheckpointError(f"{folder} holds no network of transformers: there is no config.json")
        source = str(folder)
    config: Any = _read(
        source, "configuration", partial(transformers.AutoConfig.from_pretrained, source), local_files_only=local
    )
    config = getattr(config, "vision_config", config)  # of CLIP and SigLIP: images only
    if type(config) not in transformers.MODEL_MAPPING:
        raise InputError(
            f"transformers:{source} is a {config.model_type}, and transformers has no network of that kind that "
            "gives features of images: take a ViT, DINOv2, DINOv3, ConvNeXt, SigLIP, CLIP, ResNet or EfficientNet"
        )
    kind: Any = transformers.MODEL_MAPPING[type(config)]
    if getattr(kind, "main_input_name", "") != "pixel_values":
        raise InputError(f"transformers:{source} is a {config.model_type}, which does not read images")
    pixels = _preprocessor(source, local)
    with _quiet():
        network = _load(source, kind, config, local) if pretrained else kind._from_config(config)
    if hasattr(getattr(network, "pooler", None), "dense"):
        network.pooler = None
    size = image_size or pixels.size or getattr(config, "image_size", None) or 224
    forward = inspect.signature(type(network).forward).parameters
    options: dict[str, Any] = {"interpolate_pos_encoding": True} if "interpolate_pos_encoding" in forward else {}
    ways = (partial(_hidden_state, **options), partial(_features, **options))
    return _backbone(network, size, pixels.normalisation, *ways)


def _load(source: str, kind: Any, config: Any, local: bool) -> nn.Module:
    network, info = _read(
        source,
        "weights",
        partial(kind.from_pretrained, source),
        config=config,
        dtype=torch.float32,
        use_safetensors=True,
        local_files_only=local,
        output_loading_info=True,
        ignore_mismatched_sizes=True,  # they are named below
    )
    other = [f"{name} {tuple(found)} instead of {tuple(own)}" for name, found, own in info["mismatched_keys"]]
    missing = sorted(name for name in info["missing_keys"] if not name.startswith("pooler."))
    for title, names in (("of another shape", other), ("missing", missing)):
        if names:
            raise CheckpointError(
                f"transformers:{source} cannot be used: weights are {title}: {first_of(names, 3)}; take "
                "config.json and model.safetensors from one place"
            )
    return network


def _read(source: str, what: str, read: Callable[..., Any], **options: Any) -> Any:
    """Read with transformers, whose many kinds of errors become one for people."""
    try:
        return read(trust_remote_code=False, **options)
    except Exception as error:
        reason = str(error).strip().split("\n")[0]
        if Path(source).is_dir():
            raise CheckpointError(f"the {what} in {source} cannot be read: {reason}") from error
        raise CheckpointError(
            f"transformers:{source} is no folder, and its {what} not among the files that were downloaded before: "
            f"get it once with `hf download {source}`, or give the path of its folder ({reason})"
        ) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Without transformers' own bars and hints: what matters of them is an error here."""
    from transformers.utils import logging

    level, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bar:
            logging.enable_progress_bar()


class _Pixels:
    """What a preprocessor's settings say of pixels: their scale and the side of an image."""

    def __init__(self, settings: dict[str, Any]) -> None:
        scale = 1 / settings.get("rescale_factor", 1 / 255) if settings.get("do_rescale", True) else 1.0
        normalised = settings.get("do_normalize", True)
        mean = settings["image_mean"] if normalised else [0.0]
        std = settings["image_std"] if normalised else [1.0]
        self.normalisation = Normalisation(*(tuple(scale * v for v in values) for values in (mean, std)))
        cropped = settings.get("do_center_crop") and settings.get("crop_size")
        size = cropped or settings.get("size") or 0
        if isinstance(size, dict):
            size = size.get("height") or size.get("shortest_edge") or 0
        self.size = int(size)


def _preprocessor(source: str, local: bool) -> _Pixels:
    from transformers.utils import cached_file

    for name in ("preprocessor_config.json", "processor_config.json"):
        try:
            path = cached_file(source, name, local_files_only=local, _raise_exceptions_for_missing_entries=False)
            settings = json.loads(Path(path).read_text(encoding="utf-8")) if path else {}
            return _Pixels(settings.get("image_processor", settings))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue
    raise CheckpointError(
        f"transformers:{source} has no preprocessor_config.json with image_mean and image_std: without it nobody "
        "knows how pixels are to be scaled; copy it from where the weights come from"
    )


def _hidden_state(network: nn.Module, images: Tensor, **options: Any) -> Tensor:
    return network(pixel_values=images, **options).last_hidden_state


def _features(network: nn.Module, images: Tensor, **options: Any) -> Tensor:
    """The pooled output where the family has one of its own (CLIP, SigLIP, ConvNeXt), else the first token."""
    output = network(pixel_values=images, **options)
    pooled = getattr(output, "pooler_output", None)
    return output.last_hidden_state[:, 0] if pooled is None else pooled.flatten(1)


# timm


def _timm(source: str, image_size: int | None, local: bool, pretrained: bool) -> Backbone:
    try:
        import timm
    except (ImportError, RuntimeError) as error:  # a torchvision that does not fit torch fails in its own way
        raise CnapsError(
            f"the backbone timm:{source} needs timm and a torchvision that fits your torch: pip install timm "
            f"torchvision ({str(error).splitlines()[0]})"
        ) from error
    if not timm.is_model(source):
        near = ", ".join(timm.list_models(f"{source.split('_')[0]}*", pretrained=True)[:3])
        raise InputError(
            f"timm has no network named {source!r}; see timm.list_models()" + (f": {near}" if near else "")
        )
    settings: dict[str, Any] = {"num_classes": 0}
    if pretrained:
        settings |= {"pretrained": True, "pretrained_cfg_overlay": {"file": _timm_file(timm, source, local)}}
    if image_size:
        settings["img_size"] = image_size  # for position embeddings; networks of convolutions do not know it
    try:
        network = timm.create_model(source, **settings)
    except TypeError:
        settings.pop("img_size", None)
        network = timm.create_model(source, **settings)
    found = network.pretrained_cfg
    scaled = Normalisation(*(tuple(255 * v for v in found[key]) for key in ("mean", "std")))
    return _backbone(network, image_size or found["input_size"][1], scaled, _timm_state, _timm_features)


def _timm_file(timm: Any, source: str, local: bool) -> str:
    from huggingface_hub import hf_hub_download

    repository = timm.get_pretrained_cfg(source).hf_hub_id
    if not repository:
        raise CheckpointError(f"timm knows no weights for {source!r}; see timm.list_pretrained()")
    repository = repository if "/" in repository else f"timm/{source}"
    try:
        return hf_hub_download(repository, "model.safetensors", local_files_only=local)
    except Exception as error:
        raise CheckpointError(
            f"the weights of timm:{source} are not among the files that were downloaded before: get them once "
            f"with `hf download {repository} model.safetensors`"
        ) from error


def _timm_state(network: nn.Module, images: Tensor) -> Tensor:
    return network.forward_features(images)  # type: ignore[operator]


def _timm_features(network: nn.Module, images: Tensor) -> Tensor:
    return network(images)


_LIBRARIES: dict[str, Callable[..., Backbone]] = {"transformers": _transformers, "timm": _timm}
_EXAMPLES = {"transformers": "transformers:facebook/dinov2-small", "timm": "timm:vit_small_patch14_dinov2.lvd142m"}
