"""`cnaps import-weights` and `cnaps ship`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from cnaps.cli.common import command, echo
from cnaps.errors import InputError
from cnaps.files import check_output

if TYPE_CHECKING:
    from cnaps.nn.model import CNAPs


@command("import-weights")
def import_weights(
    source: Path = typer.Argument(..., help="A published checkpoint (.pt), whole or of the backbone alone."),
    destination: Path = typer.Argument(..., help="The folder of the model that is written."),
) -> None:
    """Turn a published CNAPs checkpoint into a model folder.

    Example: cnaps import-weights film_ar.pt models/published
    """
    from cnaps.nn.reference import from_reference
    from cnaps.nn.saving import FILES

    check_output(destination, inputs=[source], folder=FILES)
    model = from_reference(source)
    model.save(destination)
    weights = sum(value.numel() for value in model.state_dict().values())
    echo(
        f"wrote {destination}: adaptation {model.config.adaptation}, head {model.config.head}, {weights:,} numbers"
    )


@command()
def ship(
    source: Path = typer.Argument(..., help="The folder of a model, e.g. runs/phi/best."),
    destination: Path = typer.Argument(..., help="The folder of the small copy."),
    average: Path | None = typer.Option(
        None, help="Another model: ship the mean of both. One of the two must have been trained from the other."
    ),
    lora: float = typer.Option(
        1.0,
        min=0.0,
        max=1.0,
        help="Multiply the LoRA terms by this share, e.g. 0.85: below 1 the model is closer to its backbone.",
    ),
) -> None:
    """Make a small copy of a model: half precision, and without a backbone that an installed package carries.

    Example: cnaps ship runs/phi/best models/phi
    """
    from cnaps.nn.checkpoints import load_model
    from cnaps.nn.saving import FILES, save_model

    check_output(destination, inputs=[source, *([average] if average else [])], folder=FILES)
    from cnaps.bridge.bundle import write_bundle
    from cnaps.nn.backbones.base import PackageWeights

    model = load_model(source)
    if average is not None:
        _average(model, load_model(average), f"{source} and {average}")
    if model.lora is not None:
        model.lora.scale(lora)
    elif lora != 1:
        raise InputError(f"{source} has no LoRA terms (lora_rank is 0): leave --lora away")
    package = isinstance(model.backbone.pretrained, PackageWeights)
    save_model(model, destination, half=True, package_backbone=package)
    write_bundle(load_model(destination), destination)
    size = sum(file.stat().st_size for file in destination.rglob("*") if file.is_file()) / 1e6
    echo(f"wrote {destination}: {size:.1f} MB")


def _average(model: CNAPs, other: CNAPs, names: str) -> None:
    """Move phi half of the way to that of another model."""
    import torch

    own, its = model.state_dict(), other.state_dict()
    theta = [name for name in own if name.startswith("backbone.")]
    if model.config != other.config or any(not torch.equal(own[name], its[name]) for name in theta):
        raise InputError(f"{names} cannot be averaged: they differ in their settings or in their backbone")
    for name, value in own.items():
        if name not in theta:
            value.lerp_(its[name], 0.5)
