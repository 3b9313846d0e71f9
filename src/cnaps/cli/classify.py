"""`cnaps classify`, `fit`, `predict` and `export`."""

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
_FIT_CODES = "Exit codes: 0 the task file was written; 2 nothing was done, the message says why."
_TABLE_ROWS = 40  # in the terminal, where the rest is in a file

_EXAMPLES = typer.Argument(
    ...,
    help="A folder with a sub-folder of images for each class (birds/robin, birds/wren), or a CSV of path,label.",
)
_IMAGES = typer.Argument(
    ..., help="Images: files, folders, quoted patterns ('photos/*.jpg'), a .txt of paths or a .csv of path,label."
)
_TASK = typer.Argument(..., help="A task file, as written by `cnaps fit`, such as birds.task.")
_OUT = typer.Option(None, "--out", "-o", help="Write a table of the answers: results.csv or results.json.")
_REPORT = typer.Option(None, "--report", help="Write a page to look at, the least certain first: report.html.")
_THUMBNAILS = typer.Option(
    "inside", "--thumbnails", help="Pictures of the report: inside the page, or beside, in a folder of their own."
)
_SAVE = typer.Option(None, "--save", help="Keep what was learned for `cnaps predict`: birds.task.")
_TOP = typer.Option(3, "--top", min=1, help="How many classes to write for an image: the best and runners-up.")
_NONE = typer.Option(False, "--none-of-these", help="Images unlike all classes get the answer 'none of these'.")
_ABOVE = typer.Option(
    None,
    "--none-above",
    min=0.0,
    max=2.0,
    help="The novelty from which --none-of-these answers so, such as 0.3; the examples set it if it is not given.",
)
_SORT = typer.Option(
    None, "--sort-into", help="Copy the images to folders named after classes, in this one: sorted."
)
_LINK = typer.Option(False, "--link", help="With --sort-into: links instead of copies, which take no space.")
_MODEL = typer.Option(
    None, "--model", help="A model by name (see `cnaps models`) or folder, or transformers:FOLDER."
)
_BACKBONE = typer.Option(
    None, "--backbone", help="A pre-trained network in place of a model: transformers:FOLDER or timm:NAME."
)
_SIZE = typer.Option(
    "auto", "--size", help="Side in pixels at which images are read, such as 160; auto decides by the examples."
)
_FLIP = typer.Option(
    False, "--flip", help="Learn from mirror images too: for animals or cups, not for letters or road signs."
)
_DEVICE = typer.Option("auto", "--device", help="Where to compute: auto, cpu, cuda, cuda:1.")


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command(epilog=_CODES)(classify)
    app.command(epilog=_FIT_CODES)(fit)
    app.command(epilog=_CODES)(predict)
    app.command()(demo)
    app.command()(export)


def classify(
    examples: Path = _EXAMPLES,
    images: list[str] = _IMAGES,
    out: Path | None = _OUT,
    report: Path | None = _REPORT,
    thumbnails: str = _THUMBNAILS,
    save: Path | None = _SAVE,
    top: int = _TOP,
    none_of_these: bool = _NONE,
    none_above: float | None = _ABOVE,
    sort_to: Path | None = _SORT,
    link: bool = _LINK,
    model: str | None = _MODEL,
    backbone: str | None = _BACKBONE,
    size: str = _SIZE,
    flip: bool = _FLIP,
    device: str = _DEVICE,
    force: bool = FORCE,
) -> None:
    """Learn classes from a few examples each and classify images, in one go.

    Where images lie in folders named like the classes, or a CSV names their classes, accuracy is counted too.
    """
    from cnaps.images.finding import find_examples, find_images

    labelled = find_examples(examples)
    files = find_images(images)
    inputs = read_by([examples, *files, *_paths(labelled)], [*images, model])
    _check_outputs(out, report, save, inputs, force)
    _check_options(report, thumbnails, sort_to, link, [examples, *map(Path, images)])
    fitted, left_out = _learn(labelled, _either(model, backbone), flip, device, size)
    level = _none_level(fitted, none_of_these, none_above)
    results, skipped = _classify_files(fitted, files, top, level)
    results = _with_truth(results, images, files, fitted)
    if save is not None:
        from cnaps.runtime.taskfile import write_task

        write_task(save, fitted)
    _write(results, skipped, out, report, labelled, thumbnails)
    _sort(results, sort_to, link)
    _finish(results, skipped, [path for path in (out, report, save, sort_to) if path is not None])
    if left_out:
        raise typer.Exit(SOME_SKIPPED)


