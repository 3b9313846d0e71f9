"""What commands share: options, and a terminal that shows names without obeying them."""

from __future__ import annotations

from typing import Any

import typer

from cnaps.files import shown

SOME_SKIPPED = 3  # the exit code where something was left out
FORCE = typer.Option(False, "--force", help="Overwrite files that cnaps did not write.")


def echo(text: str, **style: Any) -> None:
    """A line or several on the terminal."""
    typer.secho("\n".join(map(shown, text.split("\n"))), **style)


def warn(text: str) -> None:
    """A line of warning."""
    echo(f"warning: {text}", fg="yellow", err=True)
