"""The ``cnaps`` command: one module a group of commands, everything heavy imported where it is used."""

from __future__ import annotations

import importlib
import os
import sys

import typer

app = typer.Typer(
    name="cnaps",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Few-shot image classification that adapts in one forward pass.",
)

# Each module has a function register(app) that adds its commands; order here is the order in --help.
MODULES = ("classify", "suggest", "studio", "data", "tasks", "train", "evaluate", "experiment", "weights", "check")

for _module in MODULES:
    importlib.import_module(f"cnaps.cli.{_module}").register(app)


@app.callback(invoke_without_command=True)
def _root(version: bool = typer.Option(False, "--version", help="Print the version and leave.")) -> None:
    if version:
        from cnaps import __version__

        typer.echo(f"cnaps {__version__}")
        raise typer.Exit


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; a mistake of the user ends with one sentence and exit code 2."""
    from cnaps.cli.common import echo
    from cnaps.errors import CnapsError

    try:
        app(args=arguments)
    except CnapsError as error:
        echo(f"error: {error}", fg="red", err=True)
        sys.exit(2)
    except KeyboardInterrupt:
        echo("interrupted", err=True)
        sys.exit(130)
    except BrokenPipeError:
        sys.exit(141)
    except OSError as error:  # what nobody said better: a name that is too long, standard output on a full disk
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is still to be flushed there would fail again
        about = f"{error.filename}: " if error.filename else ""
        echo(f"error: {about}{error.strerror or error}", fg="red", err=True)
        sys.exit(2)
