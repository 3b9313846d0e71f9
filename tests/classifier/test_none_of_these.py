"""Images that are none of the classes: the level beyond which they are, kept and used alike everywhere."""

from __future__ import annotations

import numpy as np
import pytest

from cnaps.runtime.novelty import none_level
from cnaps.runtime.recogniser import Examples, Recogniser


@pytest.fixture(scope="module")
def learned(small, context):
    examples = Examples.read(*context, small.image_size)
    return Recogniser.learn(small, examples), examples


def test_the_level_is_the_novelty_of_examples_left_out_of_their_class():
    chance = np.random.default_rng(0)
    features = np.eye(3)[np.repeat([0, 1, 2], 20)] + 0.1 * chance.standard_normal((60, 3))
    labels = np.repeat([0, 1, 2], 20)
    expected = []
    for i in range(60):
        mean = features[(labels == labels[i]) & (np.arange(60) != i)].mean(0)
        expected.append(1 - features[i] @ mean / np.linalg.norm(features[i]) / np.linalg.norm(mean))
    assert none_level(features, labels) == pytest.approx(np.quantile(expected, 0.95))


def test_with_too_few_examples_there_is_no_level():
    assert none_level(np.eye(4), np.arange(4)) is None
    assert none_level(np.eye(3), np.array([0, 0, 1])) is None


def test_statistics_that_hold_every_example_give_the_same_level_as_the_images(default, context):
    known = default.recogniser_
    assert known.threshold is not None
    again = Recogniser(known.adapted, known.names, known.image_size)
    examples = Examples.read(*context, known.image_size)
    assert again.find_threshold(examples) == pytest.approx(known.threshold, abs=1e-4)


def test_the_level_goes_with_the_task_file(learned, tmp_path, small):
    recogniser, examples = learned
    assert 0 < recogniser.find_threshold(examples) < 2
    recogniser.save(tmp_path / "digits.task")
    assert Recogniser.load(tmp_path / "digits.task", small).threshold == recogniser.threshold
