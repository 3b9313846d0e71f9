"""From descriptions to tensors, ahead of time, in order, and without loose ends."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Generator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from cnaps.data.collection import Collection
from cnaps.episodes import Sampler, Task, TaskDescription, TaskLoader, load_task
from cnaps.episodes.drawing import CELL, draw_task
from cnaps.errors import DataError, InputError

Colour = Callable[[int, int], np.ndarray]


def loaders_alive() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("ahead")]


def same(a: Task, b: Task) -> bool:
    tensors = ("context_images", "context_labels", "target_images", "target_labels")
    return (a.index, a.collection, a.context_keys, a.target_keys, a.class_names) == (
        b.index, b.collection, b.context_keys, b.target_keys, b.class_names
    ) and all(torch.equal(getattr(a, name), getattr(b, name)) for name in tensors)  # fmt: skip


@pytest.fixture
def described() -> TaskDescription:
    """Class 30 has the images of rows 1515..1611 (its first is 1515)."""
    return TaskDescription(7, "uneven", (30, 0), ((1520, 1515), (3, 0, 6)), ((1516,), (1,)))


def test_a_loaded_task_holds_the_described_images(
    uneven: Collection, described: TaskDescription, colour: Colour
) -> None:
    assert uneven.rows(30).start == 1515
    task = load_task(described, {"uneven": uneven}, size=8)
    assert task.class_names == ["class 030", "class 000"]
    assert (task.collection, task.index) == ("uneven", 7)
    wanted = {
        "30/5.png": (30, 5, 0),
        "30/0.png": (30, 0, 0),
        "0/3.png": (0, 3, 1),
        "0/0.png": (0, 0, 1),
        "0/6.png": (0, 6, 1),
    }
    assert sorted(task.context_keys) == sorted(wanted)
    assert task.context_images.dtype == torch.uint8
    assert task.context_labels.dtype == torch.int64
    for image, key, label in zip(task.context_images, task.context_keys, task.context_labels, strict=True):
        c, i, k = wanted[key]
        assert torch.equal(image, torch.from_numpy(colour(c, i)).permute(2, 0, 1))
        assert label == k
    assert task.target_keys == ["30/1.png", "0/1.png"]
    assert task.target_labels.tolist() == [0, 1]
    assert task.target_images[1, :, 0, 0].tolist() == [0, 1, 0]


def test_the_context_is_shuffled_in_the_same_order_every_time(uneven: Collection) -> None:
    described = Sampler([uneven], "train").describe(0)
    first, second = (load_task(described, {"uneven": uneven}) for _ in range(2))
    assert same(first, second)
    labels = first.context_labels
    assert not torch.equal(labels, labels.sort().values)
    assert torch.equal(labels.bincount(), torch.tensor([len(rows) for rows in described.context]))


def test_images_come_in_the_size_asked_for(uneven: Collection, described: TaskDescription) -> None:
    assert load_task(described, {"uneven": uneven}, size=20).context_images.shape == (5, 3, 20, 20)
    assert load_task(described, {"uneven": uneven}).target_images.shape == (2, 3, 8, 8)


def test_a_collection_that_is_not_there_is_named(described: TaskDescription) -> None:
    with pytest.raises(DataError, match="task 7 is of the collection 'uneven'"):
        load_task(described, {})


@pytest.mark.parametrize("workers", [1, 3])
def test_tasks_arrive_in_order_whatever_the_workers(uneven: Collection, letters: Collection, workers: int) -> None:
    collections = {"uneven": uneven, "letters": letters}
    sampler = Sampler([uneven, letters], "train", seed=2)
    indices = [5, 2, 9, 0, 1, 1, 30, 4]
    loaded = list(TaskLoader(sampler, collections, 8, indices, workers=workers, prefetch=3))
    assert [task.index for task in loaded] == indices
    assert all(same(task, load_task(sampler.describe(task.index), collections, 8)) for task in loaded)
    assert loaders_alive() == []


def test_a_list_of_descriptions_is_loaded_once_through(uneven: Collection) -> None:
    sampler = Sampler([uneven], "train")
    described = [sampler.describe(i) for i in (8, 6, 7)]
    loader = TaskLoader(described, {"uneven": uneven})
    assert [task.index for task in loader] == [8, 6, 7]
    assert [task.index for task in loader] == [8, 6, 7]
    assert [task.index for task in TaskLoader(described, {"uneven": uneven}, indices=[2, 0])] == [7, 8]


def test_a_sampler_gives_tasks_without_end_and_leaving_stops_the_threads(uneven: Collection) -> None:
    sampler = Sampler([uneven], "train")
    found = []
    for task in TaskLoader(sampler, {"uneven": uneven}):
        found.append(task.index)
        assert loaders_alive()
        if len(found) == 6:
            break
    assert found == list(range(6))
    assert loaders_alive() == []


def test_no_more_tasks_than_asked_wait_in_memory(uneven: Collection) -> None:
    taken = []

    def indices():
        for i in itertools.count():
            taken.append(i)
            yield i

    stream = iter(TaskLoader(Sampler([uneven], "train"), {"uneven": uneven}, indices=indices(), prefetch=3))
    next(stream)
    assert taken == [0, 1, 2, 3]
    next(stream)
    assert taken == [0, 1, 2, 3, 4]
    assert isinstance(stream, Generator)
    stream.close()
    assert loaders_alive() == []


def test_an_error_comes_where_its_task_would_have_come(uneven: Collection, described: TaskDescription) -> None:
    wrong = replace(described, context=((10**9,), (0,)))
    stream = iter(TaskLoader([described, described, wrong, described], {"uneven": uneven}, workers=2))
    assert next(stream).index == next(stream).index == 7
    with pytest.raises(InputError, match="has rows"):
        next(stream)
    assert loaders_alive() == []


def test_an_error_in_the_consumer_stops_the_threads(uneven: Collection) -> None:
    def consume() -> None:
        for _ in TaskLoader(Sampler([uneven], "train"), {"uneven": uneven}):
            raise RuntimeError("consumer")

    with pytest.raises(RuntimeError, match="consumer"):
        consume()
    # The failed frame held the loop; once it is gone nothing is left running.
    assert loaders_alive() == []


def test_an_error_while_numbering_is_raised_and_stops_the_threads(uneven: Collection) -> None:
    def indices():
        yield 0
        raise RuntimeError("numbering")

    with pytest.raises(RuntimeError, match="numbering"):
        list(TaskLoader(Sampler([uneven], "train"), {"uneven": uneven}, indices=indices()))
    assert loaders_alive() == []


def test_a_loader_without_workers_or_room_is_refused(uneven: Collection) -> None:
    tables: tuple[dict[str, Any], ...] = ({"workers": 0}, {"prefetch": 0})
    for options in tables:
        with pytest.raises(InputError, match="at least 1"):
            TaskLoader([], {"uneven": uneven}, **options)
    assert list(TaskLoader([], {"uneven": uneven})) == []


def test_a_task_is_drawn_with_each_image_in_its_band(make: Callable[..., Collection], colour: Colour) -> None:
    names = ["Ωmega", "名前", "a_very_long_name_that_needs_more_than_one_line_and_then_still_more", "d", "e"]
    some = make("scripts", [40] * 5, names)
    described = Sampler([some], None, ways=5, shots=20, targets=6).describe(0)
    task = load_task(described, {"scripts": some})
    picture = draw_task(task)
    found = {value for _, value in picture.getcolors(maxcolors=10**6) or ()}
    for index, *parts in zip(described.classes, described.context, described.targets, strict=True):
        for row in itertools.chain(*parts):
            assert tuple(colour(index, row - some.rows(index).start)[0, 0].tolist()) in found
    assert picture.height > 5 * 2 * CELL
