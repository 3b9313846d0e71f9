"""The ``cnaps`` command: one module a group of commands, everything heavy imported where it is used."""

from __future__ import annotations

import importlib
import os
import signal
import sys

import typer

from cnaps import progress
from cnaps.cli.common import app, echo
from cnaps.cli.display import progress_display
from cnaps.cli.renamed import current
from cnaps.errors import CnapsError

# Each module adds its commands; order here is the order in --help.
MODULES = (
    "classify",
    "labels",
    "studio",
    "label_studio",
    "hub",
    "check",
    "data",
    "tasks",
    "train",
    "evaluate",
    "experiment",
    "weights",
)

for _module in MODULES:
    importlib.import_module(f"cnaps.cli.{_module}")


_FIRST = """cnaps learns to tell images apart from a few examples of each class. Three things to do next:

  cnaps demo                         see it work, on photographs and digits that come with it
  cnaps classify EXAMPLES IMAGES     your own: EXAMPLES has a sub-folder for each class, a few images in each
  cnaps studio                       the same in the browser; nothing leaves this computer

`cnaps --help` lists every command."""


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context, version: bool = typer.Option(False, "--version", help="Print the version and leave.")
) -> None:
    if version:
        from cnaps import __version__

        typer.echo(f"cnaps {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(_FIRST)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; a mistake of the user ends with one sentence and exit code 2."""
    progress.show_with(progress_display)

    try:
        app(args=current(sys.argv[1:] if arguments is None else arguments))
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
    finally:
        if arguments is None:  # an interrupt on the way out would only change the exit code
            signal.signal(signal.SIGINT, signal.SIG_IGN)
