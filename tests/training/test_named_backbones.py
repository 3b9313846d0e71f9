"""`cnaps train` around networks of transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers", reason="needs transformers: pip install 'cnaps[transformers]'")

from cnaps import load_model
from cnaps.nn.backbones import open_backbone
from cnaps.training.config import TrainConfig
from cnaps.training.settings import build
from cnaps.training.start import train

from ..nn import families


@pytest.mark.parametrize("family", ["vit", "convnext"])
def test_phi_is_trained_around_a_network_by_name_and_theta_stays(
    family: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    folder = families.write(families.network_of(family), tmp_path / family, 32)
    name = f"transformers:{folder}"
    config = settings | {
        "model": {"backbone": name, "head": "cosine", "embedding_size": 8, "generator_width": 16},
        "init": {},
        "memory": {"lite": 5, "chunk_size": 4, "checkpoint": True},
    }
    state, _ = train(build(TrainConfig, config), tmp_path / "run", device="cpu")
    assert state.step == 4
    model = load_model(tmp_path / "run" / "last")
    assert model.backbone.digest() == open_backbone(name).digest()
    start = load_model(tmp_path / "run" / "best")
    assert model.adaptation is not None
    assert all(torch.isfinite(p).all() for p in model.phi_parameters())
    assert start.config.backbone == name


def test_the_command_trains_around_a_network_by_name(
    cnaps: Any, digits: Path, settings: dict[str, Any], tmp_path: Path
) -> None:
    import json

    folder = families.write(families.network_of("convnext"), tmp_path / "network", 32)
    file = tmp_path / "config.json"
    settings["model"] = {"head": "cosine", "embedding_size": 0, "backbone": "to be given"}
    file.write_text(json.dumps(settings | {"init": {}}))
    run = cnaps("train", file, "--out", tmp_path / "run", "--backbone", f"transformers:{folder}")
    assert run.returncode == 0, run.stderr
    assert "Loading weights" not in run.stderr
    missing = cnaps("train", file, "--out", tmp_path / "other", "--set", "model.backbone=transformers:./nothing")
    assert missing.returncode != 0
    assert "holds no network of transformers" in missing.stderr
    assert "Traceback" not in missing.stderr
