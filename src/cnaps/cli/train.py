"""``cnaps pretrain`` and ``cnaps train``."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from cnaps.cli.common import command, echo
from cnaps.cli.options import start_processes
from cnaps.errors import InputError

_CONFIG = "A TOML or JSON file of settings; without one, the paper's defaults."
_RESUME = "Continue the run in this folder, exactly where it stood."
_SET = "Change a setting: --set optimiser.learning_rate=1e-3; repeat as needed."
_BACKBONE = "The network to adapt (model.backbone), e.g. resnet18, timm:NAME or transformers:FOLDER."
_PROCESSES = "Processes on this machine; the tasks of a step are shared out."
_SHOW = "Print every setting as it would be used, and leave."

_Config = Annotated[Path | None, typer.Argument(help=_CONFIG)]
_Learner = Annotated[
    str | None, typer.Option(help="The method to train, see `cnaps learners`; cnaps if not given.")
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Run:
    """What every training is told besides its settings."""

    run: Annotated[Path | None, typer.Option("--out", help="The folder of the new run, e.g. runs/first.")] = None
    resume: Annotated[Path | None, typer.Option("--resume", help=_RESUME)] = None
    changes: Annotated[list[str], typer.Option("--set", default_factory=list, show_default=False, help=_SET)]
    device: Annotated[str, typer.Option(help="auto (a GPU if there is one) or cpu.")] = "auto"
    processes: Annotated[int, typer.Option(min=1, help=_PROCESSES)] = 1
    show_config: Annotated[bool, typer.Option("--show-config", help=_SHOW)] = False


@command()
def pretrain(config: _Config = None, *, how: _Run) -> None:
    """Train a feature extractor (theta) by classifying all classes of one collection or several.

    Example: cnaps pretrain --out runs/theta --set 'data=["collections/ilsvrc_2012"]'
    """
    _start("pretrain", config, how.changes, how)


@command()
def train(
    config: _Config = None,
    learner: _Learner = None,
    backbone: Annotated[str | None, typer.Option(help=_BACKBONE)] = None,
    *,
    how: _Run,
) -> None:
    """Train the adaptation networks (phi) on tasks; theta stays as it is.

    Example: cnaps train configs/cnaps-lite0.toml --out runs/phi --set seed=3
    """
    changes = [f'model.backbone="{backbone}"'] if backbone is not None else []
    if learner is not None:
        changes = [*_learner_settings(learner), *changes]
    _start("train", config, [*changes, *how.changes], how)


def _start(command: str, file: Path | None, changes: list[str], how: _Run) -> None:
    from cnaps.training.config import PretrainConfig, TrainConfig
    from cnaps.training.settings import apply_changes, build, build_saved, read_settings

    resume = how.resume
    if resume is not None and (file or how.run or changes):
        raise InputError(
            "--resume continues a run as it was configured: give no configuration, --out or --set with it. "
            "To go on with other settings, start a new run with --set init.model=RUN/last"
        )
    kind: Any = TrainConfig if command == "train" else PretrainConfig
    if resume is not None:
        settings = build_saved(kind, resume)
    else:
        settings = build(kind, apply_changes(read_settings(file) if file else {}, changes))
    if how.show_config:
        echo(json.dumps(dataclasses.asdict(settings), indent=2))
        return
    folder = resume or how.run
    if folder is None:
        raise InputError("name a folder for the run: --out runs/first (or --resume RUN to continue one)")
    start_processes(how.processes)
    import cnaps.paper.learners  # noqa: F401  makes the compared methods known
    from cnaps.training import start

    state, ended_by = getattr(start, command)(settings, folder, resume=resume is not None, device=how.device)
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
    from cnaps.paper.learners import find_learner

    entry = find_learner(name)
    if not entry.trained:
        raise InputError(f"{name} learns nothing beforehand: there is nothing to train")
    return [f'learner="{name}"', *(f'theta.{key}="{value}"' for key, value in entry.theta.items())]
