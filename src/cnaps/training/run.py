"""The folder of a run, which explains itself.

RUN/config.json         every setting, also those left at their defaults
    environment.json    versions, git revision, threads, fingerprints of the data
    metrics.jsonl       one line a step and one a validation
    curves.png          the same as a picture
    tensorboard/        the same for TensorBoard
    checkpoints/        the last two states of the run
    best/ last/         ordinary model folders
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, Any

import torch

from cnaps import values
from cnaps.errors import CheckpointError, CnapsError, InputError
from cnaps.files import check_output, lock_folder, read_json, write_json
from cnaps.training.checkpoint import load_checkpoint, save_checkpoint

KEPT = 2  # checkpoints: the newest, and the one before it in case the newest is damaged


class RunFolder:
    """Writes and reads the folder of one run; only the main process of a run has one."""

    def __init__(self, path: Path, *, tensorboard: bool = True) -> None:
        self.path = path
        self._tensorboard = tensorboard
        busy = f"another process is training in {path}; wait for it or stop it first"
        self._lock = lock_folder(path, busy)
        self._metrics = _open(path / "metrics.jsonl")
        self._writer: Any = None
        self._drawn = time.monotonic()

    @classmethod
    def create(cls, path: str | Path, config: Any, environment: dict[str, Any]) -> RunFolder:
        """Begin a run in a new or empty folder."""
        path = Path(path)
        if (path / "config.json").exists():
            raise InputError(f"{path} already holds a run: continue it with --resume, or choose another folder")
        check_output(path, folder=(".lock",))
        run = cls(path, tensorboard=config.tensorboard)
        write_json(path / "environment.json", environment)
        write_json(path / "config.json", dataclasses.asdict(config))
        return run

    def log(self, record: dict[str, Any]) -> None:
        """Append a line to metrics.jsonl and to TensorBoard's events."""
        # A log grows line by line, so it is not rewritten whole; a torn line is cut off by the next resume.
        try:
            self._metrics.write(json.dumps(record).encode() + b"\n")
            self._metrics.flush()
        except OSError as error:
            raise CnapsError(f"cannot write {self.path / 'metrics.jsonl'}: {error.strerror or error}") from error
        writer = self._summary_writer(record["step"])
        if writer is not None:
            sets = {f"sets/{name}": value for name, value in record.get("sets", {}).items()}
            for key, value in {**record, **sets}.items():
                if isinstance(value, int | float) and key != "step":
                    writer.add_scalar(f"{record['kind']}/{key}", float(value), record["step"])

    def save(self, tensors: dict[str, torch.Tensor], state: dict[str, Any]) -> None:
        """Write a checkpoint that also knows how long the metrics were, then drop the oldest ones."""
        os.fsync(self._metrics.fileno())
        target = self.path / "checkpoints" / f"step-{state['step']:08d}.safetensors"
        save_checkpoint(target, tensors, {**state, "metrics_bytes": self._metrics.tell()})
        for old in checkpoints(self.path)[:-KEPT]:
            old.unlink(missing_ok=True)

    def cut_metrics(self, length: int) -> None:
        """Forget what was logged after a checkpoint: those steps are done again."""
        self._metrics.truncate(min(length, self._metrics.seek(0, os.SEEK_END)))
        self._metrics.seek(0, os.SEEK_END)

    def draw_curves(self, at_most_every: float = 0) -> None:
        """Draw the metrics so far, unless that was done a short time (in seconds) ago."""
        if time.monotonic() - self._drawn >= at_most_every:
            from cnaps.training.curves import draw_curves

            draw_curves(self.path)
            self._drawn = time.monotonic()

    def close(self) -> None:
        """Close every file and give the folder free."""
        for file in (self._metrics, self._writer, self._lock):
            if file is not None:
                file.close()

    def _summary_writer(self, step: int) -> Any:
        if self._writer is None and self._tensorboard:
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError:  # an optional extra: the metrics and curves are there without it
                self._tensorboard = False
                return None
            # What a killed run wrote beyond its checkpoint is hidden by purge_step.
            self._writer = SummaryWriter(str(self.path / "tensorboard"), purge_step=step)
        return self._writer


def check_environment(run: Path, environment: dict[str, Any]) -> list[str]:
    """Compare with the environment at the start of a run: other data is refused, other versions are told."""
    path = run / "environment.json"
    try:
        old = values.table(read_json(path), "it")
        data = values.table(old.get("data"), "data")
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    for name, fingerprint in environment["data"].items():
        if data.get(name) != fingerprint:
            raise CheckpointError(f"the collection {name} is not the one that the run {run} began with")
    return [
        f"{key} was {old.get(key)} and is {value}: the weights may differ by rounding"
        for key, value in environment.items()
        if key in ("torch", "threads", "processes", "device") and old.get(key) != value
    ]


def checkpoints(run: Path) -> list[Path]:
    """The checkpoints of a run, oldest first."""
    return sorted((run / "checkpoints").glob("step-*.safetensors"))


def latest_checkpoint(run: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]] | None:
    """The newest checkpoint of a run that is whole, or None before the first; a damaged one is told."""
    for path in reversed(files := checkpoints(run)):
        try:
            found = load_checkpoint(path)
            check_state(found[1], path)
            return found
        except CheckpointError as error:
            if path == files[0]:
                raise CheckpointError(f"{error}. Remove this file to continue from the beginning.") from error
            if os.environ.get("RANK", "0") == "0":
                print(f"note: {error}; the one before it is taken", file=sys.stderr)
    return None


def check_state(state: dict[str, Any], path: Path) -> None:
    """Refuse a state that no run can be in."""
    try:
        for key in ("step", "validated", "best_step", "metrics_bytes"):
            values.count(state.get(key), key)
        for name, value in values.table(state.get("best"), "best").items():
            values.number(value, values.name(name, "a data set"), 0, 1)
    except ValueError as error:
        raise CheckpointError(f"the checkpoint {path} is damaged: {error}") from error


def environment(collections: dict[str, str], *, processes: int, device: str) -> dict[str, Any]:
    """What a result depends on besides the configuration."""
    import numpy

    from cnaps import __version__

    return {
        "cnaps": __version__,
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "platform": platform.platform(),
        "device": device,
        "threads": torch.get_num_threads(),
        "processes": processes,
        "git": git_revision(),
        "command": sys.argv,
        "data": collections,
    }


def git_revision() -> str | None:
    """The revision of the source tree, with ``+`` if it was changed; None outside of one."""
    here = Path(__file__).parent

    def git(*arguments: str) -> str:
        options: dict[str, Any] = {"cwd": here, "text": True, "timeout": 10, "stderr": subprocess.DEVNULL}
        return subprocess.check_output(["git", *arguments], **options).strip()

    with contextlib.suppress(OSError, subprocess.SubprocessError):
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", "--", str(here)) else "")
    return None


def _open(path: Path) -> IO[bytes]:
    try:
        return path.open("ab")
    except OSError as error:
        raise CnapsError(f"cannot write {path}: {error.strerror or error}") from error
