"""Accuracy of the shipped head on stored features: which FiLM serves validation tasks best.

    python tools/compare_film.py VALID.pt ... [--model cnaps-lite0]

Files are those of tools/cache_features.py, of the same tasks with other FiLM (`--distance`, `--film`, `--near`).
Prints a table in Markdown: accuracy in percent on each set, the mean, and the paired difference from the first.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cnaps.maths.statistics import ClassStatistics
from cnaps.nn.checkpoints import load_model
from cnaps.paper.experiments.scores import Estimate


@torch.no_grad()
def accuracy(head: Any, task: dict[str, Any]) -> float:
    """Of the targets of a task, classified as its context says."""
    count, labels = task["context"], task["labels"]
    given, asked = head.embed(task["mean"].float()).split([count, len(labels) - count])
    known = labels[:count]
    made = ClassStatistics.of(given, known, int(known.max()) + 1, scatter=head.needs_scatter)
    return float((head.classifier(made)(asked).argmax(1) == labels[count:]).float().mean())


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--model", default="cnaps-lite0")
    o = parser.parse_args()
    head = load_model(o.model).head
    found: list[dict[str, list[float]]] = []
    for file in o.files:
        sets: dict[str, list[float]] = defaultdict(list)
        for task in torch.load(file, weights_only=False):
            sets[task["set"]].append(accuracy(head, task))
        found.append(sets)
    print("| set |", " | ".join(file.stem for file in o.files), "|")
    print("| --- |", " | ".join("---:" for _ in o.files), "|")
    for name in found[0]:
        print(f"| {name} |", " | ".join(f"{100 * np.mean(sets[name]):.1f}" for sets in found), "|")
    print(
        "| mean |", " | ".join(f"{100 * np.mean([np.mean(s) for s in sets.values()]):.1f}" for sets in found), "|"
    )
    gaps = [np.concatenate([np.subtract(sets[name], found[0][name]) for name in found[0]]) for sets in found]
    print("| difference |", " | ".join(Estimate.of(gap).signed if gap.any() else "" for gap in gaps), "|")


if __name__ == "__main__":
    main()
