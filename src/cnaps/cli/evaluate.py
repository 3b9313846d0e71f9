"""``cnaps evaluate``, ``calibrate`` and ``learners``: methods on the same tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from cnaps.cli import options as o
from cnaps.cli.common import command, echo
from cnaps.errors import DataError


@command()
def evaluate(
    at: o.Experiment,
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
    o.start_processes(processes, at.out)
    from cnaps.episodes import Limits
    from cnaps.paper.experiments.comparison import comparison_report
    from cnaps.paper.experiments.evaluation import TaskSet, compare

    collections = o.open_collections(at.data, None if manifest else o.split_of(split))
    if manifest:
        task_set = TaskSet.from_manifest(manifest, collections, tasks)
    else:
        most = max(max_ways, ways or 0)
        limits = Limits(min_ways=min(5, most), max_ways=most, max_context=max(max_context, most))
        drawn: dict[str, Any] = {"seed": seed, "ways": ways, "shots": shots, "targets": targets}
        task_set = TaskSet.draw(collections, o.split_of(split), tasks, limits=limits, **drawn)
    o.warn_of_seen(at.model, task_set)
    found = compare(
        at.model, o.names_of(learners), task_set, at.out, size=size, calibration=calibration, features=features
    )
    if found is None:
        return
    names = sorted(found["setup"]["data set"])
    found |= {"name": name, "title": title, "beside": "paper" if published else None}
    found |= {"unseen": o.unseen_sets(names, unseen, at.model), "against": against or o.label_of(learners)}
    o.finish(comparison_report(found), at.out)


@command()
def calibrate(
    model: Annotated[Path, typer.Argument(help="The folder of the model, whose config.json is changed.")],
    results: Annotated[Path, typer.Argument(help="A folder that `cnaps evaluate --split valid` wrote.")],
    learner: Annotated[str, typer.Option(help="Whose results to take, as --learners named it.")] = "cnaps",
) -> None:
    """Make a model's probabilities mean what they say: a temperature from ways and shots, by validation tasks.

    Take results of the model as it is now; what is found is added to the calibration that it has.

    Example: cnaps calibrate runs/phi/best results/valid
    """
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


@command("learners")
def list_learners() -> None:
    """List the methods; those marked trained need a model of `cnaps train --learner NAME`."""
    from cnaps.paper import learners

    for entry in learners.list_learners():
        echo(f"{entry.name:19}{'trained  ' if entry.trained else '         '}{entry.summary}")
