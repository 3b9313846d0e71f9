"""Examples as people have them become a fitted task: what `classify`, `fit` and `review` begin with."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from cnaps.cli.common import warn

if TYPE_CHECKING:
    from cnaps.runtime.examples import Examples
    from cnaps.runtime.task import FittedTask

Labelled = list[tuple[Path, str]]


def learn(
    labelled: Labelled,
    *,
    model: str | None,
    backbone: str | None = None,
    size: str = "auto",
    flip: bool = False,
    device: str = "auto",
) -> tuple[FittedTask, Examples, Labelled]:
    """What was learned, the examples as they were read, and their files without those that cannot be read."""
    from cnaps.errors import CnapsError, DataError, InputError
    from cnaps.runtime.engine import open_engine
    from cnaps.runtime.examples import Examples, check_enough, choose_size
    from cnaps.runtime.task import FittedTask
    from cnaps.weights import DEFAULT_MODEL

    if model is not None and backbone is not None:
        raise InputError("--model or --backbone, not both: a model has its own backbone")
    if backbone is not None and not backbone.startswith(("transformers:", "timm:")):
        raise InputError(f"--backbone is transformers:FOLDER, transformers:HUB/ID or timm:NAME, not {backbone}")
    files, labels = [path for path, _ in labelled], [label for _, label in labelled]
    check_enough(labels)
    engine = open_engine(model or backbone or DEFAULT_MODEL, device)
    broken: set[int] = set()

    def on_error(index: int, error: CnapsError) -> None:
        broken.add(index)
        warn(f"{error}: this example is left out")

    pixels = choose_size(engine, files, int(size) if size.isdecimal() else size)
    examples = Examples.read(files, labels, pixels, on_error)
    lost = sorted(set(labels) - set(map(str, examples.names)))
    if lost:
        raise DataError(f"no image of the class {lost[0]!r} can be read: add some, or remove the class")
    whole = [each for i, each in enumerate(labelled) if i not in broken]
    for concern in examples.concerns([str(path) for path, _ in whole]):
        warn(concern)
    return FittedTask.learn(engine, examples, flip=flip), examples, whole
