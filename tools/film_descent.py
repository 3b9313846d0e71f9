"""What gradient steps on a task's own examples would add to the FiLM that the generators make for it.

    python tools/film_descent.py OUT.jsonl COLLECTION ... [--shots 10] [--steps 15] [--rate 1e-3] [--tasks 6]

Each step learns from a random part of a task's examples and is judged on the others, so nothing is used but what
a person gives. Prints a table in Markdown: accuracy in percent with the FiLM of one pass, and after the steps.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path

import numpy as np
import torch
from film_bound import TARGETS, Bench, Task
from torch import Tensor
from torch.nn import functional as F

from cnaps.nn.checkpoints import load_model
from cnaps.paper.experiments.scores import Estimate
from cnaps.training.tasks import open_collections

GIVEN = 0.6  # of the examples of a class are learned from in a step


def descend(bench: Bench, task: Task, start: Tensor, steps: int, rate: float) -> Tensor:
    """FiLM after some steps of Adam on a task's own examples."""
    images, labels = task[0], task[1]
    vector = start.clone().requires_grad_()
    optimiser = torch.optim.Adam([vector], rate)
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        order = torch.randperm(len(labels), generator=generator)
        classes = [order[labels[order] == k] for k in range(int(labels.max()) + 1)]
        given = torch.cat([rows[: round(GIVEN * len(rows))] for rows in classes])
        asked = torch.cat([rows[round(GIVEN * len(rows)) :] for rows in classes])
        part = (images[given], labels[given], images[asked], labels[asked])
        loss = F.cross_entropy(bench.logits(part, vector, learn=True), labels[asked])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return vector.detach()


def main() -> None:
    """Descend, ask, print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("collections", nargs="+")
    parser.add_argument("--model", default="cnaps-lite0")
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--shots", type=int, default=10)
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--tasks", type=int, default=6)
    o = parser.parse_args()
    torch.set_num_threads(1)
    bench = Bench(load_model(o.model).requires_grad_(False), o.size)
    o.out.parent.mkdir(parents=True, exist_ok=True)
    rows = [json.loads(line) for line in o.out.read_text().splitlines()] if o.out.is_file() else []
    done = {(row["set"], row["index"]) for row in rows}
    sets = open_collections(o.collections, "valid")
    for index in range(o.tasks):
        for collection, split in sets:
            if (collection.name, index) in done:
                continue
            task = bench.task(collection, collection.indices_of(split), index, o.shots, TARGETS)
            own = bench.own(task[0], task[1])
            after = descend(bench, task, own, o.steps, o.rate)
            with torch.no_grad():
                hits = [
                    float((bench.logits(task, film).argmax(1) == task[3]).float().mean()) for film in (own, after)
                ]
            rows.append({"set": collection.name, "index": index, "own": hits[0], "after": hits[1]})
            o.out.write_text("\n".join(json.dumps(row) for row in rows) + "\n")
    found: dict[str, list[dict]] = defaultdict(list)
    for row in rows:
        found[row["set"]].append(row)
    found["mean"] = rows
    print("| domain | one pass | after the steps | difference |\n| --- | ---: | ---: | ---: |")
    for name, some in found.items():
        means = [f"{100 * np.mean([row[kind] for row in some]):.1f}" for kind in ("own", "after")]
        print(
            f"| {name} | {' | '.join(means)} | {Estimate.of([row['after'] - row['own'] for row in some]).signed} |"
        )


if __name__ == "__main__":
    main()
