"""What commands share: the program, options, and a terminal that shows names without obeying them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer
from typer import Argument, Option

from cnaps.errors import CnapsError, DataError, InputError
from cnaps.files import shown

if TYPE_CHECKING:
    from cnaps.runtime.examples import Examples as ReadExamples
    from cnaps.runtime.task import FittedTask

app = typer.Typer(
    name="cnaps",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help: at once, and flags look like flags
    context_settings={"max_content_width": 110},
    help="Few-shot image classification that adapts in one forward pass.",
)

SOME_SKIPPED = 3  # the exit code where something was left out

_CLASSES = "A folder with a sub-folder of images for each class (birds/robin, birds/wren), or a CSV of path,label."
_SOME = "Images: files, folders, quoted patterns ('photos/*.jpg'), a .txt of paths or a .csv of path,label."
_MODEL = "Another model than the usual: by name (see `cnaps models`), a folder or hub:OWNER/NAME."
_BACKBONE = "A pre-trained network in place of a model: transformers:FOLDER or timm:NAME."
_SIZE = "Side in pixels at which images are read, such as 160; auto decides by the examples."
_FLIP = "Learn from mirror images too: for animals or cups, not for letters."

Examples = Annotated[Path, Argument(metavar="EXAMPLES", help=_CLASSES)]
Images = Annotated[list[str], Argument(metavar="IMAGES", help=_SOME)]
Task = Annotated[Path, Argument(metavar="TASK", help="A task file, as written by `cnaps fit`: birds.task.")]
Model = Annotated[str | None, Option("--model", metavar="MODEL", help=_MODEL)]
Force = Annotated[bool, Option("--force", help="Overwrite files that cnaps did not write.")]
Labelled = list[tuple[Path, str]]


def command(name: str | None = None, *, of: typer.Typer = app, **settings: Any) -> Callable[[Any], Any]:
    """Make a function a command. Of a parameter that is a dataclass, each field becomes an option of its own."""

    def add(function: Callable[..., None]) -> Callable[..., None]:
        groups: dict[str, tuple[Callable[..., Any], list[str]]] = {}
        parameters: list[inspect.Parameter] = []
        for parameter in _parameters(function):
            kind: Any = parameter.annotation
            if inspect.isclass(kind) and is_dataclass(kind):
                fields = _parameters(kind)
                groups[parameter.name] = kind, [field.name for field in fields]
                parameters += fields
            else:
                parameters.append(parameter)

        @functools.wraps(function)
        def call(**given: Any) -> None:
            for group, (options, names) in groups.items():
                given[group] = options(**{name: given.pop(name) for name in names})
            function(**given)

        call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        of.command(name, **settings)(call)
        return function

    return add


def _parameters(of: Callable[..., Any]) -> list[inspect.Parameter]:
    hints, given = get_type_hints(of, include_extras=True), inspect.signature(of).parameters
    return [each.replace(kind=each.KEYWORD_ONLY, annotation=hints[name]) for name, each in given.items()]


@dataclass(frozen=True)
class Learning:
    """How examples become a fitted task: what `classify`, `fit` and `review` have in common."""

    model: Model = None
    backbone: Annotated[str | None, Option("--backbone", metavar="NETWORK", help=_BACKBONE)] = None
    size: Annotated[str, Option("--size", metavar="PIXELS", help=_SIZE)] = "auto"
    flip: Annotated[bool, Option("--flip", help=_FLIP)] = False
    device: Annotated[
        str, Option("--device", metavar="DEVICE", help="Where to compute: auto, cpu, cuda, cuda:1.")
    ] = "auto"

    def learn(self, labelled: Labelled) -> tuple[FittedTask, ReadExamples, Labelled]:
        """What was learned, the examples as they were read, and their files without those that cannot be read."""
        from cnaps.runtime.engine import BACKBONES, open_engine
        from cnaps.runtime.examples import Examples, check_enough, choose_size
        from cnaps.runtime.task import FittedTask
        from cnaps.weights import DEFAULT_MODEL

        if self.model is not None and self.backbone is not None:
            raise InputError("--model or --backbone, not both: a model has its own backbone")
        if self.backbone is not None and not self.backbone.startswith(BACKBONES):
            known = "transformers:FOLDER, transformers:HUB/ID or timm:NAME"
            raise InputError(f"--backbone is {known}, not {self.backbone}")
        files, labels = [path for path, _ in labelled], [label for _, label in labelled]
        check_enough(labels)
        engine = open_engine(self.model or self.backbone or DEFAULT_MODEL, self.device)
        broken: set[int] = set()

        def on_error(index: int, error: CnapsError) -> None:
            broken.add(index)
            warn(f"{error}: this example is left out")

        pixels = choose_size(engine, files, int(self.size) if self.size.isdecimal() else self.size)
        examples = Examples.read(files, labels, pixels, on_error)
        lost = sorted(set(labels) - set(map(str, examples.names)))
        if lost:
            raise DataError(f"no image of the class {lost[0]!r} can be read: add some, or remove the class")
        whole = [each for i, each in enumerate(labelled) if i not in broken]
        for concern in examples.concerns([str(path) for path, _ in whole]):
            warn(concern)
        return FittedTask.learn(engine, examples, flip=self.flip), examples, whole


def echo(text: str, **style: Any) -> None:
    """A line or several on the terminal."""
    typer.secho("\n".join(map(shown, text.split("\n"))), **style)


def warn(text: str) -> None:
    """A line of warning."""
    echo(f"warning: {text}", fg="yellow", err=True)


def finish(written: Iterable[Path | None], left_out: Sequence[object]) -> None:
    """Say what was written, and end with the exit code of what was left out."""
    paths = [str(path) for path in written if path is not None]
    if paths:
        echo("wrote " + ", ".join(paths))
    if left_out:
        raise typer.Exit(SOME_SKIPPED)


def read_by(files: Iterable[Path], named: Iterable[str | Path | None]) -> list[Path]:
    """Everything that a command reads: images, and what was named, a model among it."""
    paths = [Path(name) for name in named if name is not None]
    return [*files, *(path for path in paths if path.is_file() or (path / "config.json").is_file())]
