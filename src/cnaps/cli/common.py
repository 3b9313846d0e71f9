"""What commands share: options, and a terminal that shows names without obeying them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from cnaps.files import shown

SOME_SKIPPED = 3  # the exit code where something was left out
FORCE = Option(False, "--force", help="Overwrite files that cnaps did not write.")

_CLASSES = "A folder with a sub-folder of images for each class (birds/robin, birds/wren), or a CSV of path,label."
_SOME = "Images: files, folders, quoted patterns ('photos/*.jpg'), a .txt of paths or a .csv of path,label."
_MODEL = "Another model than the usual: by name (see `cnaps models`), a folder or hub:OWNER/NAME."
_BACKBONE = "A pre-trained network in place of a model: transformers:FOLDER or timm:NAME."
_SIZE = "Side in pixels at which images are read, such as 160; auto decides by the examples."

Examples = Annotated[Path, Argument(metavar="EXAMPLES", help=_CLASSES)]
Images = Annotated[list[str], Argument(metavar="IMAGES", help=_SOME)]
Task = Annotated[Path, Argument(metavar="TASK", help="A task file, as written by `cnaps fit`: birds.task.")]
Model = Annotated[str | None, Option("--model", metavar="MODEL", help=_MODEL)]
Backbone = Annotated[str | None, Option("--backbone", metavar="NETWORK", help=_BACKBONE)]
Size = Annotated[str, Option("--size", metavar="PIXELS", help=_SIZE)]
Flip = Annotated[
    bool, Option("--flip", help="Learn from mirror images too: for animals or cups, not for letters.")
]
Device = Annotated[str, Option("--device", metavar="DEVICE", help="Where to compute: auto, cpu, cuda, cuda:1.")]
Force = Annotated[bool, Option("--force", help="Overwrite files that cnaps did not write.")]


def echo(text: str, **style: Any) -> None:
    """A line or several on the terminal."""
    typer.secho("\n".join(map(shown, text.split("\n"))), **style)


def warn(text: str) -> None:
    """A line of warning."""
    echo(f"warning: {text}", fg="yellow", err=True)


def finish(written: Iterable[Path | None], left_out: Iterable[object]) -> None:
    """Say what was written, and end with the exit code of what was left out."""
    paths = [str(path) for path in written if path is not None]
    if paths:
        echo("wrote " + ", ".join(paths))
    if any(True for _ in left_out):
        raise typer.Exit(SOME_SKIPPED)


def read_by(files: Iterable[Path], named: Iterable[str | Path | None]) -> list[Path]:
    """Everything that a command reads: images, and what was named, a model among it."""
    paths = [Path(name) for name in named if name is not None]
    return [*files, *(path for path in paths if path.is_file() or (path / "config.json").is_file())]
