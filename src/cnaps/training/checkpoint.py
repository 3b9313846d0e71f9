"""The state of a run as one safetensors file: no pickle, checked by a digest, replaced only when whole."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from cnaps import values
from cnaps.errors import CheckpointError, InputError
from cnaps.files import atomic_path, parse_json
from cnaps.nn.backbones.base import digest_of_state

FORMAT = "1"


def save_checkpoint(path: Path, tensors: Mapping[str, torch.Tensor], state: Mapping[str, Any]) -> None:
    """Write tensors and a JSON-able state, whole or not at all."""
    # clone: safetensors refuses tensors that share memory
    plain = {name: t.detach().to("cpu", copy=True).contiguous() for name, t in tensors.items()}
    text = json.dumps(state)
    meta = {"format": FORMAT, "state": text, "digest": digest_of_state(plain, text)}
    with atomic_path(path) as temporary:
        temporary.write_bytes(save(plain, metadata=meta))


def load_checkpoint(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Read what :func:`save_checkpoint` wrote; a file that is not exactly that is refused."""
    try:
        with safe_open(path, framework="pt") as file:
            meta = file.metadata() or {}
            # Copies: a mapped file that is changed later would pull the tensors away from under us.
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError, ValueError) as error:
        raise CheckpointError(f"the checkpoint {path} is damaged or unreadable ({error})") from error
    if meta.get("format") != FORMAT:
        raise InputError(  # not damaged: no other is taken in its place
            f"{path} is not a checkpoint of format {FORMAT} (it says {meta.get('format')!r}): "
            "it was written by another program or a newer version"
        )
    text = meta.get("state", "")
    if digest_of_state(tensors, text) != meta.get("digest"):
        raise CheckpointError(f"the checkpoint {path} is damaged: its content does not match its digest")
    try:
        state = values.table(parse_json(text), "its state")
        plain = {name: t.float() if t.is_floating_point() else t for name, t in tensors.items()}
        values.check_numbers({name: t.numpy() for name, t in plain.items()})
    except ValueError as error:
        raise CheckpointError(f"the checkpoint {path} is damaged: {error}") from error
    return tensors, state


def optimiser_tensors(optimiser: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """The optimiser's state as named tensors."""
    state = optimiser.state_dict()["state"]
    return {f"optimiser.{i}.{key}": value for i, values in state.items() for key, value in values.items()}


def restore_optimiser(optimiser: torch.optim.Optimizer, tensors: Mapping[str, torch.Tensor]) -> None:
    """Put named tensors back.

    Moments get the memory layout of their parameter: another layout takes kernels that may round otherwise.
    """
    parameters = [p for group in optimiser.param_groups for p in group["params"]]
    for i, parameter in enumerate(parameters):
        for name in [n for n in tensors if n.startswith(f"optimiser.{i}.")]:
            value, key = tensors[name], name.rsplit(".", 1)[1]
            if value.shape == parameter.shape:
                value = torch.empty_like(parameter, requires_grad=False).copy_(value)
            elif value.numel() != 1:
                raise ValueError(f"{name} has the shape {tuple(value.shape)} instead of {tuple(parameter.shape)}")
            optimiser.state[parameter][key] = value
