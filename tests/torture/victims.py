"""What processes do that are going to be killed, or have no room to write."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

from cnaps.runtime.taskfile import write_task
from cnaps.serving.decoding import Decoded, _decode

from .common import digits, encoded, small_model, small_task


class DecoderHere:
    """Decodes in this process: the one that is killed is the studio, not its helpers."""

    size = 32

    def decode(self, data: bytes, size: int | None = None) -> Decoded:
        return _decode(data, size or self.size)


def save_tasks_and_models(folder: str) -> None:
    """Write a task file and a model folder again and again, each time of other content."""
    model = small_model()
    models = [small_model(seed) for seed in range(2)]
    tasks = [small_task(model, shift=shift) for shift in range(2)]
    _ready(folder)
    for i in itertools.count():
        write_task(Path(folder) / "task.safetensors", tasks[i % 2])
        models[i % 2].save(Path(folder) / "model")


def train(settings: dict[str, Any], folder: str, ready: str) -> None:
    """Begin a run, or go on with it."""
    from cnaps.training.config import TrainConfig
    from cnaps.training.settings import build
    from cnaps.training.start import train

    _ready(ready)
    train(build(TrainConfig, settings), folder, resume=(Path(folder) / "config.json").exists(), device="cpu")


def prepare(source: str, dest: str, ready: str, again: bool) -> None:
    """Make a collection."""
    from cnaps.data import prepare as module

    module.SHARD_ROWS = 64  # many shards of few images
    _ready(ready)
    while True:
        module.prepare("folder", source, dest, size=32, workers=1, overwrite=again)
        if not again:
            return


def label(folder: str, ready: str) -> None:
    """Add images to a project and move them about; what is acknowledged is written down."""
    from cnaps.studio.store import Project

    project = Project(folder, DecoderHere())  # type: ignore[arg-type]
    keys = [project.add_class(name) for name in ("even", "odd")]
    images, labels = digits()
    start = len(project.images)
    with open(f"{ready}.log", "a") as log:
        _ready(ready)
        for i in itertools.count(start):
            place = keys[labels[i % len(images)] % 2]
            (added,) = project.add([(f"{i}.png", encoded(images[i % len(images)]))], place)["added"]
            log.write(f"{added} {place}\n")
            log.flush()


def save_one_task(path: str, shift: int, times: int) -> None:
    """One of several writers of one file."""
    task = small_task(small_model(), shift=shift)
    for _ in range(times):
        write_task(path, task)


def _ready(folder: str) -> None:
    Path(f"{folder}.{os.getpid()}").touch()
