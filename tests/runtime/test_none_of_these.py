"""Images that are none of the classes: the level beyond which they are, kept and used alike everywhere."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cnaps.runtime.engine import open_engine
from cnaps.runtime.novelty import class_ease, none_level, strange_level, strangeness
from cnaps.runtime.task import Examples, FittedTask
from cnaps.runtime.taskfile import read_task, write_task


@pytest.fixture(scope="module")
def learned(small, context):
    return FittedTask.learn(open_engine(small), Examples.read(context[0], context[1], small.image_size))


@pytest.fixture(scope="module")
def ridge(make_small):
    return make_small(head="ridge")


@pytest.fixture(scope="module")
def regressed(ridge, context):
    return FittedTask.learn(open_engine(ridge), Examples.read(context[0], context[1], ridge.image_size))


def test_the_level_is_the_novelty_of_examples_left_out_of_their_class():
    chance = np.random.default_rng(0)
    features = np.eye(3)[np.repeat([0, 1, 2], 20)] + 0.1 * chance.standard_normal((60, 3))
    labels = np.repeat([0, 1, 2], 20)
    expected = []
    for i in range(60):
        others = np.arange(60) != i
        means = np.stack([features[(labels == k) & others].mean(0) for k in range(3)])
        common = means.mean(0) * 0.75
        seen, mean = features[i] - common, means[labels[i]] - common
        expected.append(1 - seen @ mean / np.linalg.norm(seen) / np.linalg.norm(mean))
    assert none_level(features, labels) == pytest.approx(np.quantile(expected, 0.95))


def test_with_too_few_examples_there_is_no_level():
    assert none_level(np.eye(4), np.arange(4)) is None
    assert none_level(np.eye(3), np.array([0, 0, 1])) is None


def test_the_level_is_learned_with_the_task_and_mirror_images_do_not_count(small, learned, context):
    examples = Examples.read(context[0], context[1], small.image_size)
    labels = np.array([learned.names.index(name) for name in examples.names])
    again = learned.none_level(learned.features(examples.pixels), labels)
    assert learned.threshold == pytest.approx(again, abs=1e-4)
    flipped = FittedTask.learn(open_engine(small), examples, flip=True)
    level = flipped.none_level(flipped.features(examples.pixels), labels)
    assert flipped.threshold == pytest.approx(level, abs=1e-4)


def test_the_level_goes_with_the_task_file(learned, tmp_path, small):
    assert 0 < learned.threshold < 2
    write_task(tmp_path / "digits.task", learned)
    assert read_task(tmp_path / "digits.task", small).threshold == learned.threshold


def test_an_image_is_stranger_the_less_there_is_of_any_class_and_the_fewer_features_it_has():
    features = np.array([[1.0, 0, 0, 0], [1, 0, 0, 0], [0.5, 0.5, 0.5, 0.5]])
    near, far, even = strangeness(np.array([[9.0, 1], [2, 1], [2, 1]]), features, np.zeros(2), 4)
    assert 0 < near < even < far < 2


def test_a_class_that_is_surer_of_its_own_is_asked_for_more():
    left_out = np.array([[9.0, 0], [8, 0], [0, 4], [0, 5]])
    ease = class_ease(left_out, np.array([0, 0, 1, 1]))
    assert ease[0] > 0 > ease[1]
    ease_of_the_unknown = class_ease(np.full((2, 2), np.nan), np.array([0, 1]))
    np.testing.assert_array_equal(ease_of_the_unknown, 0)
    features = np.ones((2, 1))
    sure, unsure = strangeness(np.array([[6.0, 0], [0, 6.0]]), features, ease, 1)
    assert sure > unsure


def test_nineteen_of_twenty_images_like_the_examples_are_below_the_level():
    chance = np.random.default_rng(1)
    kept = []
    for _ in range(300):
        logits = np.column_stack([chance.normal(8, 2, 60), np.zeros(60)])
        level = strange_level(logits[:40], np.ones((40, 1)), np.zeros(2), 1)
        kept.append((strangeness(logits[40:], np.ones((20, 1)), np.zeros(2), 1) <= level).mean())
    assert 0.94 < np.mean(kept) < 0.98
    alone = np.full((6, 2), np.nan)
    assert strange_level(alone, np.ones((6, 1)), np.zeros(2), 1) is None


def test_novelty_is_the_same_after_a_task_file(regressed, context, tmp_path, ridge):
    assert regressed.ease is not None
    features = regressed.features(Examples.read(context[0], context[1], ridge.image_size).pixels)
    write_task(tmp_path / "digits.task", regressed)
    again = read_task(tmp_path / "digits.task", ridge)
    np.testing.assert_allclose(again.novelty(features), regressed.novelty(features), atol=0.01)
    np.testing.assert_array_equal(again.ease, regressed.ease)


def test_a_file_of_an_earlier_version_keeps_the_distance_to_the_nearest_class(regressed, context, tmp_path, ridge):
    features = regressed.features(Examples.read(context[0], context[1], ridge.image_size).pixels)
    labels = np.array([regressed.names.index(name) for name in context[1]])
    level = none_level(features, labels, regressed.engine.head.emphasis(features))
    write_task(tmp_path / "old.task", replace(regressed, ease=None, threshold=level))
    again = read_task(tmp_path / "old.task", ridge)
    assert again.ease is None
    assert again.threshold == level
    means = regressed.statistics.means.astype(np.float32)
    common = 0.75 * means.mean(0)
    emphasis = regressed.engine.head.emphasis(features)
    rows, targets = ((part - common) * emphasis for part in (features, means))
    cosines = (rows / np.linalg.norm(rows, axis=1)[:, None]) @ (
        targets / np.linalg.norm(targets, axis=1)[:, None]
    ).T
    np.testing.assert_allclose(again.novelty(features), 1 - cosines.max(1), atol=1e-4)


def test_classes_that_stay_keep_their_ease_and_a_single_one_is_told_by_distance(
    regressed, context, tmp_path, ridge
):
    write_task(tmp_path / "digits.task", regressed)
    again = read_task(tmp_path / "digits.task", ridge)
    fewer = again.forget(again.names[:1])
    np.testing.assert_array_equal(fewer.ease, regressed.ease[1:])
    one = again.forget(again.names[1:])
    found = one.novelty(one.features(Examples.read(context[0], context[1], ridge.image_size).pixels))
    assert ((found >= -1e-6) & (found <= 2)).all()
