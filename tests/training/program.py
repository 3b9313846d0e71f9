"""The command line with a small backbone of the tests' own; a program, so that it can be killed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.models import small_backbone

from cnaps.nn.backbones import register_backbone

BACKBONE = "tiny-for-tests"
register_backbone(BACKBONE, lambda: small_backbone(8, 16, 24))


def train(settings: dict[str, Any], folder: str, resume: bool) -> None:
    """What a process that will be killed runs."""
    from cnaps.training.config import TrainConfig
    from cnaps.training.settings import build
    from cnaps.training.start import train

    train(build(TrainConfig, settings), folder, resume=resume, device="cpu")


def train_with_little_room(settings: dict[str, Any], folder: str, room: int) -> None:
    """Resume where no file can become larger than ``room``; exit code 42 for an error that says so."""
    import resource
    import signal

    from cnaps.errors import CnapsError

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))
    try:
        train(settings, folder, True)
    except CnapsError as error:
        raise SystemExit(42 if "cannot write" in str(error) else 1) from error


def peak_memory_of_a_step(settings: dict[str, Any], results: Any) -> None:
    """Train one step and tell the most memory that this process has used."""
    from cnaps.training.config import TrainConfig
    from cnaps.training.distributed import World
    from cnaps.training.engine import peak_memory
    from cnaps.training.episodic import EpisodicJob
    from cnaps.training.settings import build
    from cnaps.training.start import build_model

    config = build(TrainConfig, settings)
    job = EpisodicJob(build_model(config), config, World(device="cpu"))
    job.step(0, lambda: False)
    job.close()
    results.put(peak_memory())


if __name__ == "__main__":
    from cnaps.cli import main

    main()
