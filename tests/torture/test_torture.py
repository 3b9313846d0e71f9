"""A little of every fault; `make torture` does it in full."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_nothing_breaks_when_a_little_of_everything_goes_wrong() -> None:
    done = subprocess.run(
        [sys.executable, Path(__file__).parent / "run.py", "--quick"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
