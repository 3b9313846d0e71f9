"""`cnaps label-studio import` and `export`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from cnaps.cli.common import FORCE, SOME_SKIPPED, echo, warn


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(help="Labels from Label Studio, and suggestions for it.", no_args_is_help=True)
    group.command("import")(bring_in)
    group.command()(export)
    app.add_typer(group, name="label-studio")


def bring_in(
    source: Path = typer.Argument(..., metavar="EXPORT", help="What Label Studio exported as JSON."),
    table: Path = typer.Argument(..., help="The CSV of path,label to write: examples for `cnaps fit`."),
    images: Path = typer.Option(..., "--images", help="The folder that Label Studio serves the images from."),
    field: str = typer.Option("image", "--field", help="Which part of a task's data is the image."),
    force: bool = FORCE,
) -> None:
    """Turn choices that people made in Label Studio into examples. Exit code 3: some images are not there."""
    import csv
    import io

    from cnaps.errors import DataError
    from cnaps.files import check_output, spreadsheet_cell, write_text
    from cnaps.runtime.label_studio import Addresses, read_export

    check_output(table, (".csv",), inputs=[source], force=force)
    addresses, text = Addresses(images), io.StringIO()
    rows, missing = csv.writer(text, lineterminator="\n"), 0
    rows.writerow(["path", "label"])
    labels: list[str] = []
    for address, label in read_export(source, field):
        path = addresses.file(address)
        if path is None:
            missing += 1
            warn(f"not in {images}: {address[:200]}")
            continue
        labels.append(label)
        rows.writerow([spreadsheet_cell(str(path)), spreadsheet_cell(label)])
    if not labels:
        raise DataError(f"{source} has no choice of an image that is in {images}")
    write_text(table, text.getvalue())
    echo(f"wrote {table}: {len(labels)} images of {len(set(labels))} classes; next: cnaps fit {table} FILE.task")
    if missing:
        raise typer.Exit(SOME_SKIPPED)


def export(
    sources: list[str] = typer.Argument(..., metavar="IMAGES...", help="Images, folders, patterns or lists."),
    out: Path = typer.Option(..., "--out", help="The JSON file to import into Label Studio."),
    root: Path = typer.Option(..., "--images", help="The folder that Label Studio serves the images from."),
    task: Path | None = typer.Option(None, "--task", help="Suggest classes by this task file."),
    model: str | None = typer.Option(None, "--model", help="A model by name (see `cnaps models`) or folder."),
    force: bool = FORCE,
) -> None:
    """Write tasks for Label Studio, with suggestions of a task file where one is given."""
    from cnaps.errors import CnapsError
    from cnaps.files import check_output, write_json
    from cnaps.images.finding import find_images
    from cnaps.runtime.label_studio import Config, local_address
    from cnaps.runtime.taskfile import read_task

    check_output(out, (".json",), inputs=[*([task] if task else [])], force=force)
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
    if unread:
        raise typer.Exit(SOME_SKIPPED)
