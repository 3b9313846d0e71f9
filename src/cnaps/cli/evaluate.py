"""``cnaps evaluate`` and ``cnaps learners``: methods on the same tasks."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from cnaps.data.collection import Collection

Data = Annotated[list[Path], typer.Argument(help="Collections, or folders that hold some.", metavar="DATA...")]


def register(app: typer.Typer) -> None:
    """Add the commands to the program."""
    app.command("evaluate")(evaluate)
    app.command("learners")(learners)


def learners() -> None:
    """List the methods that can be evaluated."""
    from cnaps.learners import list_learners

    for entry in list_learners():
        typer.echo(f"{entry.name:19}{'trained  ' if entry.trained else '         '}{entry.summary}")


def evaluate(
    data: Data,
    out: Annotated[Path, typer.Option(help="The folder of the results.")],
    model: Annotated[str, typer.Option(help="The model: a folder or a name; its backbone is everybody's.")],
    chosen: Annotated[
        str, typer.Option("--learners", help="Names, or name=folder for a method with a model of its own.")
    ] = "cnaps,logreg,protonet",
    split: Annotated[str, typer.Option(help="train, valid or test; 'all' takes every class.")] = "test",
    tasks: Annotated[int, typer.Option(min=1, help="Tasks of each data set.")] = 100,
    seed: Annotated[int, typer.Option(min=0, help="The same seed draws the same tasks, anywhere.")] = 0,
    manifest: Annotated[Path | None, typer.Option(help="Take the tasks from a manifest.")] = None,
    max_ways: Annotated[int, typer.Option(min=2, help="Most classes of a task.")] = 50,
    max_context: Annotated[int, typer.Option(min=2, help="Most context images of a task.")] = 500,
    ways: Annotated[int | None, typer.Option(min=2, help="A fixed number of classes.")] = None,
    shots: Annotated[int | None, typer.Option(min=1, help="A fixed number of context images a class.")] = None,
    targets: Annotated[int | None, typer.Option(min=1, help="A fixed number of targets a class.")] = None,
    unseen: Annotated[str, typer.Option(help="Data sets of which training saw nothing, by name.")] = "",
    against: Annotated[str | None, typer.Option(help="The learner to compare with; the first.")] = None,
    size: Annotated[int | None, typer.Option(min=16, help="The side of images; the model's if not given.")] = None,
    processes: Annotated[int, typer.Option(min=1, help="Processes on this machine.")] = 1,
) -> None:
    """Few-shot accuracy for each data set with 95% intervals, several methods on the same tasks.

    Run again with the same folder it goes on where it stood, and more learners or tasks join what is there.
    """
    if processes > 1 and "WORLD_SIZE" not in os.environ:
        from cnaps.training.distributed import launch

        raise typer.Exit(launch(processes))
    from cnaps.checkpoints import load_model
    from cnaps.episodes import Limits
    from cnaps.errors import InputError
    from cnaps.experiments import evaluation as run
    from cnaps.experiments.comparison import comparison_report
    from cnaps.experiments.scores import ScoreBook
    from cnaps.learners import FrozenFeatures, create_learner
    from cnaps.runtime import configure_threads

    configure_threads()
    collections = open_collections(data, None if split == "all" or manifest else split)
    names = {collection.name for collection in collections}
    unseen_names = _names(unseen)
    if set(unseen_names) - names:
        raise InputError(f"--unseen: no data set named {', '.join(sorted(set(unseen_names) - names))}")
    if manifest:
        task_set = run.TaskSet.from_manifest(manifest, collections, tasks)
    else:
        least = ways or 5
        limits = Limits(min_ways=min(5, max_ways), max_ways=max(max_ways, least), max_context=max_context)
        options = {"limits": limits, "seed": seed, "ways": ways, "shots": shots, "targets": targets}
        task_set = run.TaskSet.draw(collections, None if split == "all" else split, tasks, **options)
    base = load_model(model)
    side = size or base.image_size
    methods, identities = {}, {}
    for entry in _names(chosen):
        name, _, folder = entry.partition("=")
        own = load_model(folder) if folder else base
        methods[name], identities[name] = create_learner(name, own), own.fingerprint()
    against = against or next(iter(methods))
    world = run.join_world()
    book = ScoreBook(out, world.rank if world else 0)
    setup = {
        "tasks": {**task_set.protocol, "image size": side},
        "data set": {name: task_set.collections[name].fingerprint for name in task_set.tasks},
        "learner": identities,
    }
    merged = book.agree(setup, write=world is None or world.is_main)
    frozen = FrozenFeatures(base.backbone)
    scores = run.evaluate(methods, frozen, task_set, book, size=side, world=world)
    if world is None or world.is_main:
        known = list(merged["learner"])
        if against not in known:
            raise InputError(f"--against {against}: there are results of {', '.join(known)}")
        report = comparison_report(scores, known, unseen=unseen_names, against=against, setup=merged)
        paths = report.write(out)
        typer.echo(report.tables["evaluation"].markdown())
        typer.echo(f"{paths[0]}: tables, pictures and every score are beside it")
    if world is not None:
        world.close()


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
        raise DataError(f"no collection with a split {split!r} in {', '.join(map(str, data))}")
    return list(found.values())


def _names(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]
