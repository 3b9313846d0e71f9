"""Seconds that each method of docs/results/methods.md takes for a task, on one thread.

    python -m benchmarks.methods [METHOD ...]

prints the rows of the table in docs/paper.md, in the mean over a few tasks: to adapt to a task of cifar10 and
predict its targets, and to learn from a training task. Needs the collections of `make published-collections`.
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path

import torch

from cnaps.data.collection import Collection
from cnaps.episodes import Limits, Sampler, load_task
from cnaps.paper.learners import create_learner, find_learner
from cnaps.training.config import TrainConfig
from cnaps.training.distributed import World
from cnaps.training.episodic import EpisodicJob
from cnaps.training.settings import apply_changes, build, read_settings
from cnaps.training.start import build_model

METHODS = (
    *(
        "cnaps",
        "cnaps-no-ar",
        "cnaps-no-film",
        "cnaps-linear",
        "simple-cnaps",
        "protonet",
        "matchingnet",
        "logreg",
    ),
    *(
        "protonet-trained",
        "matchingnet-trained",
        "finetune",
        "finetune-tuned",
        "finetune-long",
        "film-gradient",
        "film-gradient-tuned",
    ),
    *("residual-adapters", "residual-adapters-trained", "fomaml", "proto-maml", "versa"),
)
CONFIG = Path("configs/comparison.toml")
LIMITS = Limits(min_ways=5, max_ways=10, max_context=50, max_targets_per_class=5)
TASKS = 3


def main() -> None:
    """Print a row a method."""
    torch.set_num_threads(1)
    if not Path("collections/published").is_dir():
        print("skipped: there are no collections (`make published-collections` makes them)")
        return
    cifar = Collection.open("collections/cifar10")
    sampler = Sampler([cifar], "test", limits=LIMITS, seed=0)
    tasks = [load_task(sampler.describe(i), {cifar.name: cifar}, 64) for i in range(TASKS)]
    context, targets = (sum(map(len, some)) / TASKS for some in zip(*[
        (task.context_labels, task.target_labels) for task in tasks
    ], strict=True))  # fmt: skip
    print(f"tasks of cifar10: {context:.0f} context images and {targets:.0f} targets in the mean\n")
    print("| method | to adapt and predict, s | to train on, s |\n| --- | ---: | ---: |")
    for name in [each for each in sys.argv[1:] if each in METHODS] or METHODS:
        learner = find_learner(name)
        theta = [f'theta.{key}="{value}"' for key, value in learner.theta.items()]
        own = [f'learner="{name}"' if learner.trained else 'learner="cnaps"', *theta]
        config = build(TrainConfig, apply_changes(read_settings(CONFIG), own))
        model = build_model(config)
        method = create_learner(name, model)
        seconds = 0.0
        for task in tasks:
            began = time.perf_counter()
            method.adapt(task.context_images, task.context_labels)(task.target_images)
            seconds += time.perf_counter() - began
        trained = f"{_training(config):.2f}" if learner.trained else ""
        print(f"| `{name}` | {seconds / TASKS:.2f} | {trained} |", flush=True)


def _training(config: TrainConfig) -> float:
    """Seconds to learn from a training task, the mean over a few."""
    config = replace(config, tasks=replace(config.tasks, total=2 * TASKS))
    job = EpisodicJob(build_model(config), config, World(device="cpu"))
    torch.set_num_threads(1)  # as many as a world takes are of no use for a mean of one core
    job.step(0, lambda: False)
    began = time.perf_counter()
    for step in range(1, TASKS):
        job.step(step, lambda: False)
    seconds = (time.perf_counter() - began) / (config.tasks.per_step * (TASKS - 1))
    job.close()
    return seconds


if __name__ == "__main__":
    main()
