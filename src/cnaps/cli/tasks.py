"""``cnaps tasks``: draw tasks from collections, write them down, look at them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cnaps.cli import common
from cnaps.cli import options as o
from cnaps.cli.common import app, command, echo
from cnaps.errors import InputError
from cnaps.files import check_output
from cnaps.progress import track

tasks = typer.Typer(no_args_is_help=True, help="Draw few-shot tasks from collections, and look at them.")


app.add_typer(tasks, name="tasks")


@command(of=tasks)
def sample(
    data: o.Data,
    out: Annotated[Path, typer.Option(help="The manifest to write (JSON lines), e.g. tasks.jsonl.")],
    count: Annotated[int, typer.Option("--tasks", help="How many tasks.", min=1)] = 600,
    split: o.Split = "test",
    seed: o.Seed = 0,
    ways: o.Ways = None,
    shots: o.Shots = None,
    targets: o.Targets = None,
    training: Annotated[bool, typer.Option("--training", help="At most 40 ways and 400 context images.")] = False,
    flat: Annotated[bool, typer.Option("--flat", help="Mix alphabets, and classes of all of WordNet.")] = False,
    force: common.Force = False,
) -> None:
    """Draw tasks by Meta-Dataset's protocol and write the names of their images to a manifest.

    Example: cnaps tasks sample collections/cu_birds --tasks 600 --out birds.jsonl
    """
    from cnaps.episodes import TEST_LIMITS, TRAIN_LIMITS, Sampler, write_manifest

    check_output(out, inputs=data, force=force)
    collections = {each.name: each for each in o.open_collections(data, None)}
    sampler = Sampler(
        list(collections.values()),
        o.split_of(split),
        limits=TRAIN_LIMITS if training else TEST_LIMITS,
        seed=seed,
        ways=ways,
        shots=shots,
        targets=targets,
        hierarchy=not flat,
    )
    drawn = [sampler.describe(index) for index in range(count)]
    write_manifest(out, track(drawn, "writing tasks"), collections, sampler.protocol)
    echo(f"{out}: {count} tasks of the split {split}, seed {seed}; on average:")
    for name in sorted(collections):
        some = [described for described in drawn if described.collection == name]
        sizes = [(each.ways, each.context_size, each.target_size) for each in some]
        mean = [sum(column) / len(some) for column in zip(*sizes, strict=True)] or [0.0] * 3
        echo(f"  {name}, {len(some)} tasks: {mean[0]:.1f} ways, {mean[1]:.0f} context, {mean[2]:.0f} targets")


@command(of=tasks)
def show(
    data: o.Data,
    out: Annotated[Path, typer.Option(help="The picture to write (PNG).")] = Path("task.png"),
    manifest: Annotated[Path | None, typer.Option(help="A file of `cnaps tasks sample` to take it from.")] = None,
    task: Annotated[int, typer.Option(help="The number of the task.", min=0)] = 0,
    split: o.Split = "test",
    seed: o.Seed = 0,
    force: common.Force = False,
) -> None:
    """Draw a task as a picture: a band for each class, its context on the left, its targets on the right.

    Example: cnaps tasks show collections/cu_birds --task 3 --out task.png
    """
    from cnaps.episodes import Sampler, load_task, read_manifest
    from cnaps.episodes.drawing import draw_task
    from cnaps.images.decoding import write_png

    check_output(out, (".png",), inputs=[*data, *([manifest] if manifest else [])], force=force)
    collections = {each.name: each for each in o.open_collections(data, None)}
    if manifest is None:
        sampler = Sampler(list(collections.values()), o.split_of(split), seed=seed)
        described = sampler.describe(task)
    else:
        known = {each.index: each for each in read_manifest(manifest, collections)}
        if task not in known:
            raise InputError(f"{manifest} has no task {task}, but {len(known)} others")
        described = known[task]
    write_png(out, draw_task(load_task(described, collections)))
    echo(
        f"{out}: task {task}, of {described.collection}: {described.ways} ways, "
        f"{described.context_size} context and {described.target_size} target images"
    )
