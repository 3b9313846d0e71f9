"""How much memory a process needs that answers: little, and not more with every batch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from cnaps import FewShotClassifier

PROGRAM = """
import sys

import numpy as np

import cnaps.serving.app
from cnaps.runtime.taskfile import read_task

def megabytes():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) / 1000 for line in file if line.startswith("VmHWM"))

task = read_task(sys.argv[1])
pixels = np.random.default_rng(0).integers(0, 255, (32, 3, 224, 224), np.uint8)
for count in (32, 1, 7, 32):
    task.features(pixels[:count])
first = megabytes()
for count in (2, 3, 5, 11, 29, 32):
    task.features(pixels[:count])
print(first, megabytes() - first)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc")
def test_a_process_that_answers_stays_below_300_megabytes(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 255, (6, 224, 224, 3), np.uint8)
    FewShotClassifier(image_size=224).fit(images, list("ababab")).save(tmp_path / "a.task")
    told = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "a.task")], check=True, capture_output=True, text=True
    ).stdout
    most, grown = map(float, told.split())
    assert most < 300
    assert grown < 20, "memory grows with every number of images"
