"""Options that several research commands have in common: what each is, in one place."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Data = Annotated[
    list[Path],
    typer.Argument(help="Collections of `cnaps data prepare`, or folders that hold some.", metavar="DATA"),
]
Out = Annotated[Path, typer.Option(help="The folder of the results, e.g. results/birds.")]
Model = Annotated[
    str, typer.Option(help="A model's folder or name, e.g. runs/phi/best; compared methods use its backbone.")
]
Learners = Annotated[
    str,
    typer.Option(
        "--learners",
        help="Methods by name (see `cnaps learners`), with commas; name=FOLDER for a model of its own, e.g. "
        "cnaps,logreg,versa=runs/versa/best.",
    ),
]
Split = Annotated[str, typer.Option(help="Whose classes: train, valid or test; all takes every class.")]
Tasks = Annotated[int, typer.Option(min=1, help="Tasks drawn from each data set.")]
Size = Annotated[int | None, typer.Option(min=16, help="Of images, in pixels; the model's own, if not given.")]
Seed = Annotated[int, typer.Option(min=0, help="The same seed draws the same tasks on every machine.")]
MaxWays = Annotated[int, typer.Option(min=2, help="Most classes of a task.")]
MaxContext = Annotated[int, typer.Option(min=2, help="Most context images of a task.")]
Ways = Annotated[int | None, typer.Option(min=2, help="Classes of every task, instead of a random number.")]
Shots = Annotated[int | None, typer.Option(min=1, help="Context images a class, instead of a random number.")]
Targets = Annotated[int | None, typer.Option(min=1, help="Target images a class, instead of a random number.")]
Unseen = Annotated[
    str | None,
    typer.Option(help="Data sets that training saw nothing of, with commas; else as the model's notes say."),
]
Processes = Annotated[int, typer.Option(min=1, help="Processes on this machine; tasks are shared out.")]


def names_of(text: str) -> list[str]:
    """The parts of a list with commas."""
    return [part.strip() for part in text.split(",") if part.strip()]


def split_of(text: str) -> str | None:
    """A split by its name; None for all classes."""
    return None if text == "all" else text
