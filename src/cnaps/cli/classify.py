"""`cnaps classify`, `fit`, `predict`, `export` and `demo`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer import Argument, Option

from cnaps.cli import common
from cnaps.cli.common import SOME_SKIPPED, Labelled, command, echo, finish, read_by, warn
from cnaps.errors import CnapsError, DataError, InputError
from cnaps.files import check_output, shown
from cnaps.progress import progress_bar, track

if TYPE_CHECKING:
    from cnaps.runtime.results import Result, Skipped
    from cnaps.runtime.task import FittedTask

_CODES = (
    "Exit codes: 0 every image was classified; 2 nothing was done, the message says why; "
    f"{SOME_SKIPPED} some images could not be read, all others were classified and written."
)
_FIT_CODES = (
    "Exit codes: 0 the task file was written; 2 nothing was done, the message says why; "
    f"{SOME_SKIPPED} it was written, but some examples could not be read and are left out."
)
_TABLE_ROWS = 40  # in the terminal, where the rest is in a file

_OUT = "Write the answers: results.csv or .json."
_REPORT = "Write a page to look at, the least certain first: report.html."
_PICTURES = "Pictures in the page, or in a folder beside it."
_SAVE = "Keep what was learned for `cnaps predict`: birds.task."
_TOP = "How many classes to write for an image, best first."
_NONE = "Images unlike all classes are answered 'none of these'."
_ABOVE = "The novelty from which --none-of-these answers so, such as 1.2; by the examples if not given."
_SORT = "Copy the images to sub-folders of this one, named after classes."
_LINK = "With --sort-into: links instead of copies, which take no space."
_TARGET = "What to write: a file (birds.onnx), or a folder for a page that classifies in the browser."

_Save = Annotated[Path | None, Option(metavar="FILE", help=_SAVE)]
_Written = Annotated[Path, Argument(metavar="TASK", help="The task file to write, such as birds.task.")]
_Engine = Annotated[Literal["here", "ray"], Option(help="Compute here, or by Ray: on many machines.")]
_Workers = Annotated[int | None, Option(metavar="COUNT", min=1, help="Processes of Ray; else one a processor.")]
_Tour = Annotated[Path, Argument(metavar="FOLDER", help="Where to write images, reports and the task file.")]
_Target = Annotated[Path, Argument(metavar="TARGET", help=_TARGET)]


@dataclass(frozen=True)
class _Answers:
    """What is asked of each image, and where answers go besides the terminal."""

    out: Annotated[Path | None, Option("--out", "-o", metavar="FILE", help=_OUT)] = None
    report: Annotated[Path | None, Option("--report", metavar="FILE", help=_REPORT)] = None
    thumbnails: Annotated[Literal["inside", "beside"], Option(help=_PICTURES)] = "inside"
    top: Annotated[int, Option(metavar="COUNT", min=1, help=_TOP)] = 3
    none_of_these: Annotated[bool, Option("--none-of-these", help=_NONE)] = False
    none_above: Annotated[float | None, Option(metavar="NOVELTY", min=0.0, max=2.0, help=_ABOVE)] = None
    sort_into: Annotated[Path | None, Option(metavar="FOLDER", help=_SORT)] = None
    link: Annotated[bool, Option("--link", help=_LINK)] = False

    def check(
        self, sources: Iterable[str | Path], inputs: list[Path], force: bool, save: Path | None = None
    ) -> None:
        """Say before any work is done what cannot be written; `sources` are what was named, `inputs` all files."""
        from cnaps.runtime.report import folder_beside
        from cnaps.runtime.results import FORMATS
        from cnaps.runtime.sorting import check_sorted

        check_output(self.out, FORMATS, inputs=inputs, force=force)
        check_output(self.report, (".html", ".htm"), inputs=inputs, force=force)
        check_output(save, inputs=inputs, force=force)
        given = [path.resolve() for path in (self.out, self.report, save) if path is not None]
        if len(set(given)) < len(given):
            raise InputError(f"two outputs have the same name: {given[-1]}")
        if self.report is not None and self.thumbnails == "beside":
            folder_beside(self.report)
        if self.link and self.sort_into is None:
            raise InputError("--link goes with --sort-into FOLDER")
        if self.sort_into is not None:
            check_sorted(self.sort_into, [Path(source) for source in sources])

    def find(
        self, fitted: FittedTask, sources: list[str], files: list[Path]
    ) -> tuple[list[Result], list[Skipped]]:
        """The answers, and the images that cannot be read."""
        from cnaps.images.finding import true_labels
        from cnaps.runtime.novelty import NONE
        from cnaps.runtime.results import Result, Skipped

        results: list[Result] = []
        skipped: list[Skipped] = []
        level = self._none_level(fitted)
        truth = true_labels(sources, files, [*map(str, fitted.names), NONE])

        def on_error(index: int, error: CnapsError) -> None:
            skipped.append(Skipped(str(files[index]), str(error)))

        with progress_bar() as bar:
            row = bar.add_task("classifying", total=len(files), note="")
            for where, features, probabilities in fitted.embed(files, on_error):
                novelty = [None] * len(where) if level is None else fitted.novelty(features).tolist()
                for index, each, new in zip(where, probabilities, novelty, strict=True):
                    path = files[index]
                    results.append(Result.of(path, fitted.names, each, self.top, new, level, truth.get(path)))
                bar.update(row, completed=len(results) + len(skipped))
        if not results:
            raise DataError(f"none of the {len(files)} images can be read; the first: {skipped[0].reason}")
        return results, skipped

    def _none_level(self, fitted: FittedTask) -> float | None:
        """The novelty beyond which an image is "none of these"."""
        if self.none_above is not None or not self.none_of_these:
            return self.none_above
        if fitted.threshold is None:
            raise InputError(
                "--none-of-these needs classes with two examples or more, four such examples at least: add some, "
                "or give the level yourself, such as --none-above 0.3"
            )
        return fitted.threshold

    def write(
        self, results: list[Result], skipped: list[Skipped], examples: Labelled, save: Path | None = None
    ) -> None:
        """The files, then the table in the terminal and the exit code."""
        if self.out is not None:
            from cnaps.runtime.results import write_results

            write_results(self.out, results, skipped)
        if self.report is not None:
            from cnaps.runtime.report import write_report

            title = f"{len(results):,} image{'s' if len(results) > 1 else ''}, classified"
            beside = self.thumbnails == "beside"
            write_report(self.report, results, skipped, examples, title=title, beside=beside)
        if self.sort_into is not None:
            from cnaps.runtime.sorting import sort_into

            sort_into(self.sort_into, results, link=self.link)
        written = [path for path in (self.out, self.report, save, self.sort_into) if path is not None]
        _show(results, bool(written))
        for item in skipped:
            warn(f"{item.reason}: skipped")
        finish(written, skipped)


@command(epilog=_CODES)
def classify(
    examples: common.Examples,
    images: common.Images,
    *,
    answers: _Answers,
    save: _Save = None,
    how: common.Learning,
    force: common.Force = False,
) -> None:
    """Learn from a few examples and classify images.

    Where images lie in folders named like the classes, or a CSV names their classes, accuracy is counted too.

    Example: cnaps classify birds photos --report report.html
    """
    from cnaps.images.finding import find_examples, find_images

    labelled, files = find_examples(examples), find_images(images)
    inputs = read_by([examples, *files, *(path for path, _ in labelled)], [*images, how.model])
    answers.check([examples, *images], inputs, force, save)
    fitted, _, whole = how.learn(labelled)
    results, skipped = answers.find(fitted, images, files)
    if save is not None:
        from cnaps.runtime.taskfile import write_task

        write_task(save, fitted)
    answers.write(results, skipped, labelled, save)
    finish([], labelled[len(whole) :])


@command(epilog=_FIT_CODES)
def fit(examples: common.Examples, task: _Written, *, how: common.Learning, force: common.Force = False) -> None:
    """Learn from a few examples and keep a task file.

    Example: cnaps fit birds birds.task
    """
    from cnaps.images.finding import find_examples
    from cnaps.runtime.taskfile import write_task

    labelled = find_examples(examples)
    inputs = read_by([examples, *(path for path, _ in labelled)], [how.model])
    check_output(task, inputs=inputs, force=force)
    fitted, _, whole = how.learn(labelled)
    write_task(task, fitted)
    kilobytes = task.stat().st_size / 1000
    echo(f"wrote {task}: {len(fitted.names)} classes from {fitted.seen} images, {kilobytes:.0f} KB")
    finish([], labelled[len(whole) :])


@command(epilog=_CODES)
def predict(
    task: common.Task,
    images: common.Images,
    *,
    answers: _Answers,
    model: common.Model = None,
    engine: _Engine = "here",
    workers: _Workers = None,
    force: common.Force = False,
) -> None:
    """Classify images by a task file.

    Where images lie in folders named like the classes, or a CSV names their classes, accuracy is counted too.

    With --engine ray images may be addresses such as s3://bucket/folder too, and --out a folder for Parquet files.

    Example: cnaps predict birds.task photos --out results.csv
    """
    from cnaps.images.finding import find_images
    from cnaps.runtime.taskfile import read_task

    if engine == "ray":
        if answers.none_of_these or answers.none_above is not None or answers.sort_into:
            raise InputError("--none-of-these and --sort-into work without --engine ray")
        from cnaps.serving.bulk import predict_on_ray, write_parts

        parts = answers.out if answers.out is not None and not answers.out.suffix else None
        if parts:
            answers = replace(answers, out=None)
        answers.check(images, read_by([], [*images, task, model]), force)
        check_output(parts, folder=())
        rows = predict_on_ray(task, images, model=model, top=answers.top, workers=workers)
        if parts:
            write_parts(rows, parts)
            echo(f"wrote {parts}")
            return
        results, skipped = _gather(rows)
    else:
        files = find_images(images)
        answers.check(images, read_by(files, [*images, task, model]), force)
        results, skipped = answers.find(read_task(task, model), images, files)
    answers.write(results, skipped, [])


@command()
def demo(folder: _Tour = Path("cnaps-demo")) -> None:
    """See it work on images that come with the package.

    It takes a minute, and nothing is downloaded.
    """
    from cnaps.demo import main

    main(folder)


@command()
def export(task: common.Task, target: _Target, model: common.Model = None, force: common.Force = False) -> None:
    """Turn a task file into an ONNX file or a web page.

    Neither needs anything of this package.

    Example: cnaps export birds.task birds.onnx
    """
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
    from cnaps.runtime.export import export_onnx

    fitted = read_task(task, model)
    export_onnx(fitted, target)
    echo(
        f"wrote {target}: uint8 RGB images of any size to probabilities of {len(fitted.names)} "
        f"classes, {target.stat().st_size / 1e6:.1f} MB"
    )


def _gather(rows: Any) -> tuple[list[Result], list[Skipped]]:
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


def _show(results: list[Result], written: bool) -> None:
    """The table, or its least certain part where a file has it all, and how many are right."""
    listed = results
    if written and len(results) > _TABLE_ROWS:
        counts = Counter(result.label for result in results)
        echo("found: " + ", ".join(f"{label} {count}" for label, count in counts.most_common(20)))
        listed = sorted(results, key=lambda result: result.probability)[:10]
        echo(f"the least certain of {len(results)}:")
    _table(listed)
    from cnaps.runtime.accuracy import Accuracy

    known = Accuracy.of((result.truth, result.label) for result in results if result.truth is not None)
    if known.total:
        echo("\n".join(["", str(known), *known.table()]))


def _table(results: list[Result]) -> None:
    file_width = min(max(len(shown(result.path)) for result in results), 60)
    label_width = min(max(len(shown(result.label)) for result in results), 30)
    for result in results:
        sure = result.probability >= 0.5 and not result.stranger
        name = typer.style(f"{shown(result.label):{label_width}}", fg=None if sure else "yellow", bold=True)
        share = "      -" if result.stranger else f"{result.probability:7.1%}"
        truth = typer.style(f"  but is {shown(str(result.truth))}", fg="red") if result.mistaken else ""
        typer.echo(f"{shown(result.path):{file_width}}  {name}  {share}{truth}")
