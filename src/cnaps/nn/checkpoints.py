"""Reading models that `saving` wrote, with an error for people where a file is not what it should be."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from cnaps import values
from cnaps.errors import CheckpointError
from cnaps.nn.backbones import Backbone
from cnaps.nn.checks import first_of
from cnaps.nn.config import ModelConfig
from cnaps.nn.model import CNAPs
from cnaps.nn.saving import files_digest, read_config
from cnaps.nn.task_model import TaskModel, model_kind
from cnaps.weights import DEFAULT_MODEL, INSTALLED, current_names, current_settings, list_models

_KEYS = {"format", "version", "kind", "model", "backbone_weights", "notes", "digest"}


def load_model(
    source: str | os.PathLike[str] = DEFAULT_MODEL,
    *,
    device: torch.device | str = "cpu",
    backbone: Backbone | None = None,
) -> CNAPs:
    """Read a model by its name (see `list_models`) or from its folder.

    `backbone` is for models whose backbone is not registered.

    >>> load_model("cnaps-lite0").config.backbone
    'efficientnet_lite0'
    """
    model = load_task_model(source, device=device, backbone=backbone)
    if not isinstance(model, CNAPs):
        raise CheckpointError(
            f"{source} holds a model of the compared method {model.kind!r}, which `cnaps evaluate` can use, "
            "but no model that classifies for people"
        )
    return model


def load_task_model(
    source: str | os.PathLike[str] = DEFAULT_MODEL,
    *,
    device: torch.device | str = "cpu",
    backbone: Backbone | None = None,
) -> TaskModel:
    """The same for every registered kind of models."""
    folder = INSTALLED / str(source) if str(source) in list_models() else Path(source)
    config_file, weights_file = folder / "config.json", folder / "model.safetensors"
    if config_file.exists() and not config_file.is_file():
        raise CheckpointError(f"{config_file} is no regular file")
    if not config_file.is_file():
        names = ", ".join(list_models()) or "none"
        raise CheckpointError(f"no model at {folder}: there is no config.json (models by name: {names})")
    stored = read_config(config_file)
    try:
        settings = current_settings(values.table(stored["model"], "the model"))
        known = {field.name for field in fields(ModelConfig)}
        unknown = (stored.keys() - _KEYS) | (settings.keys() - known)
        if unknown:
            raise CheckpointError(f"{config_file}: unknown settings {', '.join(sorted(unknown))}")
        _check_settings(settings)
        values.model_notes(stored.get("notes") or {})
        config = ModelConfig(**settings)
        package = stored["backbone_weights"] == "package"
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"{config_file} is no model configuration: {error}") from error
    kind = _class_of(stored.get("kind", CNAPs.kind), config_file)
    state = read_safetensors(weights_file)
    if "digest" in stored and stored["digest"] != files_digest(stored, weights_file):
        raise CheckpointError(f"{folder} is damaged: its files do not fit the digest in {config_file.name}")
    state = {k: v.float() if v.is_floating_point() else v for k, v in current_names(state).items()}
    try:
        values.check_numbers({k: v.numpy() for k, v in state.items()})
    except ValueError as error:
        raise CheckpointError(f"{weights_file} is no set of weights: {error}") from error
    model = kind(config, backbone)
    if package:
        model.backbone.load_pretrained()
        state |= {f"backbone.{k}": v for k, v in model.backbone.state_dict().items()}
    load_weights(model, state, str(weights_file))
    model.notes = stored.get("notes") or {}
    return model.to(device)


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file, with an error for people where it is none."""
    if not path.is_file():
        raise CheckpointError(f"{path} is missing")
    try:
        return load_file(path)
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(f"{path} is damaged or no safetensors file: {error}") from error


def load_backbone(backbone: nn.Module, source: str) -> None:
    """Load theta from a safetensors file or from the folder of a ``cnaps pretrain`` run."""
    path = Path(source)
    if path.is_dir():
        path = next(iter([*path.glob("best/backbone.safetensors"), path / "backbone.safetensors"]))
    load_weights(backbone, read_safetensors(path), str(path))


def load_weights(module: nn.Module, state: Mapping[str, Tensor], source: str) -> None:
    """Load every weight, and name those that are missing, unexpected or of another shape."""
    own = module.state_dict()
    others = [k for k in sorted(own.keys() & state.keys()) if state[k].shape != own[k].shape]
    found = {
        "missing": sorted(own.keys() - state.keys()),
        "unexpected": sorted(state.keys() - own.keys()),
        "misshaped": [f"{k} {tuple(state[k].shape)} instead of {tuple(own[k].shape)}" for k in others],
    }
    problems = [f"{title}: {first_of(names, 5)}" for title, names in found.items() if names]
    if problems:
        raise CheckpointError(f"{source} does not fit the model; {'; '.join(problems)}")
    module.load_state_dict(state)


def _check_settings(table: Mapping[str, Any]) -> None:
    """Settings of the types and of about the sizes that they may have, before anything is made of them."""
    for key, default in asdict(ModelConfig()).items():
        value = table.get(key, default)
        if isinstance(default, bool):
            if not isinstance(value, bool):
                raise ValueError(f"{key} is true or false, not {value!r}")
        elif isinstance(default, str):
            values.name(value, key)
        elif isinstance(default, float):
            values.number(value, key, 0, 4096)
        elif value is not None or default is not None:
            values.count(value, key, 0, 4096)


def _class_of(kind: Any, source: Path) -> type[TaskModel]:
    found = model_kind(kind) if isinstance(kind, str) else None
    if found is None:
        raise CheckpointError(
            f"{source}: no models of the kind {kind!r} are known here; this version of cnaps has none, or it is a "
            "method of the paper's comparisons, which is for `cnaps evaluate`"
        )
    return found
