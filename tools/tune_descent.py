"""How many steps, and how large, methods of gradient descent should take, on validation classes and domains.

    python tools/tune_descent.py OUT [METHOD ...] [--tasks 2] [--rates 1e-4,3e-4] [--steps 25,100,200]
                                 [--shots 5,25]
    python tools/results.py OUT/descent.json         (both: make descent)

Every method learns the same tasks of five ways with each rate, from prototypes on features of the last stage, and
is tested after so many steps on the way: with five images a class on data sets that have few, and with twenty-five
on those that have more, since what few images cannot bear many may need; with `--shots 90` on quickdraw alone.
Goes on where it stood.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cnaps.data.collection import Collection
from cnaps.episodes.task import flat_rows
from cnaps.files import write_json
from cnaps.nn.checkpoints import load_model
from cnaps.paper.experiments.evaluation import TaskSet
from cnaps.paper.experiments.reporting import provenance
from cnaps.paper.learners import Predictor
from cnaps.paper.learners.gradient import Descent, GradientLearner, all_layers, film_layers, residual_adapters

METHODS = {
    "finetune-tuned": (all_layers, ("1e-4", "3e-4", "1e-3")),
    "film-gradient-tuned": (film_layers, ("3e-3", "1e-2", "3e-2")),
    "residual-adapters": (residual_adapters, ("1e-4", "3e-4", "1e-3")),
}
FEW = ("tiny_imagenet", "quickdraw", "aerial-scenes", "plate-characters")
SHOTS = {5: FEW, 25: FEW[:2], 90: ("quickdraw",)}  # which data sets have so many
SIZE, WAYS, TARGETS = 96, 5, 10


def drawn(tasks: int, wanted: Sequence[int]) -> Iterator[tuple[str, Tensor, Tensor, Tensor, Tensor]]:
    """The name of each task, then images and labels of its context and of its targets."""
    for shots in wanted:
        collections = [Collection.open(f"collections/{name}") for name in SHOTS[shots]]
        options: dict[str, Any] = {"ways": WAYS, "shots": shots, "targets": TARGETS, "hierarchy": False}
        task_set = TaskSet.draw(collections, "valid", tasks, **options)
        for name, some in task_set.tasks.items():
            for described in some:
                (rows, labels), (asked, answers) = flat_rows(described.context), flat_rows(described.targets)
                images, targets = (
                    task_set.collections[name].read(some.tolist(), SIZE, threads=1) for some in (rows, asked)
                )
                known, truth = torch.from_numpy(labels), torch.from_numpy(answers)
                yield f"{name}, {shots} shots, task {described.index}", images, known, targets, truth


def followed(
    learner: GradientLearner, steps: Sequence[int], context: tuple[Tensor, Tensor], targets: tuple[Tensor, Tensor]
) -> dict[str, float]:
    """The accuracy on the targets after so many steps each."""
    scores: dict[str, float] = {}

    def watch(step: int, predictor: Predictor) -> None:
        if step in steps:
            right = predictor(targets[0]).argmax(1) == targets[1]
            scores[str(step)] = round(float(right.float().mean()), 4)

    learner.adapt(*context, watch)
    for step in steps:  # where learning ended early the network says the same of every image
        scores.setdefault(str(step), 1 / WAYS)
    return scores


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("methods", nargs="*", help=f"of {', '.join(METHODS)}")
    parser.add_argument("--tasks", type=int, default=2, help="of each data set and number of shots")
    parser.add_argument("--rates", help="those of the method, if not given")
    parser.add_argument("--steps", default="25,100,200")
    parser.add_argument("--shots", default="5,25", help=f"of {', '.join(map(str, SHOTS))}")
    o = parser.parse_intermixed_args()
    torch.set_num_threads(1)
    steps, shots = ([int(each) for each in given.split(",")] for given in (o.steps, o.shots))
    backbone, tasks = load_model("cnaps-lite0").backbone, list(drawn(o.tasks, shots))
    file = o.out / "descent.json"
    found: dict[str, Any] = json.loads(file.read_text())["accuracies"] if file.exists() else {}
    o.out.mkdir(parents=True, exist_ok=True)
    for method in o.methods or METHODS:
        part, rates = METHODS[method]
        for rate in o.rates.split(",") if o.rates else rates:
            mine = found.setdefault(method, {}).setdefault(rate, {})
            began = time.process_time()
            for name, images, labels, asked, answers in tasks:
                if name in mine:
                    continue
                learner = GradientLearner(method, backbone, part, Descent(steps[-1], float(rate), "prototypes"))
                mine[name] = followed(learner, steps, (images, labels), (asked, answers))
                setup = {"image size": SIZE, "ways": WAYS, "targets": TARGETS, "theta": backbone.digest()}
                made = provenance() | {"command": "make descent"}
                write_json(file, {"accuracies": found, "setup": setup, "made": made})
            means = {s: sum(mine[name][str(s)] for name, *_ in tasks) / len(tasks) for s in steps}
            print(method, rate, {s: round(100 * mean, 1) for s, mean in means.items()}, end=" ")
            print(f"{time.process_time() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
