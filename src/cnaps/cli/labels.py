"""`cnaps suggest` and `cnaps review`: which images to label next, and which labels look wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from typer import Option

from cnaps.cli import common
from cnaps.cli.common import SOME_SKIPPED, command, echo, finish, read_by, warn
from cnaps.errors import CnapsError, DataError
from cnaps.files import check_output, csv_text, escaped, write_text

_CODES = (
    f"Exit codes: 0 done; 2 nothing was done, the message says why; {SOME_SKIPPED} some images could not be read."
)
_UNCERTAIN = "diverse: uncertain and unlike each other; three by uncertainty alone; random, to compare."

_Count = Annotated[int, Option("-n", metavar="COUNT", min=1, help="How many images to suggest.")]
_Strategy = Annotated[
    Literal["diverse", "entropy", "margin", "variation-ratio", "random"], Option(help=_UNCERTAIN)
]
_Next = Annotated[Path | None, Option("--out", "-o", metavar="FILE", help="Write a table of them: next.csv.")]
_Sheet = Annotated[Path | None, Option(metavar="FILE", help="Write a picture of them: next.png.")]
_Seed = Annotated[int, Option(metavar="NUMBER", min=0, help="Of the strategy random.")]
_Review = Annotated[
    Path | None, Option("--out", "-o", metavar="FILE", help="Write how each label fits: review.csv.")
]


@command(epilog=_CODES)
def suggest(
    task: common.Task,
    pool: common.Images,
    count: _Count = 20,
    strategy: _Strategy = "diverse",
    out: _Next = None,
    sheet: _Sheet = None,
    seed: _Seed = 0,
    model: common.Model = None,
    force: common.Force = False,
) -> None:
    """Find the images whose labels would teach most.

    Example: cnaps suggest birds.task unlabelled -n 10 --sheet next.png
    """
    from cnaps.images.finding import find_images
    from cnaps.runtime.suggest import suggest
    from cnaps.runtime.taskfile import read_task

    files = find_images(pool)
    inputs = read_by(files, [*pool, task, model])
    check_output(out, (".csv",), inputs=inputs, force=force)
    check_output(sheet, (".png",), inputs=inputs, force=force)
    broken: list[str] = []

    def on_error(index: int, error: CnapsError) -> None:
        broken.append(str(error))

    found = suggest(read_task(task, model), files, count, strategy, seed=seed, on_error=on_error)
    if not found:
        raise DataError(f"none of the {len(files)} images can be read; the first: {broken[0]}")
    names = [escaped(str(each.path)) for each in found]
    width = min(max(map(len, names)), 60)
    echo(f"{'image':{width}}  uncertainty  looks like")
    for name, each in zip(names, found, strict=True):
        echo(f"{name:{width}}  {each.score:11.3f}  {each.label} {each.probability:.1%}")
    if out is not None:
        rows = [
            [name, f"{each.score:.6f}", str(each.label), f"{each.probability:.6f}"]
            for name, each in zip(names, found, strict=True)
        ]
        write_text(out, csv_text([["path", "score", "label", "probability"], *rows]))
    if sheet is not None:
        from cnaps.images.decoding import write_png
        from cnaps.images.inputs import read_pixels
        from cnaps.images.sheet import captioned_sheet

        captions = [
            f"{i}. uncertainty {each.score:.2f}\n{each.label} {each.probability:.0%}\n{Path(name).name}"
            for i, (name, each) in enumerate(zip(names, found, strict=True), 1)
        ]
        write_png(sheet, captioned_sheet([read_pixels(str(each.path), 156) for each in found], captions))
    for reason in broken:
        warn(f"{reason}: skipped")
    finish([out, sheet], broken)


@command(epilog=_CODES)
def review(
    examples: common.Examples, out: _Review = None, *, how: common.Learning, force: common.Force = False
) -> None:
    """Find examples whose labels look wrong (label issues).

    Each example is judged by the others, as if it had been left out.

    Example: cnaps review birds
    """
    from cnaps.images.finding import find_examples
    from cnaps.runtime.review import review

    labelled = find_examples(examples)
    inputs = read_by([examples, *(path for path, _ in labelled)], [how.model])
    check_output(out, (".csv",), inputs=inputs, force=force)
    fitted, read, whole = how.learn(labelled)
    found = review(fitted, read.pixels, read.names)
    paths = [escaped(str(path)) for path, _ in whole]
    issues = [each for each in found if each.suspicious]
    for each in issues:
        echo(f"{paths[each.index]}: labelled {each.label} ({each.fit:.0%}), looks like {each.better} "
             f"({each.better_fit:.0%})")  # fmt: skip
    echo(f"{len(issues)} of {len(found)} labels look wrong" if issues else f"all {len(found)} labels look right")
    if out is not None:
        rows = [
            [paths[e.index], str(e.label), f"{e.fit:.6f}", str(e.better), f"{e.better_fit:.6f}",
             "yes" if e.suspicious else "no"]
            for e in found
        ]  # fmt: skip
        write_text(out, csv_text([["path", "label", "fit", "better", "better_fit", "suspicious"], *rows]))
    finish([out], labelled[len(whole) :])
