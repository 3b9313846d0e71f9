"""``cnaps pretrain`` and ``cnaps train``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import typer

from cnaps.cli.common import echo
from cnaps.cli.evaluate import start_processes

CONFIG = typer.Argument(None, help="A TOML or JSON file of settings; without one, the paper's defaults.")
RUN = typer.Option(None, "--out", help="The folder of the new run, e.g. runs/first.")
RESUME = typer.Option(None, "--resume", help="Continue the run in this folder, exactly where it stood.")
SET = typer.Option([], "--set", help="Change a setting: --set optimiser.learning_rate=1e-3; repeat as needed.")
DEVICE = typer.Option("auto", help="auto (a GPU if there is one) or cpu.")
PROCESSES = typer.Option(1, min=1, help="Processes on this machine; the tasks of a step are shared out.")
SHOW = typer.Option(False, "--show-config", help="Print every setting as it would be used, and leave.")


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("pretrain")(pretrain)
    app.command("train")(train)


def train(
    config: Path | None = CONFIG,
    learner: str | None = typer.Option(
        None, help="The method to train, see `cnaps learners`; cnaps if not given."
    ),
    backbone: str | None = typer.Option(
        None,
        help="The network to adapt (model.backbone), e.g. resnet18, timm:NAME or transformers:FOLDER.",
    ),
    run: Path | None = RUN,
    resume: Path | None = RESUME,
    changes: list[str] = SET,
    device: str = DEVICE,
    processes: int = PROCESSES,
    show_config: bool = SHOW,
) -> None:
    """Train the adaptation networks (phi) on tasks; theta stays as it is.

    Example: cnaps train configs/cnaps-lite0.toml --out runs/phi --set seed=3
    """
    if backbone is not None:
        changes = [f'model.backbone="{backbone}"', *changes]
    if learner is not None:
        changes = [*_learner_settings(learner), *changes]
    _start("train", config, run, resume, changes, device, processes, show_config)


def pretrain(
    config: Path | None = CONFIG,
    run: Path | None = RUN,
    resume: Path | None = RESUME,
    changes: list[str] = SET,
    device: str = DEVICE,
    processes: int = PROCESSES,
    show_config: bool = SHOW,
) -> None:
    """Train a feature extractor (theta) by classifying all classes of one collection or several.

    Example: cnaps pretrain --out runs/theta --set 'data=["collections/ilsvrc_2012"]'
    """
    _start("pretrain", config, run, resume, changes, device, processes, show_config)


def _start(
    command: str,
    file: Path | None,
    run: Path | None,
    resume: Path | None,
    changes: list[str],
    device: str,
    processes: int,
    show_config: bool,
) -> None:
    from cnaps.errors import InputError
    from cnaps.training.config import PretrainConfig, TrainConfig
    from cnaps.training.settings import apply_changes, build, build_saved, read_settings

    if resume is not None and (file or run or changes):
        raise InputError(
            "--resume continues a run as it was configured: give no configuration, --out or --set with it. "
            "To go on with other settings, start a new run with --set init.model=RUN/last"
        )
    kind: Any = TrainConfig if command == "train" else PretrainConfig
    if resume is not None:
        settings = build_saved(kind, resume)
    else:
        settings = build(kind, apply_changes(read_settings(file) if file else {}, changes))
    if show_config:
        import dataclasses
        import json

        echo(json.dumps(dataclasses.asdict(settings), indent=2))
        return
    folder = resume or run
    if folder is None:
        raise InputError("name a folder for the run: --out runs/first (or --resume RUN to continue one)")
    start_processes(processes)
    import cnaps.paper.learners  # noqa: F401  makes the compared methods known
    from cnaps.training import start

    state, ended_by = getattr(start, command)(settings, folder, resume=resume is not None, device=device)
    if os.environ.get("RANK", "0") == "0":
        if ended_by is not None:
            then = f"continue with: cnaps {command} --resume {folder}"
            echo(f"stopped after step {state.step}; {then}", err=True)
        else:
            echo(f"trained {state.step} steps; the last model: {folder / 'last'}")
            if state.best:
                mean = sum(state.best.values()) / len(state.best)
                echo(f"best validation accuracy {mean:.4f} after step {state.best_step}: {folder / 'best'}")
    if ended_by is not None:
        raise typer.Exit(128 + ended_by)


def _learner_settings(name: str) -> list[str]:
    """What training a method means, as settings."""
    from cnaps.errors import InputError
    from cnaps.paper.learners import find_learner

    entry = find_learner(name)
    if not entry.trained:
        raise InputError(f"{name} learns nothing beforehand: there is nothing to train")
    return [f'learner="{name}"', *(f'theta.{key}="{value}"' for key, value in entry.theta.items())]
