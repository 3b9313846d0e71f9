"""`cnaps label-studio import` and `export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from cnaps.cli import common
from cnaps.cli.common import SOME_SKIPPED, app, command, echo, finish, warn
from cnaps.errors import CnapsError, DataError
from cnaps.files import check_output, csv_text, write_json, write_text

_CODES = f"Exit codes: 0 done; 2 nothing was done, the message says why; {SOME_SKIPPED} some images were left out."
_SERVED = "The folder that Label Studio serves the images from."

_Export = Annotated[Path, Argument(metavar="EXPORT", help="What Label Studio exported as JSON: project-1.json.")]
_Table = Annotated[Path, Argument(metavar="TABLE", help="The examples to write for `cnaps fit`: birds.csv.")]
_Folder = Annotated[Path, Option("--images", metavar="FOLDER", help=_SERVED)]
_Field = Annotated[str, Option(metavar="NAME", help="Which part of a task's data is the image.")]
_Out = Annotated[Path, Option("--out", "-o", metavar="FILE", help="What to import into Label Studio: tasks.json.")]
_Task = Annotated[Path | None, Option(metavar="TASK", help="Suggest classes by this task file: birds.task.")]


group = typer.Typer(help="Labels from Label Studio, and suggestions for it.", no_args_is_help=True)
app.add_typer(group, name="label-studio")


@command("import", of=group, epilog=_CODES)
def bring_in(
    source: _Export, table: _Table, images: _Folder, field: _Field = "image", force: common.Force = False
) -> None:
    """Turn choices that people made in Label Studio into examples.

    Example: cnaps label-studio import project-1.json birds.csv --images photos
    """
    from cnaps.runtime.label_studio import Addresses, read_export

    check_output(table, (".csv",), inputs=[source], force=force)
    addresses = Addresses(images)
    rows: list[list[str]] = []
    missing: list[str] = []
    for address, label in read_export(source, field):
        path = addresses.file(address)
        if path is None:
            missing.append(address)
            warn(f"not in {images}: {address[:200]}")
        else:
            rows.append([str(path), label])
    if not rows:
        raise DataError(f"{source} has no choice of an image that is in {images}")
    write_text(table, csv_text([["path", "label"], *rows]))
    classes = len({label for _, label in rows})
    echo(f"wrote {table}: {len(rows)} images of {classes} classes; next: cnaps fit {table} FILE.task")
    finish([], missing)


@command(of=group, epilog=_CODES)
def export(
    sources: common.Images,
    out: _Out,
    root: _Folder,
    task: _Task = None,
    model: common.Model = None,
    force: common.Force = False,
) -> None:
    """Write images as tasks of Label Studio, with the classes that a task file suggests.

    Example: cnaps label-studio export photos --images photos --task birds.task --out tasks.json
    """
    from cnaps.images.finding import find_images
    from cnaps.runtime.label_studio import Config, local_address
    from cnaps.runtime.taskfile import read_task

    check_output(out, (".json",), inputs=[task] if task else [], force=force)
    files = find_images(sources)
    tasks: list[dict[str, Any]] = [{"data": {"image": local_address(path, root)}} for path in files]
    unread: list[int] = []

    def skip(index: int, error: CnapsError) -> None:
        unread.append(index)
        warn(f"{files[index]}: {error}")

    if task is not None:
        fitted = read_task(task, model)
        for where, probabilities in fitted.predict(files, skip):
            for i, row in zip(where, probabilities.tolist(), strict=True):
                tasks[i]["predictions"] = [{**Config().result(fitted.names, row), "model_version": task.stem}]
    write_json(out, tasks)
    echo(f"wrote {out}: {len(tasks)} tasks, for an interface with Choices named choice of an Image named image")
    finish([], unread)
