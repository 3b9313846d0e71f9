"""``cnaps evaluate``, ``calibrate`` and ``learners``: methods on the same tasks."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cnaps.cli import options as o
from cnaps.cli.common import echo, warn
from cnaps.cli.options import names_of, split_of

if TYPE_CHECKING:
    from cnaps.data.collection import Collection
    from cnaps.paper.experiments.evaluation import TaskSet
    from cnaps.paper.experiments.reporting import Report


def register(app: typer.Typer) -> None:
    """Add the commands to the program."""
    app.command("evaluate")(evaluate)
    app.command("calibrate")(calibrate)
    app.command("learners")(list_learners)


def list_learners() -> None:
    """List the methods; those marked trained need a model of `cnaps train --learner NAME`."""
    from cnaps.paper import learners

    for entry in learners.list_learners():
        echo(f"{entry.name:19}{'trained  ' if entry.trained else '         '}{entry.summary}")


def evaluate(
    data: o.Data,
    out: o.Out,
    model: o.Model,
    learners: o.Learners = "cnaps,logreg,protonet",
    split: o.Split = "test",
    tasks: o.Tasks = 100,
    seed: o.Seed = 0,
    manifest: Annotated[
        Path | None,
        typer.Option(help="Take the tasks from this file of `cnaps tasks sample`."),
    ] = None,
    max_ways: o.MaxWays = 50,
    max_context: o.MaxContext = 500,
    ways: o.Ways = None,
    shots: o.Shots = None,
    targets: o.Targets = None,
    unseen: o.Unseen = None,
    against: Annotated[
        str | None, typer.Option(help="The method from which differences are shown; the first of --learners.")
    ] = None,
    published: Annotated[
        bool, typer.Option("--published", help="Show the paper's published table beside the results.")
    ] = False,
    size: Annotated[int | None, typer.Option(min=16, help="The side of images; the model's if not given.")] = None,
    calibration: Annotated[
        Path | None,
        typer.Option(help="Results of the same learners on validation tasks: each gets a temperature from them."),
    ] = None,
    features: Annotated[
        Path | None, typer.Option(help="Keep frozen features in this folder, for further runs and other methods.")
    ] = None,
    name: Annotated[str, typer.Option(help="What the files of the result are called.")] = "evaluation",
    title: Annotated[str, typer.Option(help="The headline of the report.")] = "Few-shot accuracy",
    processes: o.Processes = 1,
) -> None:
    """Few-shot accuracy for each data set with 95% intervals, several methods on the same tasks.

    Run again with the same folder it goes on where it stood, and more learners or tasks join what is there.

    Example: cnaps evaluate collections --model cnaps-lite0 --learners cnaps,logreg --out results/first
    """
    start_processes(processes, out)
    from cnaps.episodes import Limits
    from cnaps.paper.experiments.comparison import comparison_report
    from cnaps.paper.experiments.evaluation import TaskSet, compare

    collections = open_collections(data, None if manifest else split_of(split))
    if manifest:
        task_set = TaskSet.from_manifest(manifest, collections, tasks)
    else:
        most = max(max_ways, ways or 0)
        limits = Limits(min_ways=min(5, most), max_ways=most, max_context=max(max_context, most))
        options: dict[str, Any] = {
            "limits": limits,
            "seed": seed,
            "ways": ways,
            "shots": shots,
            "targets": targets,
        }
        task_set = TaskSet.draw(collections, split_of(split), tasks, **options)
    warn_of_seen(model, task_set)
    found = compare(
        model, names_of(learners), task_set, out, size=size, calibration=calibration, features=features
    )
    if found is None:
        return
    names = sorted(found["setup"]["data set"])
    found |= {"name": name, "title": title, "beside": "paper" if published else None}
    found |= {"unseen": unseen_sets(names, unseen, model), "against": against or label_of(learners)}
    finish(comparison_report(found), out)


def calibrate(
    model: Annotated[Path, typer.Argument(help="The folder of the model, whose config.json is changed.")],
    results: Annotated[Path, typer.Argument(help="A folder that `cnaps evaluate --split valid` wrote.")],
    learner: Annotated[str, typer.Option(help="Whose results to take, as --learners named it.")] = "cnaps",
) -> None:
    """Make a model's probabilities mean what they say: a temperature from ways and shots, by validation tasks.

    Take results of the model as it is now; what is found is added to the calibration that it has.

    Example: cnaps calibrate runs/phi/best results/valid
    """
    from cnaps.errors import DataError
    from cnaps.nn.checkpoints import load_model
    from cnaps.nn.saving import write_notes
    from cnaps.paper.experiments.scores import ScoreBook, fit_calibration

    book, own = ScoreBook(results), load_model(model)
    chosen = [score for score in book.read().values() if score.learner == learner]
    if not chosen:
        raise DataError(f"{results} has no results of {learner}")
    if book.setup.get("learner", {}).get(learner) != own.fingerprint():
        raise DataError(f"{results} has results of another model than {model}: evaluate this one first")
    old = own.notes.get("calibration", (0.0, 0.0, 0.0))
    found = [round(a + b, 4) for a, b in zip(old, fit_calibration(chosen), strict=True)]
    write_notes(model, {"calibration": found})
    a, b, c = found
    echo(f"{model}: log T = {a} + {b} log(ways) + {c} log(shots), from {len(chosen)} tasks")


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
    from cnaps.errors import InputError
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
    from cnaps.errors import DataError

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
