"""Training tasks of several sizes, from collections of different weight."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from cnaps.data.collection import Collection
from cnaps.errors import InputError
from cnaps.training.config import Data, Tasks
from cnaps.training.tasks import TaskStream, task_size


def test_the_size_of_a_task_is_one_of_its_collections_and_always_the_same(digits: Path) -> None:
    stream = TaskStream(
        [(Collection.open(digits), None)], Tasks(total=60, min_ways=2, max_ways=5, max_context=20), seed=3
    )
    sizes = {"digits": [32, 48], "others": [64]}
    drawn = [task_size(sizes, 84, 3, stream[i]) for i in range(60)]
    assert Counter(drawn).keys() == {32, 48}
    assert drawn == [task_size(sizes, 84, 3, stream[i]) for i in range(60)]
    other = replace(stream[0], collection="letters")
    assert task_size(sizes, 84, 3, other) == 64
    assert task_size({}, 84, 3, other) == 84


def test_sizes_that_are_none_are_refused() -> None:
    with pytest.raises(InputError, match=r"data\.sizes\.digits"):
        Data(sizes={"digits": []})
