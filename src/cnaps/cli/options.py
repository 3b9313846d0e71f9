"""What several research commands have in common: options, collections, processes, and how they end."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cnaps.cli.common import echo, warn
from cnaps.errors import DataError, InputError

if TYPE_CHECKING:
    from cnaps.data.collection import Collection
    from cnaps.paper.experiments.evaluation import TaskSet
    from cnaps.paper.experiments.reporting import Report

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


@dataclass(frozen=True)
class Experiment:
    """On which data, with which model, and where the results go."""

    data: Data
    out: Out
    model: Model


def names_of(text: str) -> list[str]:
    """The parts of a list with commas."""
    return [part.strip() for part in text.split(",") if part.strip()]


def split_of(text: str) -> str | None:
    """A split by its name; None for all classes."""
    return None if text == "all" else text


def start_processes(processes: int, results: Path | None = None) -> None:
    """Go on as so many processes, or stay the one there is; `results` is the folder that they will fill."""
    if results is not None and "WORLD_SIZE" not in os.environ:
        from cnaps.paper.experiments.reporting import check_results_folder

        check_results_folder(results)
    if processes > 1 and "WORLD_SIZE" not in os.environ:
        from cnaps.training.distributed import launch

        raise typer.Exit(launch(processes))
    from cnaps.nn.devices import configure_threads

    configure_threads()


def unseen_sets(collections: list[str], given: str | None, model: str) -> list[str]:
    """The data sets that training saw nothing of: as given, or as the model's notes have it."""
    from cnaps.nn.checkpoints import load_model

    if given is None:
        seen = load_model(model).notes.get("trained_on")
        return [name for name in collections if name not in seen] if seen else []
    missing = sorted(set(names_of(given)) - set(collections))
    if missing:
        raise InputError(f"--unseen: no data set named {', '.join(missing)}")
    return names_of(given)


def warn_of_seen(model: str, tasks: TaskSet) -> None:
    """Say which classes of the tasks the model was trained on."""
    if os.environ.get("RANK", "0") == "0":
        from cnaps.nn.checkpoints import load_model
        from cnaps.paper.experiments.evaluation import seen_in_training

        for sentence in seen_in_training(load_model(model), tasks, model):
            warn(sentence)


def finish(report: Report, out: Path) -> None:
    """Write a report and show its first table."""
    from cnaps.paper.experiments.reporting import provenance

    report.data = {**report.data, "made": provenance()}
    paths = report.write(out)
    echo(next(iter(report.tables.values())).markdown())
    echo(f"{paths[0]}: tables, pictures and every number are beside it")


def label_of(chosen: str) -> str:
    """The name of the first learner of a list, whichever its seed."""
    from cnaps.paper.experiments.scores import without_seed

    return without_seed(names_of(chosen)[0].partition("=")[0])


def open_collections(data: list[Path], split: str | None) -> list[Collection]:
    """Collections by path; of a folder that holds several, those that have classes in the split."""
    from cnaps.data.collection import find_collections

    found: dict[str, Collection] = {}
    for folder in data:
        several = find_collections(folder)
        for collection in several:
            if len(several) > 1 and split is not None and split not in collection.splits:
                continue
            if collection.name in found:
                raise DataError(f"two collections have the same name: {collection.name}")
            found[collection.name] = collection
    if not found:
        wanted = f" with a split {split!r}" if split else ""
        places = ", ".join(map(str, data))
        raise DataError(f"no collection{wanted} in {places}; make one with `cnaps data prepare`")
    return list(found.values())
