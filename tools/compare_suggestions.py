"""Which images to label next: ways to choose them, on data sets that decide, as rows of a table.

    python tools/compare_suggestions.py COLLECTION[:SPLIT] ... [--images 5] [--iterations 6] [--seeds 6]

Accuracy on held-out images over the iterations and at their end, in percent, beside that of random choice.
`diverse by margin within 1` lets images count less that are nearer to a chosen one than usual. `--given-back 0`:
nothing is given to classes of few examples.
"""

from __future__ import annotations

import argparse
import re
from typing import Any

import numpy as np
import torch

from cnaps.bridge.engine import TorchEngine
from cnaps.data.collection import Collection
from cnaps.images.sizes import auto_size
from cnaps.maths import heads
from cnaps.nn.checkpoints import load_model
from cnaps.paper.experiments.active import Deal, Plan, panels
from cnaps.paper.experiments.scores import Estimate
from cnaps.runtime.suggest import CANDIDATES, choose, spread_out, uncertainty
from cnaps.runtime.task import Examples, FittedTask

WAYS = 12  # of a data set without groups of classes
STRATEGIES = (
    *("random", "entropy", "variation-ratio", "margin"),
    *("diverse by entropy within 4", "diverse by margin within 4", "diverse by margin within 1"),
    *("diverse by margin within 0.5", "diverse by margin within 0.25"),
)


def pick(probabilities: np.ndarray, features: np.ndarray, n: int, strategy: str, chance: Any) -> list[int]:
    """As `choose`, with other kinds of `diverse`."""
    found = re.fullmatch(r"diverse by (\S+) within (\S+)", strategy)
    if found is None:
        return choose(probabilities, features, n, strategy, seed=chance)
    scores = uncertainty(probabilities, found[1])
    most = np.argsort(-scores, kind="stable")[: CANDIDATES * n]
    return [int(most[i]) for i in spread_out(scores[most], features[most], n, float(found[2]))]


def curve(task: FittedTask, features: np.ndarray, deal: Deal, plan: Plan, strategy: str, seed: int) -> list[float]:
    """Accuracy after each iteration."""
    labels, found = deal.labels.numpy(), []
    chance = np.random.default_rng(seed)
    labelled, left = list(range(deal.start.stop)), list(range(deal.pool.start, deal.pool.stop))
    task = task.refit(features[labelled], labels[labelled])
    for _ in range(plan.iterations):
        rows = features[left]
        some = set(pick(task.probabilities(rows), rows, plan.images, strategy, chance))
        labelled += [left[i] for i in some]
        left = [row for i, row in enumerate(left) if i not in some]
        task = task.refit(features[labelled], labels[labelled])
        answers = task.probabilities(features[deal.targets]).argmax(1)
        found.append(float((answers == labels[deal.targets]).mean()))
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("collections", nargs="+")
    parser.add_argument("--model", default="cnaps-lite0")
    parser.add_argument("--images", type=int, default=5)
    parser.add_argument("--iterations", type=int, default=6)
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--given-back", type=float, default=heads._GIVEN_BACK)
    o = parser.parse_args()
    heads._GIVEN_BACK = o.given_back
    torch.set_num_threads(1)
    engine = TorchEngine(load_model(o.model))
    plan = Plan(iterations=o.iterations, images=o.images, pool=200)
    columns: dict[str, list[list[tuple[float, float]]]] = {}
    for place in o.collections:
        folder, _, split = place.partition(":")
        collection = Collection.open(folder)
        parts = panels(collection, split or None)
        held: dict[str, list[tuple[float, float]]] = {}
        for seed in range(o.seeds):
            for classes in parts.values():
                several = np.random.default_rng(seed).permutation(classes)[:WAYS] if len(parts) == 1 else classes
                deal = Deal.of(collection, [int(k) for k in several], plan, seed)
                size = auto_size(collection.looks(deal.rows.tolist()))
                pixels = collection.read(deal.rows.tolist(), size=size).numpy()
                task = FittedTask.learn(engine, Examples(pixels[deal.start], deal.labels[deal.start].tolist()))
                features = task.features(pixels)
                for strategy in STRATEGIES:
                    found = curve(task, features, deal, plan, strategy, seed)
                    held.setdefault(strategy, []).append((float(np.mean(found)), found[-1]))
        for strategy, rows in held.items():
            columns.setdefault(strategy, []).append(rows)
        print(place, len(next(iter(held.values()))), flush=True)
    print("| chosen by | mean | over random | end | over random |\n| --- | ---: | ---: | ---: | ---: |")
    for strategy, mine in columns.items():
        cells = [strategy]
        for at in (0, 1):
            own = [Estimate.of([row[at] for row in rows]) for rows in mine]
            over = [
                Estimate.of([a[at] - b[at] for a, b in zip(rows, their, strict=True)])
                for rows, their in zip(mine, columns["random"], strict=True)
            ]
            cells += [f"{100 * Estimate.average(own).mean:.1f}", Estimate.average(over).signed]
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