def fit(
    examples: Path = _EXAMPLES,
    task: Path = typer.Argument(..., help="The task file to write, such as birds.task."),
    model: str | None = _MODEL,
    backbone: str | None = _BACKBONE,
    size: str = _SIZE,
    flip: bool = _FLIP,
    device: str = _DEVICE,
    force: bool = FORCE,
) -> None:
    """Learn classes from a few examples each and keep them in a task file."""
    from cnaps.images.finding import find_examples

    labelled = find_examples(examples)
    _check_outputs(None, None, task, read_by([examples, *_paths(labelled)], [model]), force)
    fitted, left_out = _learn(labelled, _either(model, backbone), flip, device, size)
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
    thumbnails: str = _THUMBNAILS,
    top: int = _TOP,
    none_of_these: bool = _NONE,
    none_above: float | None = _ABOVE,
    sort_to: Path | None = _SORT,
    link: bool = _LINK,
    model: str | None = _MODEL,
    engine: str = typer.Option("here", "--engine", help="here, or ray: many processes and machines."),
    workers: int | None = typer.Option(
        None, "--workers", min=1, help="Processes of --engine ray, such as 8; one a processor if not given."
    ),
    force: bool = FORCE,
) -> None:
    """Classify images with a task learned before.

    Where images lie in folders named like the classes, or a CSV names their classes, accuracy is counted too.

    With --engine ray images may be addresses such as s3://bucket/folder too, and --out a folder for Parquet files.
    """
    from cnaps.errors import InputError
    from cnaps.files import check_output
    from cnaps.images.finding import find_images
    from cnaps.runtime.taskfile import read_task

    if engine not in ("here", "ray"):
        raise InputError(f"there is no engine {engine!r}: here or ray")
    _check_options(report, thumbnails, sort_to, link, [Path(image) for image in images])
    if engine == "ray" and (none_of_these or none_above is not None or sort_to):
        raise InputError("--none-of-these and --sort-into work without --engine ray")
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
        fitted = read_task(task, model)
        level = _none_level(fitted, none_of_these, none_above)
        results, skipped = _classify_files(fitted, files, top, level)
        results = _with_truth(results, images, files, fitted)
    _write(results, skipped, out, report, [], thumbnails)
    _sort(results, sort_to, link)
    _finish(results, skipped, [path for path in (out, report, sort_to) if path is not None])


def demo(
    folder: Path = typer.Argument(Path("cnaps-demo"), help="Where to write images, reports and the task file."),
) -> None:
    """A tour on photographs and digits that come with the package: one minute, nothing is downloaded."""
    from cnaps.demo import main

    main(folder)


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


def _check_options(
    report: Path | None, thumbnails: str, sort_to: Path | None, link: bool, inputs: list[Path]
) -> None:
    from cnaps.errors import InputError
    from cnaps.runtime.report import folder_beside
    from cnaps.runtime.sorting import check_sorted

    if thumbnails not in ("inside", "beside"):
        raise InputError(f"--thumbnails is inside or beside, not {thumbnails}")
    if report is not None and thumbnails == "beside":
        folder_beside(report)
    if link and sort_to is None:
        raise InputError("--link goes with --sort-into FOLDER")
    if sort_to is not None:
        check_sorted(sort_to, inputs)


def _none_level(fitted: FittedTask, wanted: bool, given: float | None) -> float | None:
    from cnaps.errors import InputError

    if given is not None or not wanted:
        return given
    if fitted.threshold is None:
        raise InputError(
            "--none-of-these needs classes with two examples or more, four such examples at least: add some, "
            "or give the level yourself, such as --none-above 0.3"
        )
    return fitted.threshold


def _with_truth(results: list[Result], sources: list[str], files: list[Path], known: FittedTask) -> list[Result]:
    """With the true class of each image that has one."""
    from dataclasses import replace

    from cnaps.images.finding import true_labels
    from cnaps.runtime.novelty import NONE

    truth = true_labels(sources, files, [*map(str, known.names), NONE])
    return [replace(result, truth=truth.get(Path(result.path))) for result in results]


def _sort(results: list[Result], folder: Path | None, link: bool) -> None:
    if folder is not None:
        from cnaps.runtime.sorting import sort_into

        sort_into(folder, results, link=link)


def _either(model: str | None, backbone: str | None) -> str | None:
    from cnaps.errors import InputError

    if model is not None and backbone is not None:
        raise InputError("--model or --backbone, not both: a model has its own backbone")
    if backbone is not None and not backbone.startswith(("transformers:", "timm:")):
        raise InputError(f"--backbone is transformers:FOLDER, transformers:HUB/ID or timm:NAME, not {backbone}")
    return model or backbone


