"""Classes of unequal numbers of examples, and how often prediction sets hold the true class: validation classes.

    python -m benchmarks.unequal collections [--tasks 5] [--size 128] [--out benchmarks/unequal.json]

Tasks of five classes from the validation split of each collection, six more images of each to classify. The first
class has other numbers of examples than the rest; where a collection has fewer images, as many as there are.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from cnaps.data.collection import Collection, find_collections
from cnaps.maths.heads import RidgeClassifier
from cnaps.runtime.engine import open_engine
from cnaps.runtime.task import Examples, FittedTask, softmax
from cnaps.weights import DEFAULT_MODEL

WAYS, TESTED = 5, 6
CASES = ((1, 1), (5, 5), (20, 20), (1, 5), (1, 20), (1, 100), (5, 20), (20, 1))  # the first class, the others
COVERAGES = (0.8, 0.9, 0.95)


def deal(collection: Collection, seed: int, size: int, most: int) -> tuple[list[np.ndarray], np.ndarray]:
    """Examples of each class, and the images to classify, class by class."""
    chance = np.random.default_rng([seed, len(collection.classes)])
    rows = [chance.permutation(collection.rows(k)) for k in chance.permutation(collection.splits["valid"])[:WAYS]]
    tested = np.concatenate([some[:TESTED] for some in rows])
    pixels = [np.asarray(collection.read(some[TESTED : TESTED + most].tolist(), size=size)) for some in rows]
    return pixels, np.asarray(collection.read(tested.tolist(), size=size))


def measure(fitted: FittedTask, shown: np.ndarray) -> dict[str, Any]:
    """What one task gives: with the bias for classes of few examples and without."""
    truth = np.repeat(np.arange(WAYS), TESTED)
    features = fitted.features(shown)
    probabilities = fitted.probabilities(features)
    classifier = fitted.classifier
    assert isinstance(classifier, RidgeClassifier)
    plain = classifier(features) - classifier.bias
    found: dict[str, Any] = {}
    for title, given in (("with", probabilities), ("without", softmax(plain / fitted.temperature))):
        right = given.argmax(1) == truth
        found[title] = {"first": right[truth == 0].mean(), "others": right[truth > 0].mean(), "all": right.mean()}
    for coverage in COVERAGES:
        level = fitted.set_level(coverage)
        sets = (probabilities >= level) | (probabilities == probabilities.max(1, keepdims=True))
        held = sets[np.arange(len(truth)), truth].mean()
        found[f"sets {coverage}"] = {"held": held, "size": sets.sum(1).mean()}
    return found


def mean(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        key: {name: float(np.mean([row[key][name] for row in rows])) for name in rows[0][key]} for key in rows[0]
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("collections")
    parser.add_argument("--tasks", type=int, default=5)
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--only", default="", help="names of collections, with commas")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    wanted = set(options.only.split(",")) - {""}
    engine = open_engine(DEFAULT_MODEL, "cpu")
    rows: dict[tuple[int, int], list[dict[str, Any]]] = {}
    used = [c for c in find_collections(options.collections) if c.splits.get("valid")]
    used = [c for c in used if not wanted or c.name in wanted]
    for seed in range(options.tasks):
        for collection in used:
            least = int(collection.counts[collection.splits["valid"]].min())
            pixels, shown = deal(collection, seed, options.size, 100)
            for first, others in CASES:
                if others == 100 and least < 60:
                    continue
                some = [part[: first if k == 0 else others] for k, part in enumerate(pixels)]
                names = [k for k, part in enumerate(some) for _ in part]
                fitted = FittedTask.learn(engine, Examples(np.concatenate(some), list(names)))
                rows.setdefault((first, others), []).append(measure(fitted, shown))
            print(f"task {seed}: {collection.name}", flush=True)
        report(rows, engine.fingerprint, options.size, [c.name for c in used], options.out)


def report(
    rows: dict[tuple[int, int], list[dict[str, Any]]], model: str, size: int, used: list[str], out: Path | None
) -> None:
    found = [
        {"first": case[0], "others": case[1], "tasks": len(some), **mean(some)} for case, some in rows.items()
    ]
    for row in found:
        old, new = row["without"], row["with"]
        sets = ", ".join(
            f"{c:.0%}: {row[f'sets {c}']['held']:.1%} by {row[f'sets {c}']['size']:.2f}" for c in COVERAGES
        )
        print(f"{row['first']} beside {row['others']} ({row['tasks']} tasks): recall {old['first']:.1%} -> "
              f"{new['first']:.1%}, others {old['others']:.1%} -> {new['others']:.1%}, all {old['all']:.1%} -> "
              f"{new['all']:.1%}; sets {sets}")  # fmt: skip
    if out is not None:
        setup = {"model": model, "image size": size, "collections": used}
        out.write_text(json.dumps({"setup": setup, "rows": found}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
