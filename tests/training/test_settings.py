from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch

from cnaps import CNAPs
from cnaps.errors import CheckpointError, InputError
from cnaps.training.config import Data, Init, PretrainConfig, Schedule, TrainConfig
from cnaps.training.settings import apply_changes, build, build_saved, read_settings
from cnaps.training.start import build_model

MINIMAL = {"data": {"train": ["somewhere"]}}


def test_the_defaults_of_meta_training_are_the_papers() -> None:
    config = build(TrainConfig, MINIMAL)
    assert (config.tasks.total, config.tasks.per_step) == (110_000, 16)
    assert config.optimiser.learning_rate == 5e-4
    assert config.optimiser.schedule.kind == "constant"
    assert (config.validation.tasks_per_set, config.validation.rule) == (200, "majority")
    assert (config.loss.reduction, config.loss.penalty) == ("mean", 0.001)
    assert config.theta.mode == "frozen"


def test_the_defaults_of_pretraining_are_the_papers() -> None:
    config = build(PretrainConfig, {"data": ["somewhere"]})
    assert (config.epochs, config.batch, config.learning_rate) == (125, 256, 0.1)
    assert (config.drop_every, config.drop, config.momentum, config.weight_decay) == (25, 0.1, 0.9, 1e-4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            ["optimiser.learning_rat=1"],
            "unknown setting optimiser.learning_rat; did you mean optimiser.learning_rate",
        ),
        (["optimiser.learning_rate=fast"], "optimiser.learning_rate must be of type float, not 'fast'"),
        (["tasks.total=true"], "tasks.total must be of type int"),
        (["validation.rule=best"], "validation.rule is 'best': choose one of majority, half, mean"),
        (["data.train=a"], "data.train must be a list"),
        (["tasks=3"], "tasks is a group of settings"),
        (["seed.deep=3", "seed"], "write it as key=value"),
        (["optimiser.clip=-1"], "optimiser.clip must be above 0"),
        (["augmentation.flip=1.5"], "augmentation.flip must lie between 0 and 1"),
        (["data.train=[]"], "data.train is empty"),
    ],
)
def test_a_wrong_setting_is_named_with_its_full_key(changes: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message.replace("(", r"\(")):
        build(TrainConfig, apply_changes(MINIMAL, changes))


def test_settings_of_the_first_version_are_understood_by_their_old_names() -> None:
    config = build(TrainConfig, {**MINIMAL, "teacher": {"weight": 2, "collections": ["a"]}})
    assert (config.distillation.weight, config.distillation.collections) == (2.0, ("a",))
    table = {"backbone": "efficientnet_lite0", "head": "cosine", "shared_rank": 2, "shared_large": 0.5}
    model = build_model(TrainConfig(data=Data(train=("-",)), model=table))
    assert (model.config.lora_rank, model.config.lora_large) == (2, 0.5)


def test_single_settings_replace_those_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text('seed = 3\n[data]\ntrain = ["a"]\n[optimiser]\nclip = 2\n')
    table = apply_changes(read_settings(file), ["optimiser.clip=5", "init.model=runs/a", "data.valid=['b:test']"])
    config = build(TrainConfig, table)
    assert (config.seed, config.optimiser.clip, config.init.model) == (3, 5.0, "runs/a")
    assert config.data.valid == ("b:test",)


def test_a_file_that_is_no_configuration_is_refused(tmp_path: Path) -> None:
    (tmp_path / "broken.toml").write_text("seed = = 3")
    with pytest.raises(InputError, match="cannot be parsed"):
        read_settings(tmp_path / "broken.toml")
    with pytest.raises(InputError, match="No such file"):
        read_settings(tmp_path / "absent.toml")
    with pytest.raises(CheckpointError, match="nothing to resume"):
        build_saved(TrainConfig, tmp_path)


def test_a_schedule_warms_up_and_then_falls() -> None:
    cosine = Schedule(kind="cosine", warmup=4, floor=0.1)
    factors = [cosine.factor(step, 20) for step in range(20)]
    assert factors[:4] == [0.25, 0.5, 0.75, 1.0]
    assert all(a >= b for a, b in itertools.pairwise(factors[4:]))
    assert 0.1 < factors[-1] < 0.13
    drops = Schedule(kind="step", every=5)
    assert [round(drops.factor(step, 20), 6) for step in (0, 4, 5, 10)] == [1.0, 1.0, 0.1, 0.01]
    assert Schedule().factor(10_000, 20) == 1.0


def test_a_run_may_start_with_an_r_of_its_own_and_the_same_film() -> None:
    table = {"backbone": "efficientnet_lite0", "head": "cosine", "generator_width": 16, "set_encoder_norm": "none"}
    configs = [TrainConfig(data=Data(train=("-",)), model=table, init=Init(regulariser=r)) for r in (None, 0.1)]
    published, chosen = (build_model(config) for config in configs)
    images, labels = torch.rand(4, 3, 64, 64), torch.tensor([0, 0, 1, 1])
    assert isinstance(published, CNAPs)
    assert isinstance(chosen, CNAPs)
    with torch.no_grad():
        first, second = (model.adapt(images, labels).film.vector() for model in (published, chosen))
    torch.testing.assert_close(first, second, atol=1e-6, rtol=1e-5)
    assert chosen.adaptation is not None
    assert all(torch.all(g.get_parameter("regulariser") == 0.1) for g in chosen.adaptation.generators)
    assert published.regularization() < 0.1 < chosen.regularization()