def _learn(
    labelled: list[tuple[Path, str]], model: str | None, flip: bool, device: str, size: str
) -> tuple[FittedTask, int]:
    """What was learned, and how many examples could not be read."""
    from cnaps.errors import CnapsError, DataError
    from cnaps.runtime.engine import open_engine
    from cnaps.runtime.task import Examples, FittedTask, check_enough, choose_size
    from cnaps.weights import DEFAULT_MODEL

    labels = [label for _, label in labelled]
    check_enough(labels)
    engine = open_engine(model or DEFAULT_MODEL, device)
    broken: set[int] = set()

    def on_error(index: int, error: CnapsError) -> None:
        broken.add(index)
        warn(f"{error}: this example is left out")

    files = [path for path, _ in labelled]
    pixels = choose_size(engine, files, int(size) if size.isdecimal() else size)
    examples = Examples.read(files, labels, pixels, on_error)
    lost = sorted(set(labels) - set(map(str, examples.names)))
    if lost:
        raise DataError(f"no image of the class {lost[0]!r} can be read: add some, or remove the class")
    for concern in examples.concerns([str(path) for i, path in enumerate(files) if i not in broken]):
        warn(concern)
    return FittedTask.learn(engine, examples, flip=flip), len(broken)


def _classify_files(
    fitted: FittedTask, files: list[Path], top: int, level: float | None = None
) -> tuple[list[Result], list[Skipped]]:
    """The answers; beyond `level` of novelty it is "none of these"."""
    from cnaps.errors import CnapsError, DataError
    from cnaps.progress import progress_bar
    from cnaps.runtime.results import Result, Skipped

    results: list[Result] = []
    skipped: list[Skipped] = []

    def on_error(index: int, error: CnapsError) -> None:
        skipped.append(Skipped(str(files[index]), str(error)))

    with progress_bar() as bar:
        row = bar.add_task("classifying", total=len(files), note="")
        for where, features, probabilities in fitted.embed(files, on_error):
            novelty = [None] * len(where) if level is None else fitted.novelty(features).tolist()
            for index, each, new in zip(where, probabilities, novelty, strict=True):
                strange = new is not None and level is not None and new > level
                known = {"novelty": new, "stranger": strange}
                results.append(Result.of(str(files[index]), fitted.names, each, top, **known))
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
    thumbnails: str,
) -> None:
    if out is not None:
        from cnaps.runtime.results import write_results

        write_results(out, results, skipped)
    if report is not None:
        from cnaps.runtime.report import write_report

        many = f"{len(results):,} image{'s' if len(results) > 1 else ''}"
        title = f"{many}, classified"
        write_report(report, results, skipped, labelled, title=title, beside=thumbnails == "beside")


def _finish(results: list[Result], skipped: list[Skipped], written: list[Path]) -> None:
    """The table, or its least certain part where a file has it all; then what was skipped, and the exit code."""
    shown = results
    if written and len(results) > _TABLE_ROWS:
        counts = Counter(result.label for result in results)
        echo("found: " + ", ".join(f"{label} {count}" for label, count in counts.most_common(20)))
        shown = sorted(results, key=lambda result: result.probability)[:10]
        echo(f"the least certain of {len(results)}:")
    _table(shown)
    _accuracy(results)
    for item in skipped:
        warn(f"{item.reason}: skipped")
    if written:
        echo("wrote " + ", ".join(map(str, written)))
    if skipped:
        raise typer.Exit(SOME_SKIPPED)


def _table(results: list[Result]) -> None:
    from cnaps.files import shown

    file_width = min(max(len(shown(result.path)) for result in results), 60)
    label_width = min(max(len(shown(result.label)) for result in results), 30)
    for result in results:
        sure = result.probability >= 0.5 and not result.stranger
        name = typer.style(f"{shown(result.label):{label_width}}", fg=None if sure else "yellow", bold=True)
        share = "      -" if result.stranger else f"{result.probability:7.1%}"
        truth = typer.style(f"  but is {shown(str(result.truth))}", fg="red") if result.mistaken else ""
        typer.echo(f"{shown(result.path):{file_width}}  {name}  {share}{truth}")


def _accuracy(results: list[Result]) -> None:
    """How many are right, where the truth is known."""
    from cnaps.runtime.accuracy import Accuracy

    known = Accuracy.of((result.truth, result.label) for result in results if result.truth is not None)
    if known.total:
        echo("\n".join(["", str(known), *known.table()]))
