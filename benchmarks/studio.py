"""The studio: how long a change takes to be followed."""

from __future__ import annotations

import io
import tempfile
import time
from pathlib import Path

import torch

from benchmarks.classify import photograph
from cnaps.recogniser import open_model
from cnaps.studio.decoding import Decoder
from cnaps.studio.engine import Engine
from cnaps.studio.store import Project

WAYS, SHOTS, TESTED = 10, 10, 10


def jpeg(seed: int) -> bytes:
    buffer = io.BytesIO()
    photograph(seed, 160, 120).save(buffer, "JPEG")
    return buffer.getvalue()


class Watched(Engine):
    """Notes when predictions were first there."""

    answered = 0.0

    def _conclude(self, *arguments: object, **options: object) -> None:
        super()._conclude(*arguments, **options)  # type: ignore[arg-type]
        self.answered = self.answered or time.thread_time()


def following() -> None:
    model, _ = open_model("cnaps-lite0", "cpu")
    pixels = torch.randint(0, 256, (WAYS * SHOTS, 3, model.image_size, model.image_size), dtype=torch.uint8)
    torch.set_num_threads(1)  # seconds of one core, which other work on the machine does not change
    frozen = []
    for _ in range(3):
        begin = time.thread_time()
        with torch.no_grad():
            for part in model.preprocess(pixels).split(32):
                model.backbone(part)
        frozen.append(time.thread_time() - begin)
    plain = min(frozen)
    with tempfile.TemporaryDirectory() as folder:
        decoder = Decoder(model.image_size, workers=1)
        project = Project(Path(folder) / "project", decoder)
        keys = [project.add_class(f"class {k}") for k in range(WAYS)]
        for i in range(WAYS * SHOTS):
            project.add([(f"{i}.jpg", jpeg(i))], keys[i % WAYS])
        project.add([(f"{i}.jpg", jpeg(1_000 + i)) for i in range(TESTED)], "test")
        moved = next(iter(project.images))
        engine = Watched(project, model, "")
        engine._changed.clear()
        engine._follow()
        first, whole = [], []
        for k in range(1, 6):
            project.move([moved], keys[k])
            engine._changed.clear()
            engine.answered, begin = 0.0, time.thread_time()
            engine._follow()
            first.append(engine.answered - begin)
            whole.append(time.thread_time() - begin)
        project.close()
        decoder.close()
    count = f"{WAYS * SHOTS} examples, {TESTED} images in the tray"
    print(f"{count}: predictions after a change / frozen forward over the examples: {min(first) / plain:.2f}")
    print(f"{count}: everything after a change / frozen forward: {min(whole) / plain:.2f} (aim: at most 2)")
    print(f"seconds of one core: {min(first):.2f} and {min(whole):.2f} (aim: below 1), frozen forward {plain:.2f}")


def main() -> None:
    following()
