"""`cnaps check`: whether files are whole."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cnaps.cli.common import echo


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(epilog="Exit codes: 0 all is whole; 1 something is damaged; 2 it is nothing of cnaps.")(check)


def check(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="PATH", help="A project, collection, run, model or task file."),
    ],
) -> None:
    """Say whether files of cnaps are whole.

    And, where they are damaged, what is wrong with them.

    Example: cnaps check birds.task ~/cnaps-studio/birds
    """
    from cnaps.cli.integrity import find_problems

    damaged = False
    for path in paths:
        kind, problems = find_problems(path)
        damaged = damaged or bool(problems)
        echo(f"{path}: {kind}, {'damaged' if problems else 'whole'}")
        for problem in problems:
            echo(f"  {problem}", err=True)
    if damaged:
        raise typer.Exit(1)
