"""A task's own examples, left out in turn, say how sure its answers may be."""

from __future__ import annotations

import math

import numpy as np
import pytest

from cnaps.maths.calibration import own_calibration, temperature
from cnaps.runtime.engine import open_engine
from cnaps.runtime.task import Examples, FittedTask
from cnaps.runtime.taskfile import read_task, write_task


@pytest.fixture(scope="module")
def examples(small, context):
    return Examples.read(context[0], context[1], small.image_size)


@pytest.fixture(scope="module")
def learned(small, examples):
    return FittedTask.learn(open_engine(small), examples)


def test_a_task_whose_left_out_examples_are_wrong_is_less_sure_the_more_of_them_say_so():
    chance = np.random.default_rng(0)
    labels = np.arange(60) % 3
    sure = 4 * np.eye(3)[labels] + 0.1 * chance.standard_normal((60, 3))
    right, wrong = own_calibration(sure, labels), own_calibration(sure, chance.permutation(labels))
    assert right < -0.3
    assert wrong > 0.3
    assert 0 < own_calibration(sure[:6], (labels[:6] + 1) % 3) < wrong


def test_where_no_example_can_be_left_out_the_model_alone_decides(small, examples):
    first = [examples.names.index(name) for name in sorted(set(examples.names))]
    alone = FittedTask.learn(
        open_engine(small), Examples(examples.pixels[first], [examples.names[i] for i in first])
    )
    assert alone.calibration == 0
    assert alone.temperature == temperature(alone.engine.notes, len(first), 1)


def test_it_goes_with_the_task_file_and_stays_when_the_task_learns_on(small, examples, learned, tmp_path):
    write_task(tmp_path / "some.task", learned)
    again = read_task(tmp_path / "some.task", small)
    assert again.calibration == learned.calibration != 0
    assert again.update(examples).forget(learned.names[:1]).calibration == learned.calibration
    shots = float(np.mean(learned.statistics.counts))
    expected = temperature(learned.engine.notes, len(learned.names), shots) * math.exp(learned.calibration)
    assert learned.temperature == expected


def test_of_many_examples_a_part_is_judged_and_of_very_many_classes_none(small):
    chance, asked = np.random.default_rng(0), []
    for ways, each in ((4, 100), (101, 2)):
        names: list[str | int] = [name for name in range(ways) for _ in range(each)]
        many = Examples(chance.integers(0, 256, (len(names), 3, 32, 32), np.uint8), names)
        asked.append(FittedTask.learn(open_engine(small), many).calibration)
    assert asked[0] != 0
    assert asked[1] == 0
