"""Models on disk: a folder with `config.json` (readable) and `model.safetensors` (weights)."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from cnaps import values
from cnaps.errors import CheckpointError
from cnaps.files import atomic_folder, read_json, write_json
from cnaps.nn.backbones import Backbone, create_backbone
from cnaps.nn.backbones.base import digest_of_state
from cnaps.nn.model import CNAPs, ModelConfig
from cnaps.nn.task_model import TaskModel, model_kind
from cnaps.weights import DEFAULT_MODEL, INSTALLED, current_names, current_settings, digest_of, list_models

FORMAT, VERSION = "cnaps-model", 1
FILES = ("config.json", "model.safetensors", "bundle.json", "graphs")
_KEYS = {"format", "version", "kind", "model", "backbone_weights", "notes", "digest"}


def save_model(
    model: TaskModel,
    folder: str | os.PathLike[str],
    *,
    half: bool = False,
    package_backbone: bool = False,
    notes: Mapping[str, Any] | None = None,
) -> None:
    """Write a model whole or not at all.

    `half` stores floats in half precision; `package_backbone` leaves out a backbone whose weights come with an
    installed package and are unchanged. `notes` are kept in the config under their own key, and
    are those of the model unless given.
    """
    state = model.state_dict()
    if package_backbone:
        _check_unchanged(model.backbone)
        state = {k: v for k, v in state.items() if not k.startswith("backbone.")}
    if half:
        state = {k: v.half() if v.is_floating_point() else v for k, v in state.items()}
    with atomic_folder(folder, FILES) as temporary:
        # contiguous: channels_last is a matter of speed, and is restored when the model is built
        save_file({k: v.cpu().contiguous() for k, v in state.items()}, temporary / "model.safetensors")
        config = {
            "format": FORMAT,
            "version": VERSION,
            "kind": model.kind,
            "model": asdict(model.config),
            "backbone_weights": "package" if package_backbone else "stored",
            "notes": dict(model.notes if notes is None else notes),
        }
        config["digest"] = _digest(config, temporary / "model.safetensors")
        write_json(temporary / "config.json", config)


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
    stored = _read_config(config_file)
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
    if "digest" in stored and stored["digest"] != _digest(stored, weights_file):
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


def write_notes(folder: str | os.PathLike[str], notes: Mapping[str, Any]) -> None:
    """Add notes to a saved model, whose weights stay as they are."""
    config_file = Path(folder) / "config.json"
    config = _read_config(config_file)
    config["notes"] = {**config.get("notes", {}), **notes}
    config["digest"] = _digest(config, Path(folder) / "model.safetensors")
    write_json(config_file, config)


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file, with an error for people where it is none."""
    if not path.is_file():
        raise CheckpointError(f"{path} is missing")
    try:
        return load_file(path)
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(f"{path} is damaged or no safetensors file: {error}") from error


def load_weights(module: nn.Module, state: Mapping[str, Tensor], source: str) -> None:
    """Load every weight, and name those that are missing, unexpected or of another shape."""
    own = module.state_dict()
    problems = []
    for title, names in (
        ("missing", sorted(own.keys() - state.keys())),
        ("unexpected", sorted(state.keys() - own.keys())),
        (
            "misshaped",
            [
                f"{k} {tuple(state[k].shape)} instead of {tuple(own[k].shape)}"
                for k in sorted(own.keys() & state.keys())
                if state[k].shape != own[k].shape
            ],
        ),
    ):
        if names:
            more = f" and {len(names) - 5} more" if len(names) > 5 else ""
            problems.append(f"{title}: {', '.join(names[:5])}{more}")
    if problems:
        raise CheckpointError(f"{source} does not fit the model; {'; '.join(problems)}")
    module.load_state_dict(state)


def fingerprint(model: TaskModel) -> str:
    """A hash of the configuration and of every weight, under the names of 0.1: task files are bound to it."""
    config = asdict(model.config)
    for name in ("rank", "large"):  # they came later than the first task files, to which models had none
        value = config.pop(f"lora_{name}")
        if value != getattr(ModelConfig, f"lora_{name}"):
            config[f"shared_{name}"] = value
    state = {re.sub(r"^lora\.", "shared.", name): value for name, value in model.state_dict().items()}
    return digest_of_state(state, json.dumps(config, sort_keys=True))[:16]


def _digest(config: Mapping[str, Any], weights: Path) -> str:
    return digest_of(config, [weights.read_bytes()])


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


def _read_config(path: Path) -> dict[str, Any]:
    try:
        stored = read_json(path)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    if not isinstance(stored, dict) or stored.get("format") != FORMAT:
        raise CheckpointError(f"{path} is no configuration of a cnaps model")
    version = stored.get("version")
    if not isinstance(version, int) or isinstance(version, bool) or not 1 <= version <= VERSION:
        raise CheckpointError(f"{path} was written by a newer version of cnaps: upgrade to read it")
    return stored


def _check_unchanged(backbone: Backbone) -> None:
    published = create_backbone(backbone.name).load_pretrained().state_dict()
    for name, value in backbone.state_dict().items():
        if not torch.equal(published[name], value.cpu()):
            raise CheckpointError(
                f"the backbone's {name} is not what its package carries: save the model with its backbone"
            )
