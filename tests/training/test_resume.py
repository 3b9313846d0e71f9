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

import numpy as np
import pytest
import torch

from cnaps.errors import CheckpointError, CnapsError
from cnaps.training.checkpoint import load_checkpoint
from cnaps.training.config import TrainConfig
from cnaps.training.run import checkpoints
from cnaps.training.settings import build
from cnaps.training.start import train

from . import program


def final_tensors(run: Path) -> dict[str, torch.Tensor]:
    return load_checkpoint(checkpoints(run)[-1])[0]


def assert_same_run(a: Path, b: Path) -> None:
    first, second = final_tensors(a), final_tensors(b)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    for name in ("best", "last"):
        files = [(run / name / "model.safetensors").read_bytes() for run in (a, b)]
        assert files[0] == files[1]
    assert _metrics(a) == _metrics(b)


def _metrics(run: Path) -> list[dict[str, Any]]:
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in r.items() if k not in ("seconds", "peak_memory_mb")} for r in records]


def _kill_until_done(
    settings: dict[str, Any], run: Path, start_process: Callable[..., Any], kills: int, longest: float
) -> int:
    """Kill the run ``kills`` times at random moments, then let it finish; gives how many it was alive for."""
    rng = np.random.default_rng(0)
    killed = 0
    for _ in range(kills):
        process = start_process(program.train, settings, str(run), (run / "config.json").exists())
        process.join(float(rng.uniform(0.2, longest)))
        if process.exitcode is None:
            os.kill(process.pid, signal.SIGKILL)
            process.join()
            killed += 1
        else:
            assert process.exitcode == 0
    process = start_process(program.train, settings, str(run), (run / "config.json").exists())
    process.join(600)
    assert process.exitcode == 0
    return killed


def test_a_run_killed_many_times_ends_with_the_same_bits(
    settings: dict[str, Any], tmp_path: Path, start_process: Callable[..., Any]
) -> None:
    settings["tasks"]["total"] = 80
    whole = start_process(program.train, settings, str(tmp_path / "whole"), False)
    whole.join(600)
    assert whole.exitcode == 0
    assert _kill_until_done(settings, tmp_path / "killed", start_process, kills=8, longest=1.2) >= 3
    assert_same_run(tmp_path / "whole", tmp_path / "killed")


@pytest.mark.slow
def test_a_run_killed_a_hundred_times_ends_with_the_same_bits(
    settings: dict[str, Any], tmp_path: Path, start_process: Callable[..., Any]
) -> None:
    settings["tasks"]["total"] = 800
    settings["validation"]["every"] = 40
    whole = start_process(program.train, settings, str(tmp_path / "whole"), False)
    whole.join(600)
    assert whole.exitcode == 0
    assert _kill_until_done(settings, tmp_path / "killed", start_process, kills=100, longest=1.5) >= 50
    assert_same_run(tmp_path / "whole", tmp_path / "killed")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_leaves_and_resume_goes_on(
    settings: dict[str, Any], tmp_path: Path, cnaps: Callable[..., Any], number: signal.Signals
) -> None:
    settings["tasks"]["total"] = 60
    settings["checkpoint_every"] = 1000
    settings["validation"]["every"] = 1000
    config = tmp_path / "config.json"
    config.write_text(json.dumps(settings))
    run = tmp_path / "run"
    command = [sys.executable, program.__file__, "train", str(config), "--out", str(run), "--device", "cpu"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        metrics = run / "metrics.jsonl"
        while process.poll() is None and not (metrics.exists() and len(metrics.read_bytes()) > 600):
            time.sleep(0.02)
        process.send_signal(number)
        _, error = process.communicate(timeout=300)
    assert process.returncode == 128 + number, error
    assert "continue with: cnaps train --resume" in error
    assert len(checkpoints(run)) == 1
    done = cnaps("train", "--resume", run, "--device", "cpu")
    assert done.returncode == 0, done.stderr
    train(build(TrainConfig, settings), tmp_path / "whole", device="cpu")
    assert_same_run(tmp_path / "whole", run)


def test_a_damaged_checkpoint_is_told_and_the_one_before_it_goes_on(
    settings: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = build(TrainConfig, settings)
    train(config, tmp_path / "run", device="cpu")
    whole = final_tensors(tmp_path / "run")
    newest = checkpoints(tmp_path / "run")[-1]
    newest.write_bytes(newest.read_bytes()[:1000])
    train(config, tmp_path / "run", resume=True, device="cpu")
    assert f"{newest.name} is damaged" in capsys.readouterr().err
    again = final_tensors(tmp_path / "run")
    assert all(torch.equal(whole[name], again[name]) for name in whole)


def test_other_data_than_the_run_began_with_is_refused(settings: dict[str, Any], tmp_path: Path) -> None:
    config = build(TrainConfig, settings)
    train(config, tmp_path / "run", device="cpu")
    path = tmp_path / "run" / "environment.json"
    path.write_text(path.read_text().replace('"digits": "', '"digits": "other'))
    with pytest.raises(CheckpointError, match="the collection digits is not the one"):
        train(config, tmp_path / "run", resume=True, device="cpu")


def test_a_full_disk_is_told_and_leaves_the_previous_checkpoint(
    settings: dict[str, Any], tmp_path: Path, start_process: Callable[..., Any]
) -> None:
    # A limit of the size of files makes writing fail as a full disk does: in the middle, with an OSError.
    config = build(TrainConfig, settings)
    train(config, tmp_path / "run", device="cpu")
    newest = checkpoints(tmp_path / "run")[-1]
    room = newest.stat().st_size // 2
    newest.unlink()
    previous = checkpoints(tmp_path / "run")[-1]
    content = previous.read_bytes()
    process = start_process(program.train_with_little_room, settings, str(tmp_path / "run"), room)
    process.join(600)
    assert process.exitcode == 42
    assert checkpoints(tmp_path / "run") == [previous]
    assert previous.read_bytes() == content
    assert not list((tmp_path / "run" / "checkpoints").glob(".*")), "no half-written file stays"


def test_an_unwritable_folder_is_told(settings: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CnapsError, match=r"cannot write .*run: .*file is no folder"):
        train(build(TrainConfig, settings), tmp_path / "file" / "run", device="cpu")


def test_a_resumed_run_takes_no_new_settings(cnaps: Callable[..., Any], tmp_path: Path) -> None:
    done = cnaps("train", "--resume", tmp_path, "--set", "seed=3")
    assert done.returncode == 2
    assert "start a new run with --set init.model" in done.stderr
    assert "Traceback" not in done.stderr
