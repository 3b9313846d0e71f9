from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from cnaps import load_model
from cnaps.errors import InputError
from cnaps.training.config import TrainConfig
from cnaps.training.distributed import World
from cnaps.training.engine import NonFiniteError, better
from cnaps.training.episodic import EpisodicJob
from cnaps.training.run import checkpoints
from cnaps.training.settings import apply_changes, build
from cnaps.training.start import build_model, train


def make_job(settings: dict[str, Any], *changes: str) -> EpisodicJob:
    config = build(TrainConfig, apply_changes(settings, changes))
    return EpisodicJob(build_model(config), config, World(device="cpu"))


def never() -> bool:
    return False


def gradients(job: EpisodicJob, step: int = 0) -> torch.Tensor:
    """The gradient of one step's tasks, without the update."""
    job._loader = job._load_from(step)
    job._set_mode(step)
    for p in job._parameters:
        p.grad = None
    for _ in job._indices(step):
        job._learn(next(job._loader), len(job._indices(step)))
    job.close()
    return torch.cat([torch.zeros(p.numel()) if p.grad is None else p.grad.flatten() for p in job._parameters])


def test_a_run_folder_explains_itself(settings: dict[str, Any], tmp_path: Path) -> None:
    config = build(TrainConfig, {**settings, "tensorboard": True})
    state, ended_by = train(config, tmp_path / "run", device="cpu")
    assert (state.step, ended_by) == (4, None)
    run = tmp_path / "run"
    assert build(TrainConfig, json.loads((run / "config.json").read_text())) == config
    environment = json.loads((run / "environment.json").read_text())
    assert environment["torch"] == torch.__version__
    assert set(environment["data"]) == {"digits"}
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [r["step"] for r in records if r["kind"] == "step"] == [1, 2, 3, 4]
    assert [r["step"] for r in records if r["kind"] == "validation"] == [2, 4]
    assert records[0]["peak_memory_mb"] > 0
    assert (run / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert list((run / "tensorboard").glob("events.*"))
    assert len(checkpoints(run)) == 2
    for name in ("best", "last"):
        model = load_model(run / name)
        assert model.config.backbone == settings["model"]["backbone"]
    with pytest.raises(InputError, match="already holds a run"):
        train(config, run, device="cpu")


def test_theta_is_bit_for_bit_what_it_was(settings: dict[str, Any]) -> None:
    job = make_job(settings)
    before = {name: value.clone() for name, value in job.model.backbone.state_dict().items()}
    phi = [p.clone() for p in job.model.phi_parameters()]
    for step in range(3):
        job.step(step, never)
    job.close()
    assert all(torch.equal(before[n], value) for n, value in job.model.backbone.state_dict().items())
    assert all(p.grad is None for p in job.model.backbone.parameters())
    changed = [not torch.equal(a, b) for a, b in zip(phi, job.model.phi_parameters(), strict=True)]
    assert sum(changed) > 0.8 * len(changed)


@pytest.mark.parametrize("mode", ["joint", "warm-start"])
def test_joint_training_moves_theta_and_uses_batch_statistics_while_it_should(
    settings: dict[str, Any], mode: str
) -> None:
    job = make_job(settings, f"theta.mode={mode}", "theta.warm_start_tasks=8", "memory.lite=40")
    before = {name: value.clone() for name, value in job.model.backbone.state_dict().items()}
    norms = []
    for step in range(3):
        metrics = job.step(step, never)
        assert metrics is not None
        norms.append(job.model.config.backbone_norm)
    assert norms == (["batch"] * 3 if mode == "joint" else ["batch", "batch", "running"])
    moved = {n for n, value in job.model.backbone.state_dict().items() if not torch.equal(before[n], value)}
    assert any("running_mean" in name for name in moved)
    assert any(name.endswith("weight") for name in moved)
    held = {name: value.clone() for name, value in job.model.state_dict().items()}
    assert job.validate(never) is not None
    assert all(torch.equal(held[n], value) for n, value in job.model.state_dict().items())
    job.close()


def test_the_step_is_the_mean_of_the_tasks_and_the_penalty(settings: dict[str, Any]) -> None:
    mean = make_job(settings, "memory.lite=100", "loss.penalty=0.0")
    total = make_job(settings, "memory.lite=100", "loss.penalty=0.0", "loss.reduction=sum")
    punished = make_job(settings, "memory.lite=100", "loss.penalty=0.5")
    base = gradients(mean)
    assert torch.allclose(gradients(total), 12 * base, rtol=1e-3, atol=1e-5)  # 3 ways of 4 targets
    penalty = torch.autograd.grad(
        0.5 * punished.model.regularization(), punished._parameters, allow_unused=True, materialize_grads=True
    )
    expected = base + torch.cat([g.flatten() for g in penalty])
    assert torch.allclose(gradients(punished), expected, rtol=1e-3, atol=1e-6)


def test_the_temperature_divides_the_logits_of_the_loss(settings: dict[str, Any]) -> None:
    job = make_job(settings, "loss.temperature=1e6")
    metrics = job.step(0, never)
    job.close()
    assert metrics is not None
    assert metrics["loss"] == pytest.approx(math.log(3), rel=1e-4)  # 3 ways: nothing is left of the logits


def test_a_model_is_used_at_the_temperature_that_it_was_trained_with(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    make_job(settings, "loss.temperature=50").save_model(tmp_path / "model")
    assert load_model(tmp_path / "model").notes["calibration"] == pytest.approx([math.log(50.0), 0, 0])


def test_theta_may_learn_at_a_rate_of_its_own(settings: dict[str, Any]) -> None:
    ours = make_job(settings, "theta.mode=joint", "theta.learning_rate=1e-5", "optimiser.learning_rate=1e-3")
    ours._update(2e-3)
    rates = {id(p): group["lr"] for group in ours._optimiser.param_groups for p in group["params"]}
    assert len(rates) == len(list(ours.model.parameters()))
    for name, parameter in ours.model.named_parameters():
        assert rates[id(parameter)] == pytest.approx(2e-5 if name.startswith("backbone.") else 2e-3)


def test_parts_of_phi_that_are_frozen_stay_as_they_are(settings: dict[str, Any]) -> None:
    job = make_job(settings, 'init.freeze=["adaptation"]')
    before = {name: p.detach().clone() for name, p in job.model.named_parameters()}
    assert job.step(0, lambda: False) is not None
    job.close()
    changed = [name for name, p in job.model.named_parameters() if not torch.equal(p, before[name])]
    moved = {name.partition(".")[0] for name in changed}
    assert moved
    assert not moved & {"adaptation", "backbone"}
    with pytest.raises(InputError, match="no part of phi named 'backbone'"):
        make_job(settings, 'init.freeze=["backbone"]')


def test_lite_is_right_on_average(settings: dict[str, Any]) -> None:
    changes = ("tasks.per_step=1", "loss.penalty=0.0")
    settings["augmentation"] = {}
    job = make_job(settings, *changes, "memory.lite=100")
    with torch.no_grad():  # a strong adaptation, so that gradients through FiLM matter
        for name, p in job.model.named_parameters():
            if name.endswith("regulariser"):
                p.add_(0.3 * torch.randn(p.shape, generator=torch.Generator().manual_seed(1)))
    job._loader = job._load_from(0)
    task = next(job._loader)
    job.close()

    def gradient(lite: int, draw: int) -> tuple[torch.Tensor, float]:
        job.config = replace(job.config, memory=replace(job.config.memory, lite=lite), seed=draw)
        for p in job._parameters:
            p.grad = None
        job.model.train()
        loss, _ = job._learn(replace(task, index=draw), 1)
        return torch.cat([p.grad.flatten() for p in job._parameters if p.grad is not None]).double(), loss

    full, loss = gradient(100, 0)
    draws = [gradient(4, draw) for draw in range(200)]
    assert all(value == pytest.approx(loss, rel=1e-4) for _, value in draws), "the forward pass is exact"
    sample = torch.stack([g for g, _ in draws])
    error = (sample.mean(0) - full).norm()
    spread = (sample.var(0).sum() / len(sample)).sqrt()  # the error that chance alone would make
    assert error < 2 * spread
    assert spread < 0.25 * full.norm(), "few enough draws would hide a bias"


def test_checkpointed_activations_and_chunks_do_not_change_the_gradient(settings: dict[str, Any]) -> None:
    plain = gradients(make_job(settings, "memory.lite=100"))
    saved = gradients(make_job(settings, "memory.lite=100", "memory.checkpoint=true", "memory.chunk_size=5"))
    assert torch.allclose(plain, saved, rtol=1e-3, atol=1e-5 * float(plain.abs().max()))


def test_the_saved_model_is_the_moving_average(settings: dict[str, Any], tmp_path: Path) -> None:
    job = make_job(settings, "optimiser.ema=0.5")
    expected: list[torch.Tensor] = [p.detach().clone() for p in job._parameters]
    for step in range(3):
        job.step(step, never)
        decay = min(0.5, (1 + step) / (10 + step))
        expected = [decay * e + (1 - decay) * p.detach() for e, p in zip(expected, job._parameters, strict=True)]
    current = [p.detach().clone() for p in job._parameters]
    job.save_model(tmp_path / "model")
    job.close()
    saved = load_model(tmp_path / "model")
    for average, p in zip(expected, saved.phi_parameters(), strict=True):
        assert torch.allclose(average, p, atol=1e-6)
    assert all(torch.equal(a, b) for a, b in zip(current, job._parameters, strict=True))


def test_a_better_model_wins_on_more_than_half_of_the_sets() -> None:
    best = {"a": 0.5, "b": 0.5, "c": 0.5, "d": 0.5}
    assert not better({**best, "a": 0.9, "b": 0.9}, best, "majority"), "half is not more than half"
    assert better({**best, "a": 0.9, "b": 0.9}, best, "half"), "which the published code takes for better"
    assert better({"a": 0.51, "b": 0.51, "c": 0.51, "d": 0.1}, best, "majority")
    assert not better({"a": 0.51, "b": 0.51, "c": 0.51, "d": 0.1}, best, "mean")
    assert better(best, {}, "majority"), "the first one is the best"


def test_a_loss_that_is_not_finite_names_the_task_and_saves_the_state(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    config = build(TrainConfig, apply_changes(settings, ["optimiser.learning_rate=1e30", "optimiser.ema=0.9"]))
    with pytest.raises(NonFiniteError, match=r"(task|tasks) \d+.*(digits|gradient|finite)"):
        train(config, tmp_path / "run", device="cpu")
    assert checkpoints(tmp_path / "run")


def test_sets_may_be_used_whole_and_each_once(settings: dict[str, Any], digits: Path) -> None:
    whole = make_job(settings, f"data.train=['{digits}:all']")
    assert {c for i in range(14) for c in whole._stream[i].classes} - {0, 1, 2, 3, 4, 5}
    narrow = make_job(settings)
    assert {c for i in range(14) for c in narrow._stream[i].classes} == {0, 1, 2, 3, 4, 5}
    with pytest.raises(InputError, match="given twice"):
        make_job(settings, f"data.train=['{digits}', '{digits}:all']")


def test_a_backbone_without_weights_is_not_trained_around_by_mistake(settings: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="pre-train it with"):
        make_job(settings, "init.backbone=auto")


def test_a_model_with_nothing_to_train_is_refused(settings: dict[str, Any]) -> None:
    job = make_job(settings, "model.adaptation=none", "model.head=mahalanobis")
    with pytest.raises(InputError, match="nothing to train"):
        job.step(0, never)
    job.close()
