"""`cnaps check`: whether what lies on disk is whole: every byte that a digest covers, every value that is read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import typer

from cnaps.cli.common import command, echo
from cnaps.errors import CnapsError, DataError
from cnaps.files import content_id, read_bytes, read_json

Problems = Iterator[str]


@command(epilog="Exit codes: 0 all is whole; 1 something is damaged; 2 it is nothing of cnaps.")
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
    damaged = False
    for path in paths:
        kind, problems = find_problems(path)
        damaged = damaged or bool(problems)
        echo(f"{path}: {kind}, {'damaged' if problems else 'whole'}")
        for problem in problems:
            echo(f"  {problem}", err=True)
    if damaged:
        raise typer.Exit(1)


def find_problems(path: Path) -> tuple[str, list[str]]:
    """What a path is, and what is wrong with it; nothing, where it is whole."""
    kinds: dict[str, tuple[str, Callable[[Path], Problems]]] = {
        "project.json": ("project", _project),
        "collection.json": ("collection", _collection),
        "environment.json": ("run", _run),
        "config.json": ("model", _model),
    }
    if path.is_dir():
        for name, (title, look) in kinds.items():
            if (path / name).exists():
                return title, list(look(path))
        raise DataError(f"{path} is no project, collection, run or model")
    if not path.exists():
        raise DataError(f"{path} does not exist")
    if not path.is_file():
        raise DataError(f"{path} is neither a file nor a folder")
    return "task file", list(_task(path))


def _task(path: Path) -> Problems:
    from cnaps.runtime.taskfile import check_file

    yield from _said(lambda: check_file(path))


def _model(folder: Path) -> Problems:
    from cnaps.runtime.bundle import has_bundle, read_bundle

    if has_bundle(folder):
        yield from _said(lambda: read_bundle(folder))
        return
    from cnaps.nn.checkpoints import load_model

    yield from _said(lambda: load_model(folder))


def _collection(folder: Path) -> Problems:
    from cnaps.data.collection import IMAGES, Collection, images_digest

    try:
        found = Collection.open(folder)
    except CnapsError as error:
        yield str(error)
        return
    if found.images_digest is not None:
        if images_digest(folder / IMAGES) != found.images_digest:
            yield f"{folder / IMAGES} is damaged: it does not fit its digest; prepare the collection again"
        return
    for start in range(0, len(found), 256):  # written by an early version: there is only to look at every image
        rows = range(start, min(start + 256, len(found)))
        yield from _said(lambda rows=rows: (found.keys(rows), found.read(rows)))  # type: ignore[misc]


def _run(folder: Path) -> Problems:
    from cnaps.training.checkpoint import load_checkpoint
    from cnaps.training.run import check_state, checkpoints

    for name in ("config.json", "environment.json"):
        try:
            read_json(folder / name)
        except (OSError, ValueError) as error:
            yield f"{folder / name} cannot be read: {error}"
    for path in checkpoints(folder):
        yield from _said(lambda path=path: check_state(load_checkpoint(path)[1], path))  # type: ignore[misc]
    for name in ("best", "last"):
        if (folder / name / "config.json").exists():
            yield from _model(folder / name)


def _project(folder: Path) -> Problems:
    from cnaps.studio.description import parse

    try:
        about = parse(read_bytes(folder / "project.json"))
    except (OSError, ValueError) as error:
        yield f"{folder / 'project.json'}: {error}"
        return
    for image in about["images"]:
        try:
            content = read_bytes(folder / "images" / image["id"])
        except (OSError, ValueError) as error:
            yield f"the image {image['name']!r} ({image['id']}) cannot be read: {error}"
            continue
        if content_id(content) != image["id"]:
            yield f"the image {image['name']!r} ({image['id']}) is damaged"
    if about["task"]:
        yield from _task(folder / "tasks" / about["task"])


def _said(look: Callable[[], object]) -> Problems:
    try:
        look()
    except CnapsError as error:
        yield str(error)
