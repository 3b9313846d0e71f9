"""Prediction over many files: processor time an image, here and by Ray's predictor, and the share of decoding."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.classify import photograph
from cnaps.images.inputs import stream
from cnaps.runtime.engine import open_engine
from cnaps.runtime.task import Examples, FittedTask
from cnaps.runtime.taskfile import write_task
from cnaps.serving.bulk import RayPredictor

IMAGES = 192


def cost(work: Callable[[], object]) -> float:
    """Milliseconds of processor time an image, the best of three: other programs do not count."""
    spent = []
    for _ in range(3):
        begun = time.process_time()
        work()
        spent.append((time.process_time() - begun) * 1e3 / IMAGES)
    return min(spent)


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        files = [Path(name) / f"{i}.jpg" for i in range(IMAGES)]
        for i, file in enumerate(files):
            photograph(i, 300, 225).save(file, quality=90)
        model = open_engine("cnaps-lite0")
        examples = Examples.read(files[:20], ["a", "b", "c", "d"] * 5, model.image_size)
        fitted = FittedTask.learn(open_engine(model), examples)
        write_task(Path(name) / "task", fitted)
        predictor = RayPredictor(str(Path(name) / "task"))
        plain = cost(lambda: list(fitted.predict(files)))
        there = cost(lambda: predictor({"path": [str(file) for file in files]}))
        decoding = cost(lambda: list(stream(files, model.image_size)))
    print(
        f"a photograph of 300 x 225 pixels: {plain:.1f} ms of one processor, {decoding / plain:.0%} of it decoding"
    )
    print(f"by the predictor that Ray's workers run: {there / plain:.2f} times that")
