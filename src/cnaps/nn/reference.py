"""Published CNAPs checkpoints, read as our models: the three variants, whole or the backbone alone."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cnaps.errors import CheckpointError
from cnaps.nn.checkpoints import load_weights
from cnaps.nn.model import CNAPs, ModelConfig

_STAGES, _BLOCKS, _SET_LAYERS = range(4), range(2), range(5)
_VECTORS = ("gamma1", "beta1", "gamma2", "beta2")  # the order of our sites: norm by norm, gamma before beta


def from_reference(source: Mapping[str, Any] | str | os.PathLike[str]) -> CNAPs:
    """A model with published weights, from a checkpoint file or its state dict.

    A checkpoint of the backbone alone gives a model with that backbone and new adaptation networks.
    """
    name = "the state dict" if isinstance(source, Mapping) else str(source)
    published = _unwrap(source if isinstance(source, Mapping) else _read(Path(source)), name)
    reference = ModelConfig.preset("reference")
    if not any(key.startswith("feature_extractor.") for key in published):
        if "conv1.weight" not in published:
            raise CheckpointError(f"{name} holds neither a published CNAPs model nor its ResNet-18")
        model = CNAPs(reference)
        theta = {k: v for k, v in published.items() if not k.startswith("fc.")}
        load_weights(model.backbone, _rename(theta, _backbone_names("", "")), name)
        return model
    if not any(key.startswith("feature_adaptation_network.") for key in published):
        adaptation = "none"
    elif any(".shared_layer_post." in key for key in published):
        adaptation = "film+ar"
    else:
        adaptation = "film"
    model = CNAPs(replace(reference, adaptation=adaptation))
    load_weights(model, _translate(published, adaptation, name), name)
    return model


def _read(path: Path) -> Any:
    if not path.is_file():
        raise CheckpointError(f"there is no file {path}")
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds here, each meaning that this file is not to be used
        raise CheckpointError(
            f"{path} is damaged, no PyTorch checkpoint, or holds more than weights (refused, since such a file "
            f"can run code): {str(error).splitlines()[0]}"
        ) from error


def _unwrap(loaded: Any, name: str) -> dict[str, Tensor]:
    for wrapper in ("model_state_dict", "state_dict"):
        if isinstance(loaded, Mapping) and isinstance(loaded.get(wrapper), Mapping):
            loaded = loaded[wrapper]
    if not isinstance(loaded, Mapping) or not loaded:
        raise CheckpointError(f"{name} holds no state dict")
    others = [key for key, value in loaded.items() if not isinstance(value, Tensor)]
    if others:
        raise CheckpointError(f"{name} is no state dict: {others[0]!r} is not a tensor")
    return {str(key).removeprefix("module."): value for key, value in loaded.items()}


def _translate(published: dict[str, Tensor], adaptation: str, name: str) -> dict[str, Tensor]:
    duplicate = "feature_adaptation_network.feature_extractor."
    published = {key: value for key, value in published.items() if not key.startswith(duplicate)}
    names = _backbone_names("feature_extractor.", "backbone.")
    for i in _SET_LAYERS:
        names[f"set_encoder.pre_pooling_fn.layer{i + 1}.0"] = f"set_encoder.convs.{i}"
        names[f"set_encoder.pre_pooling_fn.layer{i + 1}.1"] = f"set_encoder.norms.{i}"
    for net in ("weight", "bias"):
        for i, place in enumerate((0, 2, 4)):
            theirs = f"classifier_adaptation_network.{net}_means_processor.linear{i + 1}"
            names[theirs] = f"head.{net}_net.{place}"
    if adaptation == "film+ar":
        for s in _STAGES:
            theirs, ours = f"feature_adaptation_network.layers.{s}", f"adaptation.stage_encoders.{s}"
            names[f"{theirs}.shared_layer.0"] = f"{ours}.each.0"
            for place in (2, 4, 6):
                names[f"{theirs}.shared_layer.{place}.linear"] = f"{ours}.each.{place}"
            names[f"{theirs}.shared_layer_post.0"] = f"{ours}.all.0"
    result: dict[str, Tensor] = {}
    if adaptation != "none":
        for s in _STAGES:
            result |= _generator(published, s, adaptation == "film+ar", name)
    # g's norms always use the statistics of the context: what they once counted is of no use, and the biases
    # before them cancel
    useless = ("running_mean", "running_var", "num_batches_tracked", ".0.bias")
    rest = {
        key: value
        for key, value in published.items()
        if not (key.startswith("set_encoder.") and key.endswith(useless))
    }
    return result | _rename(rest, names)


def _generator(published: dict[str, Tensor], stage: int, autoregressive: bool, name: str) -> dict[str, Tensor]:
    """Take the generators of a stage out of `published` and stack them."""
    theirs, ours = f"feature_adaptation_network.layers.{stage}", f"adaptation.generators.{stage}"

    def take(key: str) -> Tensor:
        if key not in published:
            raise CheckpointError(f"{name} does not fit the model; missing: {key}")
        return published.pop(key)

    def each(place: str, tensor: str) -> list[Tensor]:
        return [take(f"{theirs}.{v}_processors.{b}.{place}.{tensor}") for b in _BLOCKS for v in _VECTORS]

    places = ("2.linear", "4.linear", "6.linear") if autoregressive else ("0.linear", "2.linear", "4.linear")
    result = {}
    for tensor in ("weight", "bias"):
        if autoregressive:
            first = torch.stack(each("0", tensor))
        else:
            first = take(f"{theirs}.shared_layer.0.{tensor}")[None]
        result[f"{ours}.first.{tensor}"] = first
        for i in range(2):
            result[f"{ours}.hidden.{i}.{tensor}"] = torch.stack(each(places[i], tensor))
        result[f"{ours}.last_{tensor}"] = torch.cat(each(places[2], tensor))
    regularisers = [take(f"{theirs}.{v}_regularizers.{b}") for b in _BLOCKS for v in _VECTORS]
    result[f"{ours}.regulariser"] = torch.cat(regularisers)
    return result


def _backbone_names(theirs: str, ours: str) -> dict[str, str]:
    names = {f"{theirs}conv1": f"{ours}stem.0", f"{theirs}bn1": f"{ours}stem.1"}
    for s in _STAGES:
        for b in _BLOCKS:
            for part in ("conv1", "bn1", "conv2", "bn2", "downsample.0", "downsample.1"):
                names[f"{theirs}layer{s + 1}.{b}.{part}"] = f"{ours}stages.{s}.{b}.{part}"
    return names


def _rename(state: Mapping[str, Tensor], names: Mapping[str, str]) -> dict[str, Tensor]:
    """Keys under our names; a key that has none keeps its own, and is then reported as unexpected."""
    result = {}
    for key, value in state.items():
        module, _, tensor = key.rpartition(".")
        result[f"{names[module]}.{tensor}" if module in names else key] = value
    return result
