"""Write one small file or folder of each format, as this version of the package writes them.

`python tests/compatibility/make.py KIND ...`, of model, task, collection, run and project. Run it for a new
version of a format, under another name beside the old one: that what older versions wrote loads is the point.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import torch

from cnaps import CNAPs, ModelConfig, load_model
from cnaps.episodes.task import TaskDescription
from cnaps.nn.backbones import register_backbone
from cnaps.runtime.engine import open_engine
from cnaps.runtime.task import Examples, FittedTask
from cnaps.runtime.taskfile import VERSION, write_task

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.models import random_film, small_backbone

BACKBONE = "compatibility"
STORED = Path(__file__).resolve().parent / "stored"


register_backbone(BACKBONE, lambda: small_backbone(4, 4, 6))


def digits() -> tuple[np.ndarray, np.ndarray]:
    """Five images, uint8 (N, 8, 8), of each of the first six digits, and their labels."""
    from sklearn.datasets import load_digits

    data = load_digits()
    rows = np.concatenate([np.flatnonzero(data.target == digit)[:5] for digit in range(6)])
    return (data.images[rows] * 255 / 16).astype(np.uint8), data.target[rows]


def make_model() -> CNAPs:
    """The model of the stored files: random, with FiLM that shows."""
    torch.manual_seed(3)
    config = ModelConfig(
        BACKBONE, "film+ar", "ridge", embedding_size=4, set_encoder_norm="none", generator_width=4
    )
    model = CNAPs(config)
    random_film(model)
    model.notes = {"calibration": [0.1, 0.0, 0.0]}
    return model


def answers(fitted: FittedTask) -> list[list[float]]:
    """Probabilities of the first image of each digit."""
    (batch,) = fitted.predict(digits()[0][::5])
    return np.round(batch[1], 6).tolist()


def learned(model: CNAPs) -> FittedTask:
    """Three digits, named."""
    images, labels = digits()
    chosen = labels < 3
    return FittedTask.learn(
        open_engine(model), Examples.read(images[chosen], [f"digit {d}" for d in labels[chosen]], 32)
    )


def rows(task: TaskDescription) -> list[list[list[int]]]:
    """The rows of context and targets, as JSON has them."""
    return [list(map(list, task.context)), list(map(list, task.targets))]


def make(folder: Path, kinds: set[str]) -> None:
    from cnaps.data.collection import write_collection
    from cnaps.episodes import Sampler, write_manifest
    from cnaps.serving.decoding import Decoder
    from cnaps.studio.store import Project
    from cnaps.training.config import TrainConfig
    from cnaps.training.settings import build
    from cnaps.training.start import train

    expected = folder / "expected.json"
    known = json.loads(expected.read_text()) if expected.exists() else {}
    images, labels = digits()
    if "model" in kinds:
        model = make_model()
        model.save(folder / "model")
        known["model"] = answers(learned(model))
    if "task" in kinds:
        task = learned(load_model(folder / "model"))
        write_task(folder / f"task-{VERSION}.safetensors", task)
        known["task"] = answers(task)
    if "collection" in kinds:
        collection = write_collection(
            folder / "collection",
            name="digits",
            classes=[str(digit) for digit in range(6)],
            examples=((int(labels[i]), str(i), images[i]) for i in range(len(labels))),
            size=8,
            splits={"train": [0, 1, 2], "valid": [3, 4, 5]},
        )
        sampler = Sampler([collection], "train", ways=2, shots=2, targets=1)
        described = [sampler.describe(i) for i in range(3)]
        write_manifest(folder / "tasks.jsonl", described, {"digits": collection}, sampler.protocol)
        known["manifest"] = [rows(d) for d in described]
    if "run" in kinds:
        settings = {
            "data": {"train": ["collection"], "valid": ["collection"]},
            "model": {"backbone": BACKBONE, "embedding_size": 0, "generator_width": 4},
            "init": {"backbone": "random"},
            "tasks": {"total": 2, "per_step": 1, "ways": 2, "shots": 1, "targets": 1},
            "validation": {"every": 2, "tasks_per_set": 1},
            "checkpoint_every": 1,
            "tensorboard": False,
        }
        run = folder / "run"
        train(build(TrainConfig, settings), run, device="cpu")
        (run / "checkpoints" / "step-00000002.safetensors").unlink()  # as if it had been killed before
        for name in ("best", "last"):
            shutil.rmtree(run / name, ignore_errors=True)
        for name in ("curves.png", ".lock"):
            (run / name).unlink(missing_ok=True)
        held = json.loads((run / "environment.json").read_text())
        (run / "environment.json").write_text(json.dumps({"cnaps": held["cnaps"], "data": held["data"]}))
    if "project" in kinds:
        decoder = Decoder(32, workers=1)
        project = Project(folder / "project", decoder)
        for i in range(0, 15, 4):
            key = project.add_class(f"digit {labels[i]}")
            project.add([(f"{i}.png", _png(images[i]))], key)
        project.add([("unlabelled.png", _png(images[20]))], "pool")
        project.close()
        decoder.close()
        shutil.rmtree(folder / "project" / "cache")
        (folder / "project" / ".lock").unlink()
    expected.write_text(json.dumps(known))


def _png(image: np.ndarray) -> bytes:
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "PNG")
    return buffer.getvalue()


if __name__ == "__main__":
    STORED.mkdir(exist_ok=True)
    os.chdir(STORED)  # a run remembers where its data is
    make(STORED, set(sys.argv[1:]))
