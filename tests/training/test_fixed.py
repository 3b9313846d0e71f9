"""Training of a head on features that are computed once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from cnaps import load_model
from cnaps.errors import CheckpointError, InputError
from cnaps.training.config import TrainConfig
from cnaps.training.distributed import World
from cnaps.training.engine import Job
from cnaps.training.fixed import FixedNetworkJob, _Features, make_job
from cnaps.training.settings import apply_changes, build
from cnaps.training.start import build_model, train

FIXED = ("model.adaptation=none", "model.embedding_size=0", "model.head=linear", "memory.lite=100")


@pytest.fixture
def plain(settings: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in apply_changes(settings, FIXED).items() if key != "augmentation"}


def job_of(settings: dict[str, Any], *changes: str) -> Job:
    config = build(TrainConfig, apply_changes(settings, changes))
    return make_job(build_model(config), config, World(device="cpu"))


def weights_after(job: Job, steps: int) -> torch.Tensor:
    for step in range(steps):
        assert job.step(step, lambda: False) is not None
    job.close()
    return torch.cat([p.detach().flatten() for p in job._parameters])


def test_a_head_learns_the_same_from_features_as_from_images(plain: dict[str, Any]) -> None:
    smooth = ("optimiser.epsilon=1e-3", "optimiser.learning_rate=1e-2")  # else Adam makes much of rounding
    ours, theirs = job_of(plain, "memory.features=true", *smooth), job_of(plain, *smooth)
    assert type(ours) is not type(theirs)
    before = torch.cat([p.detach().flatten() for p in ours._parameters])
    learned = weights_after(ours, 3)
    torch.testing.assert_close(learned, weights_after(theirs, 3), rtol=1e-3, atol=1e-5)
    assert not torch.allclose(before, learned, atol=1e-3)
    assert ours.validate(lambda: False) == pytest.approx(theirs.validate(lambda: False) or {}, abs=0.02)


def test_trainings_around_one_backbone_share_its_features(plain: dict[str, Any]) -> None:
    def features(*changes: str) -> _Features:
        job = job_of(plain, "memory.features=true", *changes)
        job.close()
        assert isinstance(job, FixedNetworkJob)
        return job._features

    first = features("init.backbone=random")
    assert features("init.backbone=random", "optimiser.learning_rate=1e-2") is first
    assert features("init.backbone=random", "model.image_size=24") is not first
    assert features("init.backbone=random", "seed=7") is not first, "other weights"


def test_features_that_change_cannot_be_kept(settings: dict[str, Any]) -> None:
    settings = apply_changes(settings, ["memory.lite=100"])
    with pytest.raises(InputError, match="cnaps-no-film"):
        job_of(settings, "memory.features=true")
    with pytest.raises(InputError, match="no augmentation"):
        job_of({**settings, "augmentation": {"flip": 0.5}}, "memory.features=true", *FIXED)
    with pytest.raises(InputError, match="frozen"):
        job_of(settings, "memory.features=true", "theta.mode=joint", *FIXED)


def test_the_head_of_another_model_may_be_the_start(plain: dict[str, Any], tmp_path: Path) -> None:
    config = build(TrainConfig, apply_changes(plain, ["memory.features=true"]))
    train(config, tmp_path / "head", device="cpu")
    taught = load_model(tmp_path / "head" / "last").head.state_dict()
    adapting = apply_changes(plain, ["model.adaptation=film", "model.embedding_size=8"])
    source = tmp_path / "head" / "last"
    begun = build_model(build(TrainConfig, apply_changes(adapting, [f'init.head="{source}"'])))
    for name, value in begun.head.state_dict().items():
        torch.testing.assert_close(value, taught[name])
    assert begun.state_dict().keys() > {f"head.{name}" for name in taught}
    with pytest.raises(CheckpointError, match="does not fit"):
        build_model(build(TrainConfig, apply_changes(adapting, [f'init.head="{source}"', "model.head=cosine"])))
    import cnaps.paper.learners  # noqa: F401  # makes other methods known

    with pytest.raises(InputError, match="has no head"):
        build_model(build(TrainConfig, apply_changes(plain, ["learner=fomaml", f'init.head="{source}"'])))
