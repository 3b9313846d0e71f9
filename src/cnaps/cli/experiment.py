"""``cnaps experiment``: the paper's experiments, one command each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from cnaps.cli.evaluate import (
    Data,
    finish,
    label_of,
    names_of,
    open_collections,
    start_processes,
    unseen_sets,
    warn_of_seen,
)

app = typer.Typer(no_args_is_help=True, help="Run an experiment of the paper and write its tables and pictures.")

Out = Annotated[Path, typer.Option(help="The folder of the results.")]
Model = Annotated[str, typer.Option(help="The model: a folder or a name; its backbone is everybody's.")]
Split = Annotated[str, typer.Option(help="train, valid or test; 'all' takes every class.")]
Tasks = Annotated[int, typer.Option(min=1, help="Tasks of each data set.")]
Most = Annotated[int, typer.Option(min=2, help="At most so many.")]
Processes = Annotated[int, typer.Option(min=1, help="Processes on this machine.")]
Chosen = Annotated[str, typer.Option("--learners", help="Names; name=FOLDER for models of their own.")]

COMPARISONS = {  # learners, title, how the models are made
    "ablation": (
        "cnaps,cnaps-no-ar,cnaps-no-film",
        "Ablation: with z_AR, without it, without FiLM",
        "Models come from `cnaps train --learner NAME` with the same settings.",
    ),
    "joint": (
        "cnaps@two-stage,cnaps@joint,cnaps@warm-start",
        "Joint against two-stage training",
        "Models come from `cnaps train` with theta.mode frozen, joint and warm-start.",
    ),
    "adapters": (
        "cnaps,film-gradient-tuned,residual-adapters",
        "FiLM against residual adapters",
        "FiLM has 2 C numbers a layer, a parallel 1x1 convolution C^2.",
    ),
}


def register(root: typer.Typer) -> None:
    """Add the commands to the program."""
    for name, (chosen, title, text) in COMPARISONS.items():
        app.command(name, help=f"{title}. {text}")(_comparison(name, chosen, title, text))
    root.add_typer(app, name="experiment")


def _comparison(name: str, default: str, title: str, text: str) -> Callable[..., None]:
    def command(
        data: Data,
        out: Out,
        model: Model,
        chosen: Chosen = default,
        split: Split = "test",
        tasks: Tasks = 100,
        max_ways: Most = 50,
        max_context: Most = 500,
        processes: Processes = 1,
    ) -> None:
        start_processes(processes, out)
        from cnaps.episodes import Limits
        from cnaps.nn.checkpoints import load_model
        from cnaps.paper.experiments.comparison import adapter_rows, comparison_report
        from cnaps.paper.experiments.evaluation import TaskSet, compare

        most = min(max_ways, max_context)
        limits = Limits(min_ways=min(5, most), max_ways=most, max_context=max_context)
        collections = open_collections(data, None if split == "all" else split)
        task_set = TaskSet.draw(collections, None if split == "all" else split, tasks, limits=limits)
        warn_of_seen(model, task_set)
        found = compare(model, names_of(chosen), task_set, out)
        if found is not None:
            found |= {"name": name, "title": title, "note": text, "against": label_of(chosen)}
            found |= {"unseen": unseen_sets(sorted(found["setup"]["data set"]), None, model)}
            if name == "adapters":
                found |= {"parameters": adapter_rows(load_model(model).backbone)}
            finish(comparison_report(found), out)

    return command


@app.command()
def speed(
    data: Data,
    out: Out,
    model: Model,
    chosen: Chosen = "cnaps,film-gradient,finetune-tuned",
    shots: Annotated[str, typer.Option(help="Numbers of shots.")] = "1,2,5,10,15,20,25",
    split: Split = "test",
    tasks: Tasks = 25,
) -> None:
    """Accuracy against time, 5 ways, 1 to 25 shots: one forward pass against gradient steps."""
    start_processes(1, out)
    from cnaps.nn.checkpoints import load_model
    from cnaps.paper.experiments.evaluation import load_learners
    from cnaps.paper.experiments.speed import measure_speed, speed_report

    base = load_model(model)
    learners, identities = load_learners(names_of(chosen), base)
    counts = [int(part) for part in names_of(shots)]
    where = None if split == "all" else split
    options = {"split": where, "shots": counts, "tasks": tasks, "size": base.image_size}
    found = open_collections(data, where)
    measured = measure_speed(learners, identities, base.backbone, found, out, **options)  # type: ignore[arg-type]
    finish(speed_report(measured), out)


@app.command()
def shots(
    data: Data,
    out: Out,
    model: Model,
    chosen: Chosen = "cnaps,logreg,finetune-tuned",
    axes: Annotated[str, typer.Option(help="Of shots, ways and imbalance.")] = "shots,ways,imbalance",
    split: Split = "test",
    tasks: Tasks = 25,
    unseen: Annotated[
        str | None, typer.Option(help="Data sets that training saw nothing of; as the model notes it.")
    ] = None,
) -> None:
    """Accuracy against shots (1 to 100), ways (2 to 50) and imbalance, on seen and unseen data sets.

    Run again with the same folder it goes on where it stood.
    """
    start_processes(1)
    from cnaps.errors import InputError
    from cnaps.nn.checkpoints import load_task_model
    from cnaps.paper.experiments.evaluation import load_learners
    from cnaps.paper.experiments.sizes import POINTS, measure_sizes, sizes_report

    for axis in names_of(axes):
        if axis not in POINTS:
            raise InputError(f"--axes: no axis named {axis!r}; there are: {', '.join(POINTS)}")
    base = load_task_model(model)
    learners, identities = load_learners(names_of(chosen), base)
    where = None if split == "all" else split
    found = open_collections(data, where)
    measured = measure_sizes(
        learners,
        identities,
        base.backbone,
        found,
        out,
        split=where,
        points={axis: POINTS[axis] for axis in names_of(axes)},
        tasks=tasks,
        size=base.image_size,
        unseen=unseen_sets([each.name for each in found], unseen, model),
    )
    finish(sizes_report(measured), out)


@app.command("design-space")
def design_space(
    data: Data,
    out: Out,
    model: Model,
    chosen: Chosen = "cnaps,protonet,matchingnet,logreg,film-gradient,residual-adapters,finetune-tuned",
    split: Split = "test",
    tasks: Tasks = 3,
) -> None:
    """Task-specific parameters against the cost of adaptation, measured for each method."""
    start_processes(1, out)
    from cnaps.nn.checkpoints import load_model
    from cnaps.paper.experiments.evaluation import load_learners
    from cnaps.paper.experiments.speed import design_space_report, measure_costs

    where = None if split == "all" else split
    first = open_collections(data, where)[0]
    base = load_model(model)
    learners, identities = load_learners(names_of(chosen), base)
    measured = measure_costs(learners, identities, first, split=where, tasks=tasks, size=base.image_size)
    finish(design_space_report(measured), out)


@app.command()
def embeddings(data: Data, out: Out, model: Model, split: Split = "test", tasks: Tasks = 30) -> None:
    """t-SNE of z_G and of the first and last FiLM layer over tasks, coloured by data set, with silhouettes."""
    start_processes(1, out)
    from cnaps.episodes import Limits
    from cnaps.nn.checkpoints import load_model
    from cnaps.paper.experiments.embeddings import embed_tasks, embeddings_report
    from cnaps.paper.experiments.evaluation import TaskSet

    where = None if split == "all" else split
    base = load_model(model)
    limits = Limits(max_ways=10, max_context=60)
    task_set = TaskSet.draw(open_collections(data, where), where, tasks, limits=limits)
    finish(embeddings_report(embed_tasks(base, task_set, size=base.image_size)), out)


@app.command()
def active(
    data: Data,
    out: Out,
    model: Model,
    chosen: Chosen = "cnaps,protonet",
    strategies: Annotated[str, typer.Option(help="Besides random.")] = "entropy,variation-ratio,margin",
    seeds: Annotated[int, typer.Option(min=1, help="Starts of each panel.")] = 10,
    iterations: Annotated[int, typer.Option(min=1, help="How often to choose.")] = 30,
    images: Annotated[int, typer.Option(min=1, help="Labels bought in an iteration.")] = 1,
    start: Annotated[int, typer.Option(min=1, help="Labels of each class to begin with.")] = 1,
    split: Split = "test",
) -> None:
    """Active learning: accuracy against labels bought, by strategy, a panel an alphabet or data set.

    FiLM is made from the first labels and then stays. Run again to go on where it was interrupted.
    """
    start_processes(1, out)
    from cnaps.nn.checkpoints import load_model
    from cnaps.paper.experiments.active import Plan, active_report, active_runs
    from cnaps.paper.experiments.evaluation import load_learners
    from cnaps.paper.learners import FrozenFeatures
    from cnaps.runtime.suggest import check_strategy

    plan = Plan(tuple(map(check_strategy, names_of(strategies))), iterations, images, start)
    base = load_model(model)
    learners, identities = load_learners(names_of(chosen), base)
    where = None if split == "all" else split
    options = {"split": where, "seeds": seeds, "size": base.image_size, "plan": plan}
    found = open_collections(data, where)
    frozen = FrozenFeatures(base.backbone, every_stage=True)
    finish(active_report(active_runs(learners, identities, frozen, found, out, **options)), out)  # type: ignore[arg-type]


@app.command()
def trust(
    data: Data,
    out: Out,
    model: Model,
    split: Split = "test",
    tasks: Tasks = 20,
    max_ways: Most = 20,
    max_context: Most = 100,
) -> None:
    """Calibration before and after, images of no class, and flipped labels found, on the same tasks.

    Run again to go on where it was interrupted.
    """
    start_processes(1, out)
    from cnaps.episodes import Limits
    from cnaps.nn.checkpoints import load_model
    from cnaps.paper.experiments.evaluation import TaskSet
    from cnaps.paper.experiments.trust import trust_report, trust_runs

    where = None if split == "all" else split
    base = load_model(model)
    most = min(max_ways, max_context)
    limits = Limits(min_ways=min(5, most), max_ways=most, max_context=max_context)
    task_set = TaskSet.draw(open_collections(data, where), where, tasks, limits=limits)
    finish(trust_report(trust_runs(base, task_set, out, split=where)), out)


@app.command()
def continual(
    data: Annotated[Path, typer.Option(help="The collection.")],
    out: Out,
    benchmark: Annotated[str, typer.Option(help="split-mnist, -cifar10, -cifar100 or -collection.")],
    methods: Annotated[str, typer.Option(help="Names of methods.")] = "cnaps-fixed,cnaps-paper",
    model: Annotated[str, typer.Option(help="The model: a folder or a name.")] = "cnaps-lite0",
    head: Annotated[str, typer.Option(help="Show multi, single or both; both are measured.")] = "both",
    shots: Annotated[str, typer.Option(help="Training images a class; 'all'.")] = "1,5,10,25,100,all",
    runs: Annotated[int, typer.Option(min=1, help="Streams.")] = 30,
    tests: Annotated[int, typer.Option(min=1, help="Most test images a class.")] = 1000,
    classes: Annotated[int | None, typer.Option(min=1, help="Classes a step; as the benchmark has it.")] = None,
    iterations: Annotated[int, typer.Option(min=1, help="Training steps of a network, for each step.")] = 300,
) -> None:
    """Classes arrive in steps: accuracy after each, forgetting and drift, beside methods that train a network.

    Run again with the same folder it goes on where it stood, and more methods, shots or runs join what is there.
    """
    start_processes(1, out)
    from cnaps.data.collection import Collection
    from cnaps.errors import InputError
    from cnaps.nn.checkpoints import load_model
    from cnaps.paper.experiments.continual import HEADS, continual_report, run_continual

    chosen = names_of(methods)
    if head not in (*HEADS, "both"):
        raise InputError(f"--head takes multi, single or both, not {head!r}")
    counts: list[int | None] = []
    for part in names_of(shots):
        if part != "all" and not (part.isdigit() and int(part)):
            raise InputError(f"--shots takes numbers and 'all', not {part!r}")
        counts.append(None if part == "all" else int(part))
    found = run_continual(
        benchmark,
        Collection.open(data),
        out,
        methods=chosen,
        shots=counts,
        runs=runs,
        tests=tests,
        iterations=iterations,
        classes=classes,
        model=load_model(model) if any(name.startswith("cnaps-") for name in chosen) else None,
    )
    finish(continual_report(found, HEADS if head == "both" else [head]), out)
