"""Starting and resuming runs: from a configuration to a finished run folder."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import torch
from torch import nn

from cnaps.errors import InputError
from cnaps.nn.checkpoints import load_backbone, load_task_model, load_weights
from cnaps.nn.config import ModelConfig
from cnaps.nn.task_model import TaskModel, find_recipe
from cnaps.training.config import PretrainConfig, TrainConfig
from cnaps.training.distributed import World
from cnaps.training.engine import Job, NonFiniteError, State, fit
from cnaps.training.fixed import make_job
from cnaps.training.pretraining import PretrainingJob
from cnaps.training.run import RunFolder, check_environment, environment, latest_checkpoint
from cnaps.training.settings import build
from cnaps.weights import current_settings

Outcome = tuple[State, int | None]  # where a run stands, and the signal that ended it early, if one did


def train(config: TrainConfig, folder: str | Path, *, resume: bool = False, device: str = "auto") -> Outcome:
    """Meta-train in a run folder; what ``cnaps train`` calls."""
    world = World(device=device, precision=config.memory.precision)
    return _run(config, Path(folder), world, lambda: make_job(build_model(config), config, world), resume)


def pretrain(config: PretrainConfig, folder: str | Path, *, resume: bool = False, device: str = "auto") -> Outcome:
    """Train theta by full-way classification in a run folder; what ``cnaps pretrain`` calls."""
    world = World(device=device)
    return _run(config, Path(folder), world, lambda: PretrainingJob(config, world), resume)


def build_model(config: TrainConfig) -> TaskModel:
    """The model a run starts from: a saved one, or a new phi around given or bundled backbone weights."""
    torch.manual_seed(config.seed)
    model = load_task_model(config.init.model) if config.init.model else _new_model(config)
    adaptation = getattr(model, "adaptation", None)
    if config.init.regulariser is not None and adaptation is not None:
        for generator in adaptation.generators:
            generator.set_regulariser(config.init.regulariser)
    if config.init.head:
        taught = load_task_model(config.init.head)
        if not (hasattr(model, "head") and hasattr(taught, "head")):
            raise InputError(f"init.head: {config.init.head} or the model to train has no head")
        load_weights(model.head, taught.head.state_dict(), config.init.head)
    for name in config.init.freeze:
        part = getattr(model, name, None)
        if not isinstance(part, nn.Module) or part is model.backbone:
            raise InputError(f"init.freeze: this model has no part of phi named {name!r}")
        part.requires_grad_(False)
    return model


def _new_model(config: TrainConfig) -> TaskModel:
    table = current_settings(config.model)
    if "preset" in table:
        table = asdict(ModelConfig.preset(str(table.pop("preset")))) | table
    recipe = find_recipe(config.learner or "cnaps")
    if config.learner:
        table |= recipe.config
    model = recipe.model(build(ModelConfig, table, "model."))
    source = config.init.backbone
    if source == "auto":
        if model.backbone.pretrained is not None:
            model.backbone.load_pretrained()
        elif config.theta.mode == "frozen":
            raise InputError(
                f"the backbone {model.config.backbone} has no weights of its own: pre-train it with "
                "`cnaps pretrain` and set init.backbone to that run, or to random for random features"
            )
    elif source != "random":
        load_backbone(model.backbone, source)
    return model


def _run(
    config: TrainConfig | PretrainConfig, folder: Path, world: World, make_job: Callable[[], Job], resume: bool
) -> Outcome:
    run: RunFolder | None = None
    job: Job | None = None
    try:
        # Everything that may be wrong with the configuration shows here, before a folder is made.
        job = make_job()
        if world.is_main:
            facts = environment(job.fingerprints, processes=world.size, device=world.device.type)
            if resume:
                run = RunFolder(folder, tensorboard=config.tensorboard)
                for change in check_environment(folder, facts):
                    print(f"note: {change}", file=sys.stderr)
            else:
                run = RunFolder.create(folder, config, facts)
        world.wait()
        saved = latest_checkpoint(folder) if resume else None  # read by each rank: all of them see the folder
        if run is not None:
            run.cut_metrics(saved[1]["metrics_bytes"] if saved else 0)
        world.wait()
        return fit(job, run, saved)
    except NonFiniteError:
        if world.is_main:
            raise
        raise SystemExit(2) from None  # every rank knows; one of them says it
    finally:
        for each in (job, run, world):
            if each is not None:
                each.close()
