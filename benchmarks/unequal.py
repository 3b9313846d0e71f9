"""Classes of unequal numbers of examples, and how often prediction sets hold the true class.

    make unequal      chooses on validation domains, measures on data sets that nothing was chosen on

Two kinds of tasks: five classes of which the first has another number of examples than the others, and tasks by
the Meta-Dataset protocol of at most ten ways. Features are kept in out/unequal, so that it goes on where it stood.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from cnaps.data.collection import Collection
from cnaps.episodes import Limits, Sampler
from cnaps.maths.heads import _GIVEN_BACK, RidgeClassifier
from cnaps.paper.experiments.reporting import provenance
from cnaps.runtime.engine import Engine, Support, open_engine
from cnaps.runtime.task import FittedTask, judged_by_others
from cnaps.weights import DEFAULT_MODEL

VALIDATION = (
    "aerial-scenes", "fish-market", "food-bangla", "leaves", "monkeys", "plate-characters", "sports", "syllables"
)  # fmt: skip
UNSEEN = ("cifar10", "cifar100", "dtd", "mnist", "traffic_sign")
WAYS, TESTED, SIZE = 5, 6, 128
CASES = ((5, 5), (20, 20), (1, 5), (1, 20), (1, 100), (5, 20), (20, 1))  # the first class, the others
COVERAGES = (0.8, 0.9, 0.95)
SHARES = (0.0, 0.2, 0.4, 0.5, 0.6, 0.7, 0.8, 1.0)  # of what chance takes from a class, given back

Rows = Sequence[Sequence[int]]


def tasks(collection: Collection, split: str, index: int, unequal: bool) -> Iterator[tuple[str, Rows, Rows]]:
    """Name, rows of examples and rows to classify, class by class, of each case of one draw."""
    limits = Limits(max_ways=10, max_context=60, max_targets_per_class=TESTED)
    protocol = Sampler([collection], split, limits=limits, seed=5).describe(index)
    yield "Meta-Dataset", protocol.context, protocol.targets
    equal = Sampler([collection], split, limits=limits, seed=6, shots=5, targets=TESTED).describe(index)
    yield "5 of each", equal.context, equal.targets
    chance = np.random.default_rng([index, len(collection.classes)])
    classes = chance.permutation(collection.splits[split])[:WAYS]
    rows = [chance.permutation(collection.rows(k)).tolist() for k in classes]
    least = int(collection.counts[collection.splits[split]].min())
    for first, others in CASES if unequal else ():
        if others < 100 or least >= 40:  # of 100, there are as many as there are
            some = [each[TESTED : TESTED + (others if k else first)] for k, each in enumerate(rows)]
            yield f"{first} beside {others}", some, [each[:TESTED] for each in rows]


def features(
    engine: Engine, collection: Collection, split: str, index: int, unequal: bool, kept: Path
) -> dict[str, np.ndarray]:
    """Features and labels of examples and of images to classify, of each case; from `kept` if they are there."""
    if kept.is_file():
        with np.load(kept) as file:
            return dict(file)
    found: dict[str, np.ndarray] = {}
    for case, *sides in tasks(collection, split, index, unequal):
        pixels = [np.asarray(collection.read([row for each in side for row in each], size=SIZE)) for side in sides]
        labels = [np.repeat(np.arange(len(side)), [len(each) for each in side]) for side in sides]
        made = engine.adapt(Support(pixels[0], labels[0], len(sides[0]), None))
        found |= {f"{case}/x": made.features, f"{case}/y": labels[0]}
        found |= {f"{case}/asked": made.network(pixels[1]), f"{case}/truth": labels[1]}
    kept.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(kept, **found)  # type: ignore[arg-type]
    return found


def measure(engine: Engine, x: np.ndarray, y: np.ndarray, asked: np.ndarray, truth: np.ndarray) -> dict[str, Any]:
    """Accuracy of the classes of fewest examples and of all, by how much is given; coverage and size of sets."""
    names: list[str | int] = list(range(int(y.max()) + 1))
    empty = np.zeros(engine.film_numbers, np.float32)
    task = FittedTask(engine, names, empty, None, np.zeros(0), len(y), SIZE)  # type: ignore[arg-type]
    task.__dict__["_network"] = None  # features are here
    task = task.refit(x, y)
    judged = judged_by_others(engine.head, x, y)
    task = replace(task, calibration=task._own_calibration(judged))._running(None)  # type: ignore[arg-type]
    task = task._judged_by(x, y.tolist(), judged)
    classifier = task.classifier
    assert isinstance(classifier, RidgeClassifier)
    plain, rows, counts = classifier(asked) - classifier.bias, np.arange(len(truth)), np.bincount(y)
    few = (counts == counts.min())[truth]
    found: dict[str, Any] = {"given": {}, "sets": {}}
    for share in SHARES:
        right = (plain + share / _GIVEN_BACK * classifier.bias).argmax(1) == truth
        found["given"][share] = _rounded(right[few].mean(), right.mean())
    probabilities = task.probabilities(asked)
    for coverage in COVERAGES:
        sets = probabilities >= task.set_levels(coverage)
        sets |= probabilities == probabilities.max(1, keepdims=True)
        held = sets[rows, truth]
        found["sets"][coverage] = _rounded(held[few].mean(), held.mean(), sets.sum(1).mean())
    return found


def _rounded(*values: float) -> list[float]:
    return [round(float(value), 4) for value in values]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("collections", type=Path)
    parser.add_argument("--only", choices=("validation", "unseen"))
    parser.add_argument("--tasks", type=int, default=12, help="by the protocol, of each data set")
    parser.add_argument("--unequal", type=int, default=5, help="of them, so many with every case")
    parser.add_argument("--out", type=Path, default=Path("out/unequal"))
    options = parser.parse_args()
    engine = open_engine(DEFAULT_MODEL, "cpu")
    rows: list[dict[str, Any]] = []
    setup: dict[str, Any] = {"model": engine.fingerprint, "image size": SIZE, "data set": {}}
    for part, names, split in (("validation", VALIDATION, "valid"), ("unseen", UNSEEN, "test")):
        for name in names if options.only in (None, part) else ():
            collection = Collection.open(options.collections / name)
            setup["data set"][name] = collection.fingerprint
            for index in range(options.tasks):
                kept = options.out / f"{name}-{index}.npz"
                found = features(engine, collection, split, index, index < options.unequal, kept)
                for case in dict.fromkeys(key.rpartition("/")[0] for key in found):
                    given = measure(engine, *(found[f"{case}/{each}"] for each in ("x", "y", "asked", "truth")))
                    rows.append({"part": part, "data set": name, "task": index, "case": case, **given})
            print(name, flush=True)
    made = {**provenance(), "command": "make unequal"}
    text = json.dumps({"setup": setup, "made": made, "given back": _GIVEN_BACK, "rows": rows})
    (options.out / "unequal.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
