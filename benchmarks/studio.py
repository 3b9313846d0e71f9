"""The studio: how long a change takes to be followed.

`python -m benchmarks.studio COLLECTIONS` measures how far the marks of doubt can be trusted.
"""

from __future__ import annotations

import io
import os
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.classify import photograph
from cnaps.data.collection import find_collections
from cnaps.images.sizes import auto_size
from cnaps.runtime.engine import open_engine
from cnaps.runtime.novelty import STRANGE
from cnaps.runtime.task import Examples, FittedTask
from cnaps.serving.decoding import Decoder
from cnaps.studio.engine import UNSURE, Learner
from cnaps.studio.store import Contents, Project
from cnaps.weights import DEFAULT_MODEL

WAYS, SHOTS, TESTED = 10, 10, 10
TASKS = 8  # a collection
SHARES = (0.8, 0.85, 0.9, 0.95, 1.0)


def jpeg(seed: int) -> bytes:
    buffer = io.BytesIO()
    photograph(seed, 160, 120).save(buffer, "JPEG")
    return buffer.getvalue()


class Watched(Learner):
    """Notes when predictions were first there."""

    answered = 0.0

    def _conclude(self, plan: Contents, *, thorough: bool) -> None:
        super()._conclude(plan, thorough=thorough)
        self.answered = self.answered or time.thread_time()


def following() -> None:
    os.environ["CNAPS_THREADS"] = "1"  # seconds of one core, which other work on the machine does not change
    model = open_engine(DEFAULT_MODEL, "cpu")
    frozen, seconds = model.frozen(), []
    with tempfile.TemporaryDirectory() as folder:
        decoder = Decoder(model.image_size, workers=1)
        project = Project(Path(folder) / "project", decoder)
        keys = [project.add_class(f"class {k}") for k in range(WAYS)]
        for i in range(WAYS * SHOTS):
            project.add([(f"{i}.jpg", jpeg(i))], keys[i % WAYS])
        project.add([(f"{i}.jpg", jpeg(1_000 + i)) for i in range(TESTED)], "test")
        moved = next(iter(project.images))
        engine = Watched(project, model)
        engine._changed.clear()
        engine._follow()
        pixels = np.random.default_rng(0).integers(0, 256, (WAYS * SHOTS, 3, engine.size, engine.size), np.uint8)
        for _ in range(3):
            begin = time.thread_time()
            frozen(pixels)
            seconds.append(time.thread_time() - begin)
        plain = min(seconds)
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


def doubts(folder: str) -> None:
    """How often the marks "not sure" and "none of these?" are right on validation classes, by threshold.

    Tasks of 2 to 8 classes with 3 to 10 examples each; strangers are images of as many other classes of the same
    collection, which is harder than images of another kind.
    """
    model = open_engine(DEFAULT_MODEL, "cpu")
    sure, right, marked = [], [], []
    for collection in (c for c in find_collections(folder) if c.splits.get("valid")):
        rng = np.random.default_rng(0)
        for _ in range(TASKS):
            ways, shots = int(rng.integers(2, 9)), int(rng.integers(3, 11))
            chosen = rng.permutation(collection.splits["valid"])[: 2 * ways]
            rows = [rng.permutation(collection.rows(k))[: shots + 4] for k in chosen]
            shots = min(shots, min(map(len, rows)) - 1)
            names = [k for k in range(ways) for _ in range(shots)]
            learned, others = [k for r in rows[:ways] for k in r[:shots]], [k for r in rows for k in r[shots:]]
            size = auto_size(collection.looks(learned))
            examples = Examples(collection.read(learned, size).numpy(), list(names))
            fitted = FittedTask.learn(model, examples)
            shown = fitted.features(collection.read(others, size).numpy())
            label = np.concatenate([[k] * len(r[shots:]) for k, r in enumerate(rows)])
            probabilities, novelty = fitted.probabilities(shown), fitted.novelty(shown)
            member = label < ways
            sure.append(probabilities[member].max(1))
            right.append(probabilities[member].argmax(1) == label[member])
            features = fitted.features(examples.pixels)
            levels = [fitted.none_level(features, np.array(names), share) for share in SHARES]
            marked.append([((novelty > v)[member].mean(), (novelty > v)[~member].mean()) for v in levels])
        print(f"{collection.name}: {np.concatenate(right[-TASKS:]).mean():.1%} right", flush=True)
    p, correct = np.concatenate(sure), np.concatenate(right)
    for t in (0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9):
        caught, blamed, rest = (p < t)[~correct].mean(), (p < t)[correct].mean(), correct[p >= t].mean()
        print(f"not sure below {t}: {caught:.1%} of wrong answers, {blamed:.1%} of right ones; {rest:.1%} "
              f"of the others are right{' <' if t == UNSURE else ''}")  # fmt: skip
    for share, (members, strangers) in zip(SHARES, np.mean(marked, axis=0), strict=True):
        print(f"none of these beyond {share} of the examples: {members:.1%} of members, {strangers:.1%} of "
              f"strangers{' <' if share == STRANGE else ''}")  # fmt: skip


def main() -> None:
    following()


if __name__ == "__main__":
    doubts(sys.argv[1])
