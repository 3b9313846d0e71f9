"""`cnaps models` and `cnaps import-weights`."""

from __future__ import annotations

from pathlib import Path

import typer


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("import-weights")(import_weights)


def import_weights(
    source: Path = typer.Argument(..., help="A published checkpoint (.pt), whole or of the backbone alone."),
    destination: Path = typer.Argument(..., help="The folder of the model that is written."),
) -> None:
    """Turn a published CNAPs checkpoint into a model folder."""
    from cnaps.reference import from_reference

    model = from_reference(source)
    model.save(destination)
    weights = sum(value.numel() for value in model.state_dict().values())
    typer.echo(
        f"wrote {destination}: adaptation {model.config.adaptation}, head {model.config.head}, {weights:,} numbers"
    )
