"""A fitted task learns on without the images it has seen."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from cnaps import CNAPs, ModelConfig
from cnaps.errors import InputError
from cnaps.nn.film import fold
from cnaps.runtime.engine import Engine, open_engine
from cnaps.runtime.task import Examples, FittedTask

from ..models import random_film, small_backbone

HEADS = ["linear", "cosine", "mahalanobis", "ridge"]


def make_engine(head: str) -> Engine:
    torch.manual_seed(0)
    backbone = small_backbone(8, 12, 16)
    model = CNAPs(ModelConfig(backbone="own", head=head, set_encoder_norm="none", spread=True), backbone)
    random_film(model)
    return open_engine(model)


def make_task(count: int = 48, ways: int = 6) -> tuple[np.ndarray, np.ndarray]:
    labels = np.arange(count) % ways
    noise = np.random.default_rng(1).normal(100, 40, (count, 3, 32, 32)) + 20 * labels[:, None, None, None]
    return noise.clip(0, 255).astype(np.uint8), labels * 10


def examples(task: tuple[np.ndarray, np.ndarray], which: Any = slice(None)) -> Examples:
    return Examples(task[0][which], task[1][which].tolist())


def logits(task: FittedTask, pixels: np.ndarray) -> np.ndarray:
    return task.classifier(task.features(pixels))


@pytest.mark.parametrize("head", HEADS)
def test_updates_with_frozen_film_equal_seeing_everything_at_once_in_any_order(head):
    task = make_task()
    start = FittedTask.learn(make_engine(head), examples(task, slice(12)))
    at_once = logits(start.update(examples(task, slice(12, None))), task[0])
    for seed in range(3):
        order = 12 + np.random.default_rng(seed).permutation(36)
        found = start
        for part in np.split(order, range(5, 36, 5)):
            found = found.update(examples(task, part))
        assert found.seen == 48
        np.testing.assert_allclose(logits(found, task[0]), at_once, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("head", HEADS)
def test_new_classes_take_their_place_among_the_old(head):
    task = make_task()
    even = task[1] % 20 == 0
    found = FittedTask.learn(make_engine(head), examples(task, even)).update(examples(task, ~even))
    assert found.names == [0, 10, 20, 30, 40, 50]
    assert found.statistics.counts.tolist() == [8] * 6
    features = found.features(task[0])
    for k, name in enumerate(found.names):
        mean = features[task[1] == name].astype(np.float64).mean(0)
        np.testing.assert_allclose(found.statistics.means[k], mean, atol=1e-5, rtol=1e-5)


def test_hundreds_of_updates_do_not_drift():
    task, engine = make_task(), make_engine("cosine")
    start = FittedTask.learn(engine, examples(task))
    found = start
    for i in range(600):
        found = found.update(examples(task, [i % 48]))
    assert found.seen == 648
    assert abs(found.embedding - start.embedding).max() < 0.02 * abs(start.embedding).max()
    # 12 whole rounds and a part of one beside the first: exactly those weights, to double precision
    times = np.array([1 + 600 // 48 + (i < 600 % 48) for i in range(48)], float)
    features = np.concatenate([start.features(image[None]) for image in task[0]]).astype(np.float64)
    for k, name in enumerate(found.names):
        own = task[1] == name
        later = (features[own] * (times[own] - 1)[:, None]).sum(0)
        first = start.statistics.means[k].astype(np.float64) * own.sum()
        expected = (later + first) / times[own].sum()
        np.testing.assert_allclose(found.statistics.means[k], expected, atol=1e-9, rtol=1e-7)


def test_the_scatter_of_a_class_stays_bounded():
    task = make_task()
    found = FittedTask.learn(make_engine("mahalanobis"), examples(task))
    for _ in range(5):
        found = found.update(examples(task))
    assert found.statistics.scatter is not None
    assert max(len(rows) for rows in found.statistics.scatter) <= 16


def test_recomputing_makes_film_anew_and_keeps_the_means_of_old_classes():
    task, engine = make_task(), make_engine("linear")
    old = task[1] < 30
    before = FittedTask.learn(engine, examples(task, old))
    after = before.update(examples(task, ~old), mode="recompute")
    assert not np.allclose(after.film, before.film)
    np.testing.assert_allclose(after.statistics.means[:3], before.statistics.means, rtol=1e-6)
    everything = FittedTask.learn(engine, examples(task))
    np.testing.assert_allclose(after.embedding, everything.embedding, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("head", HEADS)
def test_forgetting_a_class_is_as_if_its_statistics_had_never_been(head):
    task = make_task()
    whole = FittedTask.learn(make_engine(head), examples(task))
    logits(whole, task[0])
    fewer = whole.forget([20])
    assert fewer.names == [0, 10, 30, 40, 50]
    assert logits(fewer, task[0]).shape == (48, 5)
    assert logits(whole, task[0]).shape == (48, 6)  # the original is untouched
    back = fewer.update(examples(task, task[1] == 20))
    np.testing.assert_allclose(logits(back, task[0]), logits(whole, task[0]), atol=1e-4, rtol=1e-4)
    with pytest.raises(InputError, match="cannot forget 20"):
        fewer.forget([20])
    with pytest.raises(InputError, match="every class"):
        fewer.forget(fewer.names)


@pytest.mark.parametrize("mode", ["freeze", "recompute"])
def test_what_read_the_examples_also_predicts_and_is_not_folded_again(mode, monkeypatch):
    calls: list[None] = []
    model = CNAPs(ModelConfig.preset("reference"))
    monkeypatch.setattr("cnaps.nn.film.fold", lambda *a, **k: calls.append(None) or fold(*a, **k))
    pixels = np.random.default_rng(0).integers(0, 256, (4, 3, 84, 84), dtype=np.uint8)
    some = Examples(pixels, [0, 0, 1, 1])
    parts = 1 + len(model.backbone.stages)
    task = FittedTask.learn(open_engine(model), some)
    task.features(pixels)
    assert len(calls) == parts
    task.update(some, mode=mode).features(pixels)
    assert len(calls) == parts * (2 if mode == "recompute" else 1)
