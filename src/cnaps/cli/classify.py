"""`cnaps classify`, `fit`, `predict`, `export` and `models`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from cnaps.cli.common import FORCE, SOME_SKIPPED, echo, warn

if TYPE_CHECKING:
    from cnaps.runtime.results import Result, Skipped
    from cnaps.runtime.task import FittedTask

_CODES = (
    "Exit codes: 0 every image was classified; 2 nothing was done, the message says why; "
    f"{SOME_SKIPPED} some images could not be read, all others were classified and written."
)
_TABLE_ROWS = 40  # in the terminal, where the rest is in a file

_EXAMPLES = typer.Argument(..., help="A folder with a sub-folder for each class, or a CSV of path,label.")
_IMAGES = typer.Argument(..., help="Files, folders, quoted patterns, or .txt files that list paths.")
_TASK = typer.Argument(..., help="A task file, as written by `cnaps fit` or --save.")
_OUT = typer.Option(None, "--out", "-o", help="Write the results: a .csv or .json file.")
_REPORT = typer.Option(None, "--report", help="Write a page with thumbnails, the least certain first (.html).")
_SAVE = typer.Option(None, "--save", help="Keep what was learned in a task file, for `cnaps predict`.")
_TOP = typer.Option(3, "--top", min=1, help="How many classes to write for an image: the best and runners-up.")
_MODEL = typer.Option(None, "--model", help="A model by name (see `cnaps models`) or folder.")
_FLIP = typer.Option(False, "--flip", help="Learn from mirror images too, where left and right do not matter.")
_DEVICE = typer.Option("auto", "--device", help="auto, cpu, cuda, ...")


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command(epilog=_CODES)(classify)
    app.command(epilog=_CODES)(fit)
    app.command(epilog=_CODES)(predict)
    app.command()(export)
    app.command()(models)


def classify(
    examples: Path = _EXAMPLES,
    images: list[str] = _IMAGES,
    out: Path | None = _OUT,
    report: Path | None = _REPORT,
    save: Path | None = _SAVE,
    top: int = _TOP,
    model: str | None = _MODEL,
    flip: bool = _FLIP,
    device: str = _DEVICE,
    force: bool = FORCE,
) -> None:
    """Learn classes from a few examples each and classify images, in one go."""
    from cnaps.images.finding import find_examples, find_images

    labelled = find_examples(examples)
    files = find_images(images)
    _check_outputs(out, report, save, read_by([examples, *files, *_paths(labelled)], [*images, model]), force)
    fitted, left_out = _learn(labelled, model, flip, device)
    results, skipped = _classify_files(fitted, files, top)
    if save is not None:
        from cnaps.runtime.taskfile import write_task

        write_task(save, fitted)
    _write(results, skipped, out, report, labelled)
    _finish(results, skipped, [path for path in (out, report, save) if path is not None])
    if left_out:
        raise typer.Exit(SOME_SKIPPED)


def fit(
    examples: Path = _EXAMPLES,
    task: Path = typer.Argument(..., help="The task file to write, such as my-classes.safetensors."),
    model: str | None = _MODEL,
    flip: bool = _FLIP,
    device: str = _DEVICE,
    force: bool = FORCE,
) -> None:
    """Learn classes from a few examples each and keep them in a task file."""
    from cnaps.images.finding import find_examples

    labelled = find_examples(examples)
    _check_outputs(None, None, task, read_by([examples, *_paths(labelled)], [model]), force)
    fitted, left_out = _learn(labelled, model, flip, device)
    from cnaps.runtime.taskfile import write_task

    write_task(task, fitted)
    echo(
        f"wrote {task}: {len(fitted.names)} classes from {fitted.seen} images, {task.stat().st_size / 1000:.0f} KB"
    )
    if left_out:
        raise typer.Exit(SOME_SKIPPED)


def predict(
    task: Path = _TASK,
    images: list[str] = _IMAGES,
    out: Path | None = _OUT,
    report: Path | None = _REPORT,
    top: int = _TOP,
    model: str | None = _MODEL,
    engine: str = typer.Option("here", "--engine", help="here, or ray: many processes and machines."),
    workers: int | None = typer.Option(None, "--workers", min=1, help="Of Ray; one a processor if not given."),
    force: bool = FORCE,
) -> None:
    """Classify images with a task learned before.

    With --engine ray images may be addresses such as s3://bucket/folder too, and --out a folder for Parquet files.
    """
    from cnaps.errors import InputError
    from cnaps.files import check_output
    from cnaps.images.finding import find_images
    from cnaps.runtime.taskfile import read_task

    if engine not in ("here", "ray"):
        raise InputError(f"there is no engine {engine!r}: here or ray")
    if engine == "ray":
        from cnaps.serving.bulk import predict_on_ray, write_parts

        parts = out if out is not None and not out.suffix else None
        _check_outputs(None if parts else out, report, None, read_by([], [*images, task, model]), force)
        check_output(parts, folder=())
        rows = predict_on_ray(task, images, model=model, top=top, workers=workers)
        if parts:
            write_parts(rows, parts)
            echo(f"wrote {parts}")
            return
        results, skipped = _gather(rows)
    else:
        files = find_images(images)
        _check_outputs(out, report, None, read_by(files, [*images, task, model]), force)
        results, skipped = _classify_files(read_task(task, model), files, top)
    _write(results, skipped, out, report, [])
    _finish(results, skipped, [path for path in (out, report) if path is not None])


def export(
    task: Path = _TASK,
    target: Path = typer.Argument(
        ..., help="What to write: a file (.onnx), or a folder for a page that classifies in the browser."
    ),
    model: str | None = _MODEL,
    force: bool = FORCE,
) -> None:
    """Turn a task into an ONNX file, or a page for any web space, that needs nothing of this package."""
    from cnaps.files import check_output
    from cnaps.runtime.taskfile import read_task

    inputs = read_by([], [task, model])
    if not target.suffix:
        from cnaps.serving.pages import NETWORK, find_site, page_files, write_page

        names = {Path(name).parts[0] for name in page_files(find_site())}
        check_output(target, inputs=inputs, force=force, folder=sorted(names | {NETWORK}))
        write_page(read_task(task, model), target)
        echo(f"wrote {target}: put it on a web space, or try it: cnaps web {target}")
        return
    check_output(target, (".onnx",), inputs=inputs, force=force)
    fitted = read_task(task, model)
    from cnaps.runtime.export import export_onnx

    export_onnx(fitted, target)
    echo(
        f"wrote {target}: uint8 RGB images of any size to probabilities of {len(fitted.names)} "
        f"classes, {target.stat().st_size / 1e6:.1f} MB"
    )


def models() -> None:
    """List the models that come with the package."""
    from cnaps.runtime.bundle import read_bundle
    from cnaps.weights import DEFAULT_MODEL, INSTALLED, list_models

    for name in list_models():
        model = read_bundle(INSTALLED / name)
        default = " (default)" if name == DEFAULT_MODEL else ""
        echo(
            f"{name}{default}: {model.settings['backbone']}, {model.settings['adaptation']}, "
            f"head {model.settings['head']}, images of {model.image_size} pixels"
        )


def _check_outputs(
    out: Path | None, report: Path | None, save: Path | None, inputs: list[Path], force: bool
) -> None:
    from cnaps.errors import InputError
    from cnaps.files import check_output
    from cnaps.runtime.results import FORMATS

    check_output(out, FORMATS, inputs=inputs, force=force)
    check_output(report, (".html", ".htm"), inputs=inputs, force=force)
    check_output(save, inputs=inputs, force=force)
    given = [path.resolve() for path in (out, report, save) if path is not None]
    if len(set(given)) < len(given):
        raise InputError(f"two outputs have the same name: {given[-1]}")


def _paths(labelled: list[tuple[Path, str]]) -> list[Path]:
    return [path for path, _ in labelled]


def read_by(files: Iterable[Path], named: Iterable[str | Path | None]) -> list[Path]:
    """Everything that a command reads: images, and what was named, a model among it."""
    return [
        *files,
        *[Path(name) for name in named if name is not None and Path(name).is_file()],
        *[Path(name) for name in named if name is not None and (Path(name) / "config.json").is_file()],
    ]


def _learn(labelled: list[tuple[Path, str]], model: str | None, flip: bool, device: str) -> tuple[FittedTask, int]:
    """What was learned, and how many examples could not be read."""
    from cnaps.errors import CnapsError, DataError
    from cnaps.runtime.engine import open_engine
    from cnaps.runtime.task import Examples, FittedTask, check_enough
    from cnaps.weights import DEFAULT_MODEL

    labels = [label for _, label in labelled]
    check_enough(labels)
    engine = open_engine(model or DEFAULT_MODEL, device)
    broken: set[int] = set()

    def on_error(index: int, error: CnapsError) -> None:
        broken.add(index)
        warn(f"{error}: this example is left out")

    files = [path for path, _ in labelled]
    examples = Examples.read(files, labels, engine.image_size, on_error)
    lost = sorted(set(labels) - set(map(str, examples.names)))
    if lost:
        raise DataError(f"no image of the class {lost[0]!r} can be read: add some, or remove the class")
    for concern in examples.concerns([str(path) for i, path in enumerate(files) if i not in broken]):
        warn(concern)
    return FittedTask.learn(engine, examples, flip=flip), len(broken)


def _classify_files(fitted: FittedTask, files: list[Path], top: int) -> tuple[list[Result], list[Skipped]]:
    from cnaps.errors import CnapsError, DataError
    from cnaps.progress import progress_bar
    from cnaps.runtime.results import Result, Skipped

    results: list[Result] = []
    skipped: list[Skipped] = []

    def on_error(index: int, error: CnapsError) -> None:
        skipped.append(Skipped(str(files[index]), str(error)))

    with progress_bar() as bar:
        row = bar.add_task("classifying", total=len(files), note="")
        for where, probabilities in fitted.predict(files, on_error):
            for index, each in zip(where, probabilities, strict=True):
                results.append(Result.of(str(files[index]), fitted.names, each, top))
            bar.update(row, completed=len(results) + len(skipped))
    if not results:
        raise DataError(f"none of the {len(files)} images can be read; the first: {skipped[0].reason}")
    return results, skipped


def _gather(rows: Any) -> tuple[list[Result], list[Skipped]]:
    from cnaps.errors import DataError
    from cnaps.progress import track
    from cnaps.runtime.results import Result, Skipped

    results, skipped = [], []
    for row in track(rows.iter_rows(), "classifying"):
        if row["error"]:
            skipped.append(Skipped(row["path"], row["error"]))
        else:
            results.append(Result(row["path"], tuple(zip(row["labels"], row["probabilities"], strict=True))))
    if not results:
        raise DataError(f"none of the images can be read; the first: {skipped[0].reason}")
    return sorted(results, key=lambda result: result.path), skipped


def _write(
    results: list[Result],
    skipped: list[Skipped],
    out: Path | None,
    report: Path | None,
    labelled: list[tuple[Path, str]],
) -> None:
    if out is not None:
        from cnaps.runtime.results import write_results

        write_results(out, results, skipped)
    if report is not None:
        from cnaps.runtime.report import write_report

        many = f"{len(results):,} image{'s' if len(results) > 1 else ''}"
        write_report(report, results, skipped, labelled, title=f"{many}, classified")


def _finish(results: list[Result], skipped: list[Skipped], written: list[Path]) -> None:
    """The table, or its least certain part where a file has it all; then what was skipped, and the exit code."""
    shown = results
    if written and len(results) > _TABLE_ROWS:
        counts = Counter(result.label for result in results)
        echo("found: " + ", ".join(f"{label} {count}" for label, count in counts.most_common(20)))
        shown = sorted(results, key=lambda result: result.probability)[:10]
        echo(f"the least certain of {len(results)}:")
    _table(shown)
    for item in skipped:
        warn(f"{item.reason}: skipped")
    if written:
        echo("wrote " + ", ".join(map(str, written)))
    if skipped:
        raise typer.Exit(SOME_SKIPPED)


def _table(results: list[Result]) -> None:
    from cnaps.files import shown

    rows = [(shown(result.path), shown(result.label), result.probability) for result in results]
    file_width = min(max(len(path) for path, _, _ in rows), 60)
    label_width = min(max(len(label) for _, label, _ in rows), 30)
    for path, label, probability in rows:
        name = typer.style(f"{label:{label_width}}", fg=None if probability >= 0.5 else "yellow", bold=True)
        typer.echo(f"{path:{file_width}}  {name}  {probability:7.1%}")
