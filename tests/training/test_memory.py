from __future__ import annotations

from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cnaps.data.collection import write_collection

from . import program


@pytest.mark.slow
def test_five_hundred_context_images_train_in_a_few_gigabytes(
    tmp_path: Path, start_process: Callable[..., Any]
) -> None:
    rng = np.random.default_rng(0)
    coarse = rng.integers(0, 255, (50, 4, 4, 3), dtype=np.uint8)
    write_collection(
        tmp_path / "patterns",
        name="patterns",
        classes=[f"pattern {k}" for k in range(50)],
        examples=(
            (k, f"{k}/{i}", np.kron(coarse[k], np.ones((21, 21, 1), np.uint8)) // (1 + i % 3))
            for k in range(50)
            for i in range(20)
        ),
        size=84,
    )
    settings = {
        "data": {"train": [f"{tmp_path / 'patterns'}:all"]},
        "init": {"backbone": "random"},
        "model": {"preset": "paper"},
        "tasks": {"total": 1, "per_step": 1, "ways": 50, "shots": 10, "targets": 10},
        "memory": {"lite": 40, "checkpoint": True},
    }
    results = get_context("forkserver").SimpleQueue()
    process = start_process(program.peak_memory_of_a_step, settings, results)
    process.join()
    assert process.exitcode == 0
    peak = results.get()
    print(f"{peak / 2**30:.2f} GB")
    assert peak < 4 * 2**30
