from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from cnaps.errors import CheckpointError, InputError
from cnaps.nn.backbones import create_backbone
from cnaps.training.checkpoint import load_checkpoint
from cnaps.training.config import PretrainConfig
from cnaps.training.distributed import World
from cnaps.training.pretraining import PretrainingJob
from cnaps.training.run import checkpoints
from cnaps.training.start import load_backbone, pretrain

from . import program


def make(digits: Path, **changes: object) -> PretrainConfig:
    small = {"backbone": program.BACKBONE, "epochs": 1, "batch": 64, "checkpoint_every": 5, "tensorboard": False}
    return PretrainConfig(data=(str(digits),), **{**small, **changes})  # type: ignore[arg-type]


def test_a_pretrained_backbone_knows_held_out_images(theta: Path) -> None:
    records = [json.loads(line) for line in (theta / "metrics.jsonl").read_text().splitlines()]
    best = max(r["accuracy"] for r in records if r["kind"] == "validation")
    assert best > 0.6, "six classes: chance is 0.17"
    backbone = create_backbone(program.BACKBONE)
    before = backbone.state_dict()["stem.0.weight"].clone()
    load_backbone(backbone, str(theta))
    assert not torch.equal(before, backbone.state_dict()["stem.0.weight"])
    with pytest.raises(CheckpointError, match="does not fit"):
        load_backbone(create_backbone("resnet18"), str(theta))


def test_every_epoch_shows_each_training_image_once_and_no_held_out_one(digits: Path) -> None:
    job = PretrainingJob(make(digits, held_out=0.1), World(device="cpu"))
    steps = job._epoch_steps
    for epoch in range(2):
        rows = [int(r) for step in range(steps) for r in job._rows(epoch * steps + step)]
        assert sorted(rows) == job._images.train.tolist()
    assert job._rows(0).tolist() != job._rows(steps).tolist()
    held_out = set(job._images.held_out.tolist())
    assert held_out
    assert not held_out & set(job._images.train.tolist())


def test_pretraining_resumes_to_the_same_bits(digits: Path, tmp_path: Path) -> None:
    config = make(digits)
    pretrain(config, tmp_path / "whole", device="cpu")
    run = tmp_path / "broken off"
    pretrain(config, run, device="cpu")
    newest, before = checkpoints(run)[-1], checkpoints(run)[-2]
    newest.unlink()  # as if it had been killed between these two
    assert load_checkpoint(before)[1]["step"] < PretrainingJob(config, World(device="cpu")).steps
    pretrain(config, run, resume=True, device="cpu")
    one, two = (load_checkpoint(checkpoints(r)[-1])[0] for r in (tmp_path / "whole", run))
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_one_class_cannot_be_classified(digits: Path) -> None:
    with pytest.raises(InputError, match="2 are needed"):
        PretrainingJob(PretrainConfig(data=(f"{digits}:test",), backbone=program.BACKBONE), World(device="cpu"))
