from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from cnaps.training.checkpoint import load_checkpoint
from cnaps.training.config import TrainConfig
from cnaps.training.run import checkpoints
from cnaps.training.settings import build
from cnaps.training.start import train

from . import program


@pytest.fixture
def config_file(settings: dict[str, Any], tmp_path: Path) -> Path:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(settings))
    return path


def test_two_processes_train_the_same_model_as_one(
    settings: dict[str, Any], config_file: Path, tmp_path: Path, cnaps: Callable[..., Any]
) -> None:
    # Where a gradient is nothing but rounding, Adam makes a whole step of it: a large epsilon does not.
    settings["optimiser"]["epsilon"] = 1e-3
    config_file.write_text(json.dumps(settings))
    train(build(TrainConfig, settings), tmp_path / "one", device="cpu")
    done = cnaps("train", config_file, "--out", tmp_path / "two", "--device", "cpu", "--processes", "2")
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "two" / "environment.json").read_text())["processes"] == 2
    one, two = (load_checkpoint(checkpoints(tmp_path / name)[-1]) for name in ("one", "two"))
    assert one[1]["best"] == two[1]["best"]
    start = {f"model.{k}": v for k, v in _initial(settings).items()}
    for name in [n for n in one[0] if n.startswith("model.") and one[0][n].is_floating_point()]:
        moved = (one[0][name] - start[name]).norm()
        apart = (one[0][name] - two[0][name]).norm()
        assert apart <= 1e-3 * moved + 1e-6, name


def _initial(settings: dict[str, Any]) -> dict[str, torch.Tensor]:
    from cnaps.training.start import build_model

    return build_model(build(TrainConfig, settings)).state_dict()


def test_a_mistake_in_one_of_two_processes_is_one_sentence(config_file: Path, cnaps: Callable[..., Any]) -> None:
    (config_file.parent / "used").mkdir()
    (config_file.parent / "used" / "config.json").write_text("{}")
    done = cnaps("train", config_file, "--out", config_file.parent / "used", "--processes", "2")
    assert done.returncode == 2
    assert "already holds a run" in done.stderr
    assert "Traceback" not in done.stderr


def test_two_processes_stop_together_when_asked(
    settings: dict[str, Any], config_file: Path, tmp_path: Path, cnaps: Callable[..., Any]
) -> None:
    settings["tasks"]["total"] = 4000
    config_file.write_text(json.dumps(settings))
    run = tmp_path / "run"
    command = [sys.executable, program.__file__, "train", str(config_file), "--out", str(run), "--processes", "2"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        while process.poll() is None and not list(run.glob("checkpoints/step-*")):
            time.sleep(0.05)
        os.kill(process.pid, signal.SIGTERM)
        _, error = process.communicate(timeout=300)
    assert process.returncode == 128 + signal.SIGTERM, error
    assert "continue with: cnaps train --resume" in error
    assert "Traceback" not in error
    assert load_checkpoint(checkpoints(run)[-1])[1]["step"] >= 1
