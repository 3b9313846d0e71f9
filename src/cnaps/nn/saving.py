"""Writing models: a folder with `config.json` (readable) and `model.safetensors` (weights); their fingerprints."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save_file

from cnaps.errors import CheckpointError
from cnaps.files import atomic_folder, read_json, write_json
from cnaps.nn.backbones import Backbone, create_backbone
from cnaps.nn.backbones.base import digest_of_state
from cnaps.weights import digest_of

if TYPE_CHECKING:
    from cnaps.nn.task_model import TaskModel

FORMAT, VERSION = "cnaps-model", 1
FILES = ("config.json", "model.safetensors", "bundle.json", "graphs")


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
        config["digest"] = files_digest(config, temporary / "model.safetensors")
        write_json(temporary / "config.json", config)


def write_notes(folder: str | os.PathLike[str], notes: Mapping[str, Any]) -> None:
    """Add notes to a saved model, whose weights stay as they are."""
    config_file = Path(folder) / "config.json"
    config = read_config(config_file)
    config["notes"] = {**config.get("notes", {}), **notes}
    config["digest"] = files_digest(config, Path(folder) / "model.safetensors")
    write_json(config_file, config)


def files_digest(config: Mapping[str, Any], weights: Path) -> str:
    """Of what config.json says and of the weights beside it."""
    return digest_of(config, [weights.read_bytes()])


def fingerprint(model: TaskModel) -> str:
    """A hash of the configuration and of every weight, under the names of 0.1: task files are bound to it."""
    config = asdict(model.config)
    for name in ("rank", "large"):  # they came later than the first task files, to which models had none
        value = config.pop(f"lora_{name}")
        if value != getattr(type(model.config), f"lora_{name}"):
            config[f"shared_{name}"] = value
    state = {re.sub(r"^lora\.", "shared.", name): value for name, value in model.state_dict().items()}
    return digest_of_state(state, json.dumps(config, sort_keys=True))[:16]


def read_config(path: Path) -> dict[str, Any]:
    """What the config.json of a model says, if this version understands it."""
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
