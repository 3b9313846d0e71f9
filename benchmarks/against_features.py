"""Features of a network that is on this disk with logistic regression, against cnaps, on the same folders.

    python -m benchmarks.against_features birds/ parts/ --backbone transformers:facebook/dinov2-small \
        --backbone transformers:openai/clip-vit-base-patch32 --shots 5 --draws 10

Each folder holds a folder of images for each class. A draw takes some examples of every class at random and asks
for the rest; every method gets the same draws. Methods run each in a process of their own, so that the memory of
one is not that of another. Compared are

- cnaps: the model that comes with the package;
- logreg: L2-normalised features of the network, scikit-learn's logistic regression, C chosen by cross-validation
  on the examples (C = 1 where a class has fewer than three);
- head: the same features, the closed-form head of cnaps (ridge), nothing tuned.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

STRENGTHS = np.logspace(-2, 4, 7)


@dataclass(frozen=True)
class Draw:
    """Paths and labels to learn from, and to ask for."""

    folder: str
    examples: list[str]
    labels: list[str]
    targets: list[str]
    wanted: list[str]


@dataclass(frozen=True)
class Result:
    folder: str
    method: str
    accuracy: float  # per cent
    interval: float  # 95%, over draws
    learn: float  # seconds a draw, from files to a classifier
    predict: float  # milliseconds an image, from file to label
    memory: float  # MB, the process's largest, with everything it imported


def draws(folder: Path, shots: int, count: int, most: int, seed: int) -> list[Draw]:
    from cnaps.images.finding import find_examples

    found: dict[str, list[str]] = {}
    for path, label in find_examples(folder):
        found.setdefault(label, []).append(str(path))
    few = [label for label, paths in found.items() if len(paths) <= shots]
    if few:
        sys.exit(f"{folder}: {', '.join(few[:3])} have no more than {shots} images: give fewer --shots")
    result = []
    for number in range(count):
        rng = np.random.default_rng((seed, number))
        taken = {label: list(rng.permutation(sorted(paths))[: shots + most]) for label, paths in found.items()}
        parts = [(paths[:shots], paths[shots:], label) for label, paths in sorted(taken.items())]
        result.append(
            Draw(
                folder.name,
                [str(p) for examples, _, _ in parts for p in examples],
                [label for examples, _, label in parts for _ in examples],
                [str(p) for _, targets, _ in parts for p in targets],
                [label for _, targets, label in parts for _ in targets],
            )
        )
    return result


class Installed:
    """cnaps as it is installed."""

    def fit(self, paths: list[str], labels: list[str]) -> None:
        from cnaps import FewShotClassifier

        self.classifier = FewShotClassifier().fit(paths, labels)

    def predict(self, paths: list[str]) -> list[str]:
        return [str(name) for name in self.classifier.predict(paths)]


class LogisticRegressionOnFeatures:
    def __init__(self, backbone: str) -> None:
        from cnaps.nn.backbones import open_backbone

        self.backbone = open_backbone(backbone)

    def features(self, paths: list[str]) -> np.ndarray:
        import torch

        from cnaps.images.inputs import stream

        with torch.no_grad():
            parts = [
                self.backbone(self.backbone.normalisation(torch.from_numpy(pixels))).numpy()
                for _, pixels in stream(paths, self.backbone.image_size)
            ]
        features = np.concatenate(parts)
        return features / np.linalg.norm(features, axis=1, keepdims=True)

    def fit(self, paths: list[str], labels: list[str]) -> None:
        from sklearn.linear_model import LogisticRegression
        from sklearn.model_selection import GridSearchCV

        least = min(labels.count(label) for label in set(labels))
        self.classifier = LogisticRegression(C=1, max_iter=2000)
        if least >= 3:
            self.classifier = GridSearchCV(self.classifier, {"C": STRENGTHS}, cv=min(5, least))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of solvers that would have liked more steps
            self.classifier.fit(self.features(paths), labels)

    def predict(self, paths: list[str]) -> list[str]:
        return [str(name) for name in self.classifier.predict(self.features(paths))]


class HeadOnFeatures:
    def __init__(self, backbone: str) -> None:
        from cnaps import CNAPs, ModelConfig

        self.model = CNAPs(ModelConfig(backbone=backbone, adaptation="none", head="ridge", embedding_size=0))
        self.model.backbone.load_pretrained()

    def images(self, paths: list[str]) -> Iterator[Tensor]:
        import torch

        from cnaps.images.inputs import stream

        size = self.model.image_size
        return (self.model.preprocess(torch.from_numpy(pixels)) for _, pixels in stream(paths, size))

    def fit(self, paths: list[str], labels: list[str]) -> None:
        import torch

        self.names, index = np.unique(labels, return_inverse=True)
        with torch.no_grad():
            self.adapted = self.model.adapt(torch.cat(list(self.images(paths))), torch.from_numpy(index))

    def predict(self, paths: list[str]) -> list[str]:
        return [str(self.names[i]) for part in self.images(paths) for i in self.adapted.predict(part)]


def measure(method: str, backbone: str, tasks: list[Draw]) -> list[Result]:
    """Every draw with one method, in a process of its own."""
    from cnaps.nn.devices import configure_threads

    configure_threads()
    learner: Installed | LogisticRegressionOnFeatures | HeadOnFeatures
    if method == "cnaps":
        learner = Installed()
    else:
        learner = LogisticRegressionOnFeatures(backbone) if method == "logreg" else HeadOnFeatures(backbone)
    learner.fit(tasks[0].examples, tasks[0].labels)  # the first use of a network is slower than all others
    results = []
    for folder in dict.fromkeys(task.folder for task in tasks):
        rows: list[tuple[float, float, float]] = []
        for task in (task for task in tasks if task.folder == folder):
            begin = time.perf_counter()
            learner.fit(task.examples, task.labels)
            learned = time.perf_counter()
            right = float(np.mean(np.array(learner.predict(task.targets)) == np.array(task.wanted)))
            asked = (time.perf_counter() - learned) / len(task.targets)
            rows.append((100 * right, learned - begin, 1000 * asked))
        accuracy, learn, predict = np.mean(rows, axis=0)
        spread = 1.96 * np.std([row[0] for row in rows], ddof=1) / len(rows) ** 0.5 if len(rows) > 1 else 0.0
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        title = method if method == "cnaps" else f"{backbone.rsplit('/', 1)[-1]} + {method}"
        results.append(
            Result(folder, title, *(round(float(v), 4) for v in (accuracy, spread, learn, predict, memory)))
        )
    return results


def compare(words: list[str]) -> list[Result]:
    parser = argparse.ArgumentParser("python -m benchmarks.against_features", description=__doc__.split("\n")[0])
    parser.add_argument("folders", nargs="+", type=Path, help="each with a folder of images for each class")
    parser.add_argument("--backbone", action="append", default=[], help="transformers:FOLDER, timm:NAME; repeat")
    parser.add_argument("--shots", type=int, default=5, help="examples of each class")
    parser.add_argument("--draws", type=int, default=10, help="of examples, for each folder")
    parser.add_argument("--most", type=int, default=20, help="images of a class that are asked for, at most")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="write the numbers here too, as JSON")
    given = parser.parse_args(words)
    tasks = [
        task
        for folder in given.folders
        for task in draws(folder, given.shots, given.draws, given.most, given.seed)
    ]
    methods = [("cnaps", ""), *((method, name) for name in given.backbone for method in ("logreg", "head"))]
    results: list[Result] = []
    for method, backbone in methods:
        with ProcessPoolExecutor(1, get_context("spawn")) as process:
            results += process.submit(measure, method, backbone, tasks).result()
    show(sorted(results, key=lambda result: result.folder))
    if given.out:
        given.out.write_text(json.dumps([asdict(result) for result in results], indent=2) + "\n")
    return results


def show(results: list[Result]) -> None:
    width = max(len(result.method) for result in results)
    print(f"{'folder':16} {'method':{width}}  accuracy %      learn s  predict ms  memory MB")
    for r in results:
        print(
            f"{r.folder:16} {r.method:{width}}  {r.accuracy:5.1f} ± {r.interval:4.1f}  {r.learn:8.2f} "
            f"{r.predict:11.1f} {r.memory:10.0f}"
        )


def main() -> None:
    """Among the other benchmarks: there are no folders and no weights to compare on."""
    print("needs folders and weights of yours: python -m benchmarks.against_features --help")


if __name__ == "__main__":
    from cnaps.errors import CnapsError

    try:
        compare(sys.argv[1:])
    except CnapsError as error:
        sys.exit(f"error: {error}")
