"""Small real collections and settings that train in seconds."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

os.environ.setdefault("CNAPS_THREADS", "1")

PROGRAM = Path(__file__).parent / "program.py"


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Handwritten digits that come with scikit-learn: 6 classes to train on, 4 to validate on."""
    from sklearn.datasets import load_digits

    from cnaps.data.collection import write_collection

    images, labels = load_digits(return_X_y=True)
    scaled = (images.reshape(-1, 8, 8) * 255 / 16).astype(np.uint8)
    order = np.argsort(labels, kind="stable")
    examples = (
        (int(labels[i]), f"{i}", np.repeat(np.kron(scaled[i], np.ones((4, 4), np.uint8))[..., None], 3, 2))
        for i in order
    )
    folder = tmp_path_factory.mktemp("collections") / "digits"
    write_collection(
        folder,
        name="digits",
        classes=[str(k) for k in range(10)],
        examples=examples,
        size=32,
        splits={"train": [0, 1, 2, 3, 4, 5], "valid": [6, 7, 8, 9]},
    )
    return folder


@pytest.fixture
def settings(digits: Path) -> dict[str, Any]:
    """A run of a few seconds: 8 steps of 4 small tasks."""
    import program  # noqa: F401  registers the small backbone

    return {
        "seed": 5,
        "data": {"train": [str(digits)], "valid": [str(digits)]},
        "model": {"backbone": "tiny-for-tests", "adaptation": "film+ar", "head": "linear"},
        "init": {"backbone": "random"},
        "tasks": {"total": 30, "per_step": 4, "ways": 3, "shots": 4, "targets": 4},
        "validation": {"every": 12, "tasks_per_set": 4},
        "checkpoint_every": 1,
    }


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, str(PROGRAM), *map(str, arguments)]


def run_program(*arguments: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*arguments), capture_output=True, text=True, timeout=300, **options)
