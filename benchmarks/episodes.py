"""How fast tasks are described and loaded, and how long a training step waits for them.

Everything is made here: collections with the class structure of each protocol, and pictures with about the
detail of photographs.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.nn import functional as F

from cnaps.data.collection import Collection, write_collection
from cnaps.data.splits import alphabets
from cnaps.episodes import TRAIN_LIMITS, Sampler, TaskDescription, TaskLoader, load_task
from cnaps.nn.model import CNAPs, ModelConfig

SIDE = 84


def main() -> None:
    """Print one line a measurement, each against its aim."""
    with tempfile.TemporaryDirectory() as folder:
        for collection in protocols(Path(folder)):
            rate = descriptions_a_second(Sampler([collection], None, seed=0))
            print(f"task descriptions, {collection.name}: {rate:.0f} a second, {rate / 500:.1f} x the aim")
        photos = photographs(Path(folder))
        seconds = load_seconds(photos)
        print(f"a task of 500 images at {SIDE} px: {seconds:.3f} s, {0.3 / seconds:.1f} x as fast as the aim")
        share = waiting_share(photos)
        print(f"training waits for tasks: {share:.2%} of its time (aim: below 5%)")


def protocols(folder: Path) -> Iterator[Collection]:
    """Plain classes, Omniglot's alphabets, and a WordNet above ILSVRC's 712 training classes."""
    dot = np.zeros((1, 1), np.uint8)

    def make(name: str, count: int, classes: list[str], hierarchy: dict[str, Any] | None) -> Collection:
        examples = ((c, f"{c}/{i}", dot) for c in range(len(classes)) for i in range(count))
        return write_collection(
            folder / name, name=name, classes=classes, examples=examples, size=8, hierarchy=hierarchy
        )

    yield make("plain classes", 100, [f"class {i}" for i in range(140)], None)
    letters = [f"alphabet {a}/character{c:02d}" for a in range(25) for c in range(14 + 2 * (a % 20))]
    yield make("alphabets", 20, letters, {"kind": "alphabets", "groups": alphabets(letters)})
    spans = [(n, start) for n in (5, 8, 12, 20, 40, 80, 160, 320) for start in range(0, 712 - n, 2 * n)]
    nodes = {f"n{n}-{start}": list(range(start, start + n)) for n, start in spans}
    wordnet = {"kind": "wordnet", "nodes": nodes}
    yield make("WordNet nodes", 40, [f"n{i:08d}" for i in range(712)], wordnet)


def photographs(folder: Path) -> Collection:
    """50 classes of 24 pictures: large shapes, edges and grain, which cost JPEG about what photographs do."""
    generator = np.random.default_rng(0)

    def picture() -> np.ndarray:
        layers = [generator.uniform(0, 255, (side, side, 3)).astype(np.uint8) for side in (4, 12, 32)]
        grown = [
            np.asarray(Image.fromarray(layer).resize((SIDE, SIDE), Image.Resampling.BICUBIC)) for layer in layers
        ]
        return (0.5 * grown[0] + 0.3 * grown[1] + 0.2 * grown[2]).astype(np.uint8)

    examples = ((c, f"{c}/{i}", picture()) for c in range(50) for i in range(24))
    names = [f"class {i}" for i in range(50)]
    return write_collection(folder / "photos", name="photos", classes=names, examples=examples, size=SIDE)


def descriptions_a_second(sampler: Sampler, count: int = 500) -> float:
    """The rate over the first tasks of a sampler."""
    return count / _seconds(lambda: [sampler.describe(index) for index in range(count)])


def load_seconds(photos: Collection) -> float:
    """The time to have 250 context and 250 target images as tensors; the best of five."""
    described = Sampler([photos], None, ways=50, shots=5, targets=5).describe(0)
    return min(_seconds(lambda: load_task(described, {"photos": photos}, SIDE)) for _ in range(5))


def waiting_share(photos: Collection, steps: int = 8) -> float:
    """The share of time that meta-training the paper's model waits for the loader, after the first task.

    A single task is loaded ahead: more would all be there before a measurement this short begins.
    """
    model = CNAPs(ModelConfig.preset("paper")).train()
    descriptions = _tasks_of_training(photos, steps)
    stream = iter(TaskLoader(descriptions, {"photos": photos}, SIDE, prefetch=1))
    next(stream)
    waited = 0.0
    begin = last = time.perf_counter()
    for task in stream:
        waited += time.perf_counter() - last
        adapted = model.adapt(model.preprocess(task.context_images), task.context_labels)
        F.cross_entropy(adapted.logits(model.preprocess(task.target_images)), task.target_labels).backward()
        model.zero_grad()
        last = time.perf_counter()
    return waited / (last - begin)


def _tasks_of_training(photos: Collection, count: int) -> list[TaskDescription]:
    """Small tasks of the training protocol: they leave the loader the least time."""
    sampler = Sampler([photos], None, limits=TRAIN_LIMITS)
    drawn = sorted(
        (sampler.describe(index) for index in range(20 * count)),
        key=lambda task: task.context_size + task.target_size,
    )
    return drawn[:count]


def _seconds(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
