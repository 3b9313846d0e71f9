"""Small real collections and settings that train in seconds."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

os.environ.setdefault("CNAPS_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
from . import program  # registers the small backbone


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Handwritten digits that come with scikit-learn: 6 classes to train on, 4 to validate on."""
    from sklearn.datasets import load_digits

    from cnaps.data.collection import write_collection

    images, labels = load_digits(return_X_y=True)
    pixels = np.kron(images.reshape(-1, 8, 8), np.ones((1, 4, 4))) * 255 / 16  # (N, 32, 32)
    pixels = np.repeat(pixels.astype(np.uint8)[..., None], 3, axis=3)
    order = np.argsort(labels, kind="stable")
    folder = tmp_path_factory.mktemp("collections") / "digits"
    write_collection(
        folder,
        name="digits",
        classes=[str(k) for k in range(10)],
        examples=((int(labels[i]), str(i), pixels[i]) for i in order),
        size=32,
        splits={"train": [0, 1, 2, 3, 4, 5], "valid": [6, 7, 8, 9]},
    )
    return folder


@pytest.fixture(scope="session")
def theta(digits: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that trained the small backbone on the training digits."""
    from cnaps.training.config import PretrainConfig
    from cnaps.training.start import pretrain

    folder = tmp_path_factory.mktemp("theta") / "run"
    config = PretrainConfig(
        data=(str(digits),),
        backbone=program.BACKBONE,
        epochs=6,
        batch=64,
        learning_rate=0.05,
        flip=False,
        held_out=0.2,
        drop_every=4,
        validate_every=6,
        tensorboard=False,
    )
    pretrain(config, folder, device="cpu")
    return folder


@pytest.fixture
def settings(digits: Path, theta: Path) -> dict[str, Any]:
    """A run of about a second: 4 steps of 4 small tasks, the last one of 2."""
    return {
        "seed": 5,
        "data": {"train": [str(digits)], "valid": [str(digits)]},
        "model": {"backbone": program.BACKBONE, "adaptation": "film+ar", "head": "linear", "embedding_size": 8},
        "init": {"backbone": str(theta)},
        "tasks": {"total": 14, "per_step": 4, "ways": 3, "shots": 4, "targets": 4},
        "validation": {"every": 8, "tasks_per_set": 3},
        "optimiser": {"learning_rate": 1e-3, "ema": 0.9, "schedule": {"kind": "cosine", "warmup": 2}},
        "augmentation": {"flip": 0.5, "zoom": 0.5, "image_jitter": 0.1},
        "memory": {"lite": 5},
        "checkpoint_every": 1,
        "tensorboard": False,
    }


@pytest.fixture(scope="session")
def start_process() -> Callable[..., BaseProcess]:
    """Start a function in a real process of its own; the imports are paid once, by the server that forks them."""
    context = multiprocessing.get_context("forkserver")
    loaded = [program.__name__, "accelerate", "cnaps.training.start", "cnaps.training.curves"]
    context.set_forkserver_preload(loaded)

    def start(function: Callable[..., Any], *arguments: Any) -> BaseProcess:
        process = context.Process(target=function, args=arguments)
        process.start()
        return process

    return start


@pytest.fixture(scope="session")
def cnaps() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run the command line in a process of its own."""

    def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, program.__file__, *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, timeout=600)

    return run
