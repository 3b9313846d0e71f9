"""``cnaps experiment``: the paper's experiments, one command each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cnaps.cli import options as o
from cnaps.cli.common import app as root
from cnaps.cli.common import command
from cnaps.errors import InputError

if TYPE_CHECKING:
    from cnaps.nn.model import CNAPs
    from cnaps.paper.experiments.evaluation import Study, TaskSet

app = typer.Typer(no_args_is_help=True, help="Run an experiment of the paper and write its tables and pictures.")
root.add_typer(app, name="experiment")

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


def _comparison(name: str, default: str, title: str, text: str) -> Callable[..., None]:
    def run(
        at: o.Experiment,
        learners: o.Learners = default,
        split: o.Split = "test",
        tasks: o.Tasks = 100,
        max_ways: o.MaxWays = 50,
        max_context: o.MaxContext = 500,
        processes: o.Processes = 1,
    ) -> None:
        o.start_processes(processes, at.out)
        from cnaps.nn.checkpoints import load_model
        from cnaps.paper.experiments.comparison import adapter_rows, comparison_report
        from cnaps.paper.experiments.evaluation import compare

        task_set = _draw(at.data, split, tasks, (max_ways, max_context))
        o.warn_of_seen(at.model, task_set)
        found = compare(at.model, o.names_of(learners), task_set, at.out)
        if found is not None:
            found |= {"name": name, "title": title, "note": text, "against": o.label_of(learners)}
            found |= {"unseen": o.unseen_sets(sorted(found["setup"]["data set"]), None, at.model)}
            if name == "adapters":
                found |= {"parameters": adapter_rows(load_model(at.model).backbone)}
            o.finish(comparison_report(found), at.out)

    return run


def _draw(data: list[Path], split: str, tasks: int, most: tuple[int, int]) -> TaskSet:
    from cnaps.paper.experiments.evaluation import TaskSet

    where = o.split_of(split)
    return TaskSet.draw(o.open_collections(data, where), where, tasks, most=most)


def _study(at: o.Experiment, learners: str, split: str, size: int | None = None) -> Study:
    """What an experiment on stored results needs, in one process."""
    o.start_processes(1, at.out)
    from cnaps.paper.experiments.evaluation import Study

    where = o.split_of(split)
    found = o.open_collections(at.data, where)
    return Study.open(at.model, o.names_of(learners), found, where, at.out, size)


def _model(at: o.Experiment) -> CNAPs:
    o.start_processes(1, at.out)
    from cnaps.nn.checkpoints import load_model

    return load_model(at.model)


@command(of=app)
def speed(
    at: o.Experiment,
    learners: o.Learners = "cnaps,film-gradient,finetune-tuned",
    shots: Annotated[str, typer.Option(help="Context images a class, with commas.")] = "1,2,5,10,15,20,25",
    split: o.Split = "test",
    tasks: o.Tasks = 25,
    size: o.Size = None,
) -> None:
    """Accuracy against time, 5 ways, 1 to 25 shots: one forward pass against gradient steps.

    Example: cnaps experiment speed collections --model cnaps-lite0 --out results/speed
    """
    study = _study(at, learners, split, size)
    from cnaps.paper.experiments.speed import measure_speed, speed_report

    counts = [count for count in _shots(shots) if count is not None]
    o.finish(speed_report(measure_speed(study, shots=counts, tasks=tasks)), at.out)


@command(of=app)
def shots(
    at: o.Experiment,
    learners: o.Learners = "cnaps,logreg,finetune-tuned",
    axes: Annotated[
        str, typer.Option(help="What to vary, with commas: shots, ways, imbalance.")
    ] = "shots,ways,imbalance",
    split: o.Split = "test",
    tasks: o.Tasks = 25,
    unseen: o.Unseen = None,
    size: o.Size = None,
) -> None:
    """Accuracy against shots (1 to 100), ways (2 to 50) and imbalance, on seen and unseen data sets.

    Run again with the same folder it goes on where it stood.

    Example: cnaps experiment shots collections --model cnaps-lite0 --out results/shots
    """
    study = _study(at, learners, split, size)
    from cnaps.paper.experiments.sizes import measure_sizes, sizes_report

    new = o.unseen_sets([each.name for each in study.collections], unseen, at.model)
    o.finish(sizes_report(measure_sizes(study, axes=o.names_of(axes), tasks=tasks, unseen=new)), at.out)


@command("design-space", of=app)
def design_space(
    at: o.Experiment,
    learners: o.Learners = "cnaps,protonet,matchingnet,logreg,film-gradient,residual-adapters,finetune-tuned",
    split: o.Split = "test",
    tasks: o.Tasks = 3,
) -> None:
    """Task-specific parameters against the cost of adaptation, measured for each method on the first data set.

    Example: cnaps experiment design-space collections/cu_birds --model cnaps-lite0 --out results/design
    """
    study = _study(at, learners, split)
    from cnaps.paper.experiments.speed import design_space_report, measure_costs

    o.finish(design_space_report(measure_costs(study, tasks=tasks)), at.out)


@command(of=app)
def embeddings(at: o.Experiment, split: o.Split = "test", tasks: o.Tasks = 30) -> None:
    """t-SNE of z_G and of the first and last FiLM layer over tasks, coloured by data set, with silhouettes.

    Example: cnaps experiment embeddings collections --model cnaps-lite0 --out results/embeddings
    """
    base = _model(at)
    from cnaps.paper.experiments.embeddings import embed_tasks, embeddings_report

    task_set = _draw(at.data, split, tasks, (10, 60))
    o.finish(embeddings_report(embed_tasks(base, task_set, size=base.image_size)), at.out)


@command(of=app)
def active(
    at: o.Experiment,
    learners: o.Learners = "cnaps,protonet",
    strategies: Annotated[
        str, typer.Option(help="How images are chosen, with commas, beside random choice.")
    ] = "entropy,variation-ratio,margin",
    seeds: Annotated[int, typer.Option(min=1, help="How often each panel is begun anew.")] = 10,
    iterations: Annotated[int, typer.Option(min=1, help="How often images are chosen.")] = 30,
    images: Annotated[int, typer.Option(min=1, help="Images labelled in an iteration.")] = 1,
    start: Annotated[int, typer.Option(min=1, help="Labels of each class to begin with.")] = 1,
    split: o.Split = "test",
    size: o.Size = None,
) -> None:
    """Active learning: accuracy against labels bought, by strategy, a panel an alphabet or data set.

    FiLM is made from the first labels and then stays. Run again to go on where it was interrupted.

    Example: cnaps experiment active collections --model cnaps-lite0 --out results/active
    """
    study = _study(at, learners, split, size)
    from cnaps.paper.experiments.active import Plan, active_report, active_runs
    from cnaps.runtime.suggest import check_strategy

    plan = Plan(tuple(map(check_strategy, o.names_of(strategies))), iterations, images, start)
    o.finish(active_report(active_runs(study, plan, seeds=seeds)), at.out)


@command(of=app)
def trust(
    at: o.Experiment,
    split: o.Split = "test",
    tasks: o.Tasks = 20,
    max_ways: o.MaxWays = 20,
    max_context: o.MaxContext = 100,
) -> None:
    """Calibration before and after, images of no class, and flipped labels found, on the same tasks.

    Run again to go on where it was interrupted.

    Example: cnaps experiment trust collections --model cnaps-lite0 --out results/trust
    """
    base = _model(at)
    from cnaps.paper.experiments.trust import trust_report, trust_runs

    task_set = _draw(at.data, split, tasks, (max_ways, max_context))
    o.finish(trust_report(trust_runs(base, task_set, at.out, split=o.split_of(split))), at.out)


@command(of=app)
def continual(
    data: Annotated[Path, typer.Option(help="The collection, e.g. collections/mnist.")],
    out: o.Out,
    benchmark: Annotated[
        str,
        typer.Option(
            help="How classes arrive: split-mnist, split-cifar10, split-cifar100, or split-collection for any "
            "other, 20 classes a step."
        ),
    ],
    methods: Annotated[
        str,
        typer.Option(
            help="With commas: cnaps-fixed (FiLM of the first step stays), cnaps-paper (FiLM is made anew), and "
            "networks that train: si, ewc, vcl, vcl-coreset, rwalk, finetune, joint. NAME@features: the same, and "
            "class-means and ridge, on features of the model's backbone as it is."
        ),
    ] = "cnaps-fixed,cnaps-paper",
    model: Annotated[
        str, typer.Option(help="A model's folder or name, for cnaps methods and features.")
    ] = "cnaps-lite0",
    head: Annotated[
        str,
        typer.Option(help="multi (a choice among a step's classes), single (among all so far) or both."),
    ] = "both",
    shots: Annotated[
        str, typer.Option(help="Training images a class, with commas; all takes every image.")
    ] = "1,5,10,25,100,all",
    runs: Annotated[int, typer.Option(min=1, help="Random streams of classes and images.")] = 30,
    tests: Annotated[int, typer.Option(min=1, help="Most test images a class.")] = 1000,
    classes: Annotated[int | None, typer.Option(min=1, help="Classes a step, if not the benchmark's.")] = None,
    iterations: Annotated[int, typer.Option(min=1, help="Training steps of a network, for each step.")] = 300,
    size: o.Size = None,
) -> None:
    """Classes arrive in steps: accuracy after each, forgetting and drift, beside methods that train a network.

    Run again with the same folder it goes on where it stood, and more methods, shots or runs join what is there.

    Example: cnaps experiment continual --data collections/mnist --benchmark split-mnist --out results/mnist
    """
    o.start_processes(1, out)
    from cnaps.data.collection import Collection
    from cnaps.nn.checkpoints import load_model
    from cnaps.paper.experiments.continual import HEADS, Trials, continual_report, run_continual

    if head not in (*HEADS, "both"):
        raise InputError(f"--head takes multi, single or both, not {head!r}")
    trials = Trials(o.names_of(methods), _shots(shots), runs, tests, iterations, classes, size)
    asked = any(name.startswith("cnaps-") or name.endswith("@features") for name in trials.methods)
    base = load_model(model) if asked else None
    found = run_continual(benchmark, Collection.open(data), out, trials, base)
    o.finish(continual_report(found, HEADS if head == "both" else [head]), out)


def _shots(text: str) -> list[int | None]:
    """Numbers with commas; None for `all`."""
    for part in o.names_of(text):
        if part != "all" and not (part.isdigit() and int(part)):
            raise InputError(f"--shots takes numbers and 'all', not {part!r}")
    return [None if part == "all" else int(part) for part in o.names_of(text)]


for _name, (_learners, _title, _text) in COMPARISONS.items():
    _example = f"cnaps experiment {_name} collections --model runs/phi/best --out results/{_name}"
    _run = _comparison(_name, _learners, _title, _text)
    command(_name, of=app, help=f"{_title}. {_text}\n\nExample: {_example}")(_run)
