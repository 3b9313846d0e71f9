"""`cnaps check`: whether files are whole."""

from __future__ import annotations

from pathlib import Path

import typer

from cnaps.cli.common import echo


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(epilog="Exit codes: 0 all is whole; 1 something is damaged; 2 it is nothing of cnaps.")(check)


def check(
    paths: list[Path] = typer.Argument(
        ..., metavar="PATH...", help="Projects, collections, runs, models, task files."
    ),
) -> None:
    """Say of a project, collection, run, model or task file whether it is whole, and what is wrong."""
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
