"""`cnaps suggest`: which images to label next."""

from __future__ import annotations

from pathlib import Path

import typer

from cnaps.cli.classify import read_by
from cnaps.cli.common import FORCE, SOME_SKIPPED, echo, warn


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(suggest)


def suggest(
    task: Path = typer.Argument(..., help="A task file, as written by `cnaps fit`."),
    pool: list[str] = typer.Argument(..., help="Files, folders, quoted patterns, or .txt files that list paths."),
    count: int = typer.Option(20, "-n", min=1, help="How many images to suggest."),
    strategy: str = typer.Option("diverse", help="diverse, entropy, margin, variation-ratio or random."),
    out: Path | None = typer.Option(None, "--out", "-o", help="Write the suggestions: a .csv file."),
    sheet: Path | None = typer.Option(None, "--sheet", help="Write a picture of them: a .png file."),
    seed: int = typer.Option(0, min=0, help="Of the strategy random."),
    model: str | None = typer.Option(None, "--model", help="A model by name (see `cnaps models`) or folder."),
    force: bool = FORCE,
) -> None:
    """Which images of a pool to label next: those that would teach a task most, best first."""
    from cnaps.errors import CnapsError, DataError
    from cnaps.files import check_output, escaped, write_text
    from cnaps.images.finding import find_images
    from cnaps.paper.experiments.reporting import Table
    from cnaps.runtime.suggest import suggest
    from cnaps.runtime.taskfile import read_task

    files = find_images(pool)
    inputs = read_by(files, [*pool, task, model])
    check_output(out, (".csv",), inputs=inputs, force=force)
    check_output(sheet, (".png",), inputs=inputs, force=force)
    fitted = read_task(task, model)
    broken: list[str] = []

    def on_error(index: int, error: CnapsError) -> None:
        broken.append(str(error))

    found = suggest(fitted, files, count, strategy, seed=seed, on_error=on_error)
    if not found:
        raise DataError(f"none of the {len(files)} images can be read; the first: {broken[0]}")
    table = Table("", ["path", "score", "label", "probability"])
    for each in found:
        table.rows.append([escaped(str(each.path)), f"{each.score:.6f}", each.label, f"{each.probability:.6f}"])
    width = min(max(len(path) for path, *_ in table.rows), 60)
    echo(f"{'image':{width}}  doubt  looks like")
    for (path, *_), each in zip(table.rows, found, strict=True):
        echo(f"{path:{width}}  {each.score:5.3f}  {each.label} {each.probability:.1%}")
    if out is not None:
        write_text(out, table.csv())
    if sheet is not None:
        from cnaps.data.contact_sheet import captioned_sheet
        from cnaps.images.decoding import write_png
        from cnaps.images.inputs import read_pixels

        captions = [
            f"{i}. doubt {each.score:.2f}\n{each.label} {each.probability:.0%}\n{Path(path).name}"
            for i, (each, (path, *_)) in enumerate(zip(found, table.rows, strict=True), 1)
        ]
        picture = captioned_sheet([read_pixels(str(each.path), 156) for each in found], captions)
        write_png(sheet, picture)
    for reason in broken:
        warn(f"{reason}: skipped")
    written = [str(path) for path in (out, sheet) if path is not None]
    if written:
        echo("wrote " + ", ".join(written))
    if broken:
        raise typer.Exit(SOME_SKIPPED)
