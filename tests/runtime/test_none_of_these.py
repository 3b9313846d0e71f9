"""Images that are none of the classes: the level beyond which they are, kept and used alike everywhere."""

from __future__ import annotations

import numpy as np
import pytest

from cnaps.runtime.engine import open_engine
from cnaps.runtime.novelty import none_level
from cnaps.runtime.task import Examples, FittedTask
from cnaps.runtime.taskfile import read_task, write_task


@pytest.fixture(scope="module")
def learned(small, context):
    return FittedTask.learn(open_engine(small), Examples.read(context[0], context[1], small.image_size))


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
