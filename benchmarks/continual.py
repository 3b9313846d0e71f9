"""Learning on: an update after 10,000 images against one after 10, and the size of the task's file."""

from __future__ import annotations

import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch

from cnaps import CNAPs
from cnaps.maths.statistics import ClassStatistics
from cnaps.nn.adapted import Adapted
from cnaps.runtime.task import FittedTask
from cnaps.runtime.taskfile import write_task

from .model import LITE0

WAYS, EARLIER, BATCH, UPDATES = 10, 10_000, 10, 30


def grown(start: Adapted) -> Adapted:
    """The task after EARLIER more examples, merged as features a hundred at a time, as updates would."""
    generator = torch.Generator().manual_seed(0)
    statistics, width = start.statistics, start.statistics.means.shape[1]
    labels = torch.arange(100) % WAYS
    for _ in range(EARLIER // 100):
        # features with a spectrum that falls like that of real ones
        noise = torch.randn(100, width, generator=generator) / torch.arange(1, width + 1).sqrt()
        added = ClassStatistics.of(
            start.statistics.means[labels].float() + 0.05 * noise, labels, WAYS, scatter=True
        )
        statistics = statistics.merge(added, range(WAYS), WAYS)
    return start._with(statistics=statistics, seen=start.seen + EARLIER)


def costs(start: Adapted, images: torch.Tensor, labels: torch.Tensor) -> tuple[float, float]:
    """Median seconds of an update, and of the first prediction after it, over a stream of updates."""
    updating, predicting = [], []
    for _ in range(UPDATES):
        began = time.perf_counter()
        start = start.update(images, labels)
        updating.append(time.perf_counter() - began)
        began = time.perf_counter()
        start.logits(images[:1])
        predicting.append(time.perf_counter() - began)
    return sorted(updating)[UPDATES // 2], sorted(predicting)[UPDATES // 2]


@torch.no_grad()
def main() -> None:
    model = CNAPs(replace(LITE0, image_size=96))
    images = torch.randn(BATCH, 3, 96, 96, generator=torch.Generator().manual_seed(1))
    labels = torch.arange(BATCH) % WAYS
    start = model.adapt(images, labels)
    start.logits(images[:1])
    later = grown(start)
    before, after = costs(start, images, labels), costs(later, images, labels)
    print(f"{WAYS} classes, updates of {BATCH} images of 96 px, median of {UPDATES}")
    print(f"  an update after {EARLIER:,} images costs {after[0] / before[0]:.2f} times one after {BATCH}")
    print(f"  with the first prediction after it, {sum(after) / sum(before):.2f} times")
    with tempfile.TemporaryDirectory() as folder:
        sizes = []
        for i, adapted in enumerate((start, later)):
            write_task(Path(folder) / str(i), FittedTask(adapted, list(range(WAYS)), 96))
            sizes.append((Path(folder) / str(i)).stat().st_size / 1000)
    print(f"  the task's file: {sizes[0]:.0f} KB after {BATCH} images, {sizes[1]:.0f} KB after {EARLIER:,}")
