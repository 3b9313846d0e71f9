"""Learning on: an update after 10,000 images against one after 10, and the size of the task's file."""

from __future__ import annotations

import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from cnaps import CNAPs
from cnaps.maths.statistics import ClassStatistics
from cnaps.runtime.engine import open_engine
from cnaps.runtime.task import Examples, FittedTask
from cnaps.runtime.taskfile import write_task

from .model import LITE0

WAYS, EARLIER, BATCH, UPDATES = 10, 10_000, 10, 30


def grown(start: FittedTask) -> FittedTask:
    """The task after EARLIER more examples, merged as features a hundred at a time, as updates would."""
    rng = np.random.default_rng(0)
    statistics, width = start.statistics, start.statistics.means.shape[1]
    labels = np.arange(100) % WAYS
    for _ in range(EARLIER // 100):
        # features with a spectrum that falls like that of real ones
        noise = rng.standard_normal((100, width)) / np.sqrt(np.arange(1, width + 1))
        features = (start.statistics.means[labels] + 0.05 * noise).astype(np.float32)
        added = ClassStatistics.of(features, labels, WAYS, scatter=True)
        statistics = statistics.merge(added, range(WAYS), WAYS)
    return start.with_classes(start.names, statistics, start.seen + EARLIER)


def costs(task: FittedTask, examples: Examples) -> tuple[float, float]:
    """Median seconds of an update, and of the first prediction after it, over a stream of updates."""
    updating, predicting = [], []
    for _ in range(UPDATES):
        began = time.perf_counter()
        task = task.update(examples)
        updating.append(time.perf_counter() - began)
        began = time.perf_counter()
        task.probabilities(task.features(examples.pixels[:1]))
        predicting.append(time.perf_counter() - began)
    return sorted(updating)[UPDATES // 2], sorted(predicting)[UPDATES // 2]


def main() -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (BATCH, 3, 96, 96), dtype=np.uint8)
    examples = Examples(pixels, [i % WAYS for i in range(BATCH)])
    start = FittedTask.learn(open_engine(CNAPs(replace(LITE0, image_size=96))), examples)
    start.probabilities(start.features(pixels[:1]))
    later = grown(start)
    before, after = costs(start, examples), costs(later, examples)
    print(f"{WAYS} classes, updates of {BATCH} images of 96 px, median of {UPDATES}")
    print(f"  an update after {EARLIER:,} images costs {after[0] / before[0]:.2f} times one after {BATCH}")
    print(f"  with the first prediction after it, {sum(after) / sum(before):.2f} times")
    with tempfile.TemporaryDirectory() as folder:
        sizes = []
        for i, task in enumerate((start, later)):
            write_task(Path(folder) / str(i), task)
            sizes.append((Path(folder) / str(i)).stat().st_size / 1000)
    print(f"  the task's file: {sizes[0]:.0f} KB after {BATCH} images, {sizes[1]:.0f} KB after {EARLIER:,}")
