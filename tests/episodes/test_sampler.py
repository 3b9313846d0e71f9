"""Tasks follow the protocol: bounds for every task, and distributions against a slow derivation of it."""

from __future__ import annotations

import hashlib
import math
import multiprocessing
import random
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare, ks_2samp

from cnaps.data.collection import Collection
from cnaps.episodes import TEST_LIMITS, TRAIN_LIMITS, Limits, Sampler, TaskDescription
from cnaps.errors import DataError, InputError

DRAWS = 4000


def by_hand(chance: random.Random, counts: dict[int, int], limits: Limits) -> dict[int, tuple[int, int]]:
    """A task's (context, targets) for each class, written from the protocol's text without arrays."""
    ways = chance.randint(limits.min_ways, min(limits.max_ways, len(counts)))
    chosen = chance.sample(sorted(counts), ways)
    targets = min(10, min(counts[c] // 2 for c in chosen))
    u = chance.random()
    size = min(limits.max_context, sum(math.floor(u * min(100, counts[c] - targets) + 1) for c in chosen))
    weight = {c: counts[c] * math.exp(chance.uniform(math.log(1 / 2), math.log(2))) for c in chosen}
    total = sum(weight.values())
    return {
        c: (min(math.floor(weight[c] / total * (size - ways)) + 1, counts[c] - targets), targets) for c in chosen
    }


@pytest.fixture(scope="module")
def pairs(uneven: Collection) -> tuple[list[TaskDescription], list[dict[int, tuple[int, int]]]]:
    """The same number of tasks from the sampler and by hand."""
    sampler = Sampler([uneven], "train", limits=TRAIN_LIMITS, seed=11)
    counts = {index: int(uneven.counts[index]) for index in uneven.splits["train"]}
    chance = random.Random(5)
    return [sampler.describe(i) for i in range(DRAWS)], [
        by_hand(chance, counts, TRAIN_LIMITS) for _ in range(DRAWS)
    ]


def test_ways_are_uniform(pairs) -> None:
    drawn, _ = pairs
    found = Counter(task.ways for task in drawn)
    assert set(found) == set(range(5, 41))
    assert chisquare([found[ways] for ways in range(5, 41)]).pvalue > 0.001


def test_every_class_of_the_split_is_equally_likely(pairs) -> None:
    drawn, _ = pairs
    found = Counter(index for task in drawn for index in task.classes)
    assert set(found) == set(range(60))
    assert chisquare(list(found.values())).pvalue > 0.001


def test_context_sizes_are_distributed_as_by_hand(pairs) -> None:
    drawn, derived = pairs
    ours = [task.context_size for task in drawn]
    theirs = [sum(context for context, _ in task.values()) for task in derived]
    assert max(ours) <= TRAIN_LIMITS.max_context
    assert ks_2samp(ours, theirs).pvalue > 0.001
    # The test can tell: without the cap on what a class contributes, sizes are visibly others.
    uncapped = [sum(min(3 * context, 174) for context, _ in task.values()) for task in derived]
    assert ks_2samp(ours, uncapped).pvalue < 1e-6


def test_target_numbers_are_distributed_as_by_hand(pairs) -> None:
    drawn, derived = pairs
    ours = Counter(len(task.targets[0]) for task in drawn)
    theirs = Counter(next(iter(task.values()))[1] for task in derived)
    assert set(ours) == set(theirs) == {3, 5, 6, 8, 9, 10}  # half of 7, 10, 13, 16, 19, and the limit
    assert ks_2samp(list(ours.elements()), list(theirs.elements())).pvalue > 0.001


@pytest.mark.parametrize("index", [0, 20, 40, 59])
def test_the_imbalance_of_classes_is_distributed_as_by_hand(pairs, index: int) -> None:
    drawn, derived = pairs
    ours = [len(task.context[task.classes.index(index)]) for task in drawn if index in task.classes]
    theirs = [task[index][0] for task in derived if index in task]
    assert ks_2samp(ours, theirs).pvalue > 0.001


def test_the_share_of_a_class_varies_by_the_log_weights(pairs) -> None:
    """In proportion to class size the shares would be fixed; the weights spread them fourfold."""
    drawn, derived = pairs

    def spread(task: dict[int, int]) -> float:
        share = [math.log(n / (7 + 3 * index)) for index, n in task.items() if index > 30]
        return max(share) - min(share) if share else 0.0

    ours = [spread(dict(zip(t.classes, map(len, t.context), strict=True))) for t in drawn if t.context_size > 300]
    theirs = [spread({c: n for c, (n, _) in t.items()}) for t in derived if sum(n for n, _ in t.values()) > 300]
    assert ks_2samp(ours, theirs).pvalue > 0.001


def test_images_are_shuffled_inside_each_class(pairs) -> None:
    """Every image of a class is as likely as any other to be a target, and to be context."""
    drawn, _ = pairs
    for part in ("targets", "context"):
        found = Counter(
            row for task in drawn for rows, c in zip(getattr(task, part), task.classes, strict=True)
            if c == 20 for row in rows
        )  # fmt: skip
        assert len(found) == 67
        assert chisquare(list(found.values())).pvalue > 0.001


def test_test_tasks_reach_fifty_ways_and_five_hundred_images(uneven: Collection) -> None:
    drawn = [Sampler([uneven], "train", limits=TEST_LIMITS).describe(i) for i in range(600)]
    assert max(task.ways for task in drawn) == 50
    assert 480 < max(task.context_size for task in drawn) <= 500


def test_collections_are_equally_likely(uneven: Collection, letters: Collection, things: Collection) -> None:
    sampler = Sampler([uneven, letters, things], "train", seed=3)
    found = Counter(sampler.describe(i).collection for i in range(1500))
    assert chisquare([found["uneven"], found["letters"], found["things"]]).pvalue > 0.001


def test_a_task_of_letters_comes_from_one_alphabet_of_five_or_more(letters: Collection) -> None:
    sampler = Sampler([letters], "train", seed=1)
    drawn = [sampler.describe(i) for i in range(3000)]
    alphabet = [{letters.classes[c].split("/")[0] for c in task.classes} for task in drawn]
    assert all(len(found) == 1 for found in alphabet)
    found = Counter(next(iter(each)) for each in alphabet)
    assert set(found) == {"Small", "Middle", "Large"}  # Tiny has four characters
    assert chisquare(list(found.values())).pvalue > 0.001
    for name, most in {"Small": 6, "Middle": 11, "Large": 50}.items():
        ways = Counter(task.ways for task, each in zip(drawn, alphabet, strict=True) if name in each)
        assert set(ways) == set(range(5, most + 1))
        assert chisquare(list(ways.values())).pvalue > 0.001


def test_a_task_of_wordnet_takes_all_leaves_of_a_node_or_fifty_by_chance(things: Collection) -> None:
    sampler = Sampler([things], "train", seed=2)
    drawn = [sampler.describe(i) for i in range(3000)]
    ways = Counter(task.ways for task in drawn)
    assert set(ways) == {5, 9, 50}  # the node of 4 leaves is too small, the one of 10 is of another split
    assert chisquare(list(ways.values())).pvalue > 0.001
    assert all(set(task.classes) == set(range(task.ways)) for task in drawn if task.ways < 50)
    leaves = Counter(c for task in drawn if task.ways == 50 for c in task.classes)
    assert set(leaves) == set(range(60))
    assert chisquare(list(leaves.values())).pvalue > 0.001


def test_the_hierarchy_can_be_left_aside(letters: Collection) -> None:
    drawn = [Sampler([letters], "train", hierarchy=False).describe(i) for i in range(50)]
    assert any(len({letters.classes[c].split("/")[0] for c in task.classes}) > 1 for task in drawn)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_every_task_keeps_to_its_limits(uneven: Collection, data: st.DataObject) -> None:
    def maybe(low: int, high: int) -> int | None:
        return data.draw(st.none() | st.integers(low, high))

    low = data.draw(st.integers(2, 20))
    high = data.draw(st.integers(low, 60))
    limits = Limits(low, high, data.draw(st.integers(max(high, 30), 700)), data.draw(st.integers(1, 20)), 50)
    ways, shots, targets = maybe(2, 30), maybe(1, 15), maybe(1, 15)
    sampler = Sampler(
        [uneven],
        "train",
        limits=limits,
        seed=data.draw(st.integers(0, 2**40)),
        ways=ways,
        shots=shots,
        targets=targets,
    )
    task = sampler.describe(data.draw(st.integers(0, 2**31)))
    assert len(set(task.classes)) == task.ways == len(task.context) == len(task.targets)
    if ways:
        assert task.ways == ways
    else:
        assert low <= task.ways <= high
    if shots:
        assert {len(rows) for rows in task.context} == {shots}
    else:
        assert task.context_size <= limits.max_context
    (each,) = {len(rows) for rows in task.targets}
    assert each == targets if targets else 1 <= each <= limits.max_targets_per_class
    for index, context, target in zip(task.classes, task.context, task.targets, strict=True):
        assert len(context) >= 1
        assert len({*context, *target}) == len(context) + len(target)
        assert {*context, *target} <= set(uneven.rows(index))


def test_a_task_depends_on_seed_and_index_alone(uneven: Collection, letters: Collection) -> None:
    first = Sampler([uneven, letters], "train", seed=4)
    second = Sampler([letters, uneven], "train", seed=4)
    backwards = {i: second.describe(i) for i in reversed(range(20))}
    assert [first.describe(i) for i in range(20)] == [backwards[i] for i in range(20)]
    other = Sampler([uneven, letters], "train", seed=5)
    assert all(first.describe(i) != other.describe(i) for i in range(20))


def test_another_process_draws_the_same_tasks(uneven: Collection, letters: Collection) -> None:
    sampler = Sampler([uneven, letters], "train", seed=4)
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        there = list(pool.map(sampler.describe, range(10)))
    assert there == [sampler.describe(i) for i in range(10)]


def test_tasks_are_the_ones_they_have_always_been(uneven: Collection, letters: Collection) -> None:
    """Tasks of a seed are compared between machines and versions: this number must never change."""
    drawn = [Sampler([uneven, letters], "train", seed=0).describe(i) for i in range(50)]
    digest = hashlib.sha256(repr([(t.collection, t.classes, t.context, t.targets) for t in drawn]).encode())
    assert digest.hexdigest()[:16] == "9a88cf01063287d1"


def test_classes_with_too_few_images_are_left_out(make: Callable[..., Collection]) -> None:
    some = make("some", [1, 9, 1, 2, 3, 4, 5, 6])
    sampler = Sampler([some], None)
    found = {index for i in range(200) for index in sampler.describe(i).classes}
    assert found == {1, 3, 4, 5, 6, 7}
    fixed = Sampler([some], None, ways=3, shots=3, targets=1)
    assert {index for i in range(200) for index in fixed.describe(i).classes} == {1, 5, 6, 7}


def test_thousands_of_classes_are_no_trouble(make: Callable[..., Collection]) -> None:
    many = make("many", [2] * 3000, [f"класс/{i} 類" for i in range(3000)])
    drawn = [Sampler([many], None).describe(i) for i in range(300)]
    assert len({index for task in drawn for index in task.classes}) > 2500
    assert all(len(rows) == 1 for task in drawn for rows in task.context + task.targets)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"split": "valid"}, "no classes in a split 'valid' .its splits: train, test."),
        ({"split": "test", "ways": 13}, "needs 13 classes of at least 2 images, and there are 12"),
        ({"split": "test", "shots": 15, "targets": 6}, "at least 21 images, and there are 0"),
    ],
)
def test_data_that_cannot_give_a_task_is_refused(uneven: Collection, options: dict, message: str) -> None:
    split = options.pop("split")
    with pytest.raises(DataError, match=message):
        Sampler([uneven], split, **options)


def test_alphabets_that_are_all_too_small_are_refused(letters: Collection) -> None:
    with pytest.raises(DataError, match="no alphabet has 56 classes"):
        Sampler([letters], "train", ways=56)


@pytest.mark.parametrize("options", [{"ways": 0}, {"shots": -1}, {"targets": 0}, {"seed": -1}, {"ways": 501}])
def test_options_out_of_range_are_refused(uneven: Collection, options: dict) -> None:
    with pytest.raises(InputError):
        Sampler([uneven], "train", **options)


def test_limits_that_contradict_each_other_are_refused() -> None:
    for wrong in ({"min_ways": 6, "max_ways": 5}, {"max_context": 49}, {"max_targets_per_class": 0}):
        with pytest.raises(InputError, match="limits need"):
            Limits(**wrong)


def test_collections_are_needed_and_named_apart(uneven: Collection) -> None:
    with pytest.raises(InputError, match="at least one"):
        Sampler([], "train")
    with pytest.raises(InputError, match="same name"):
        Sampler([uneven, uneven], "train")
    with pytest.raises(InputError, match="no task -1"):
        Sampler([uneven], "train").describe(-1)


def test_fixed_sizes_give_the_same_shape_every_time(uneven: Collection) -> None:
    sampler = Sampler([uneven], "train", ways=5, shots=2, targets=3)
    for task in map(sampler.describe, range(20)):
        assert [len(rows) for rows in task.context] == [2] * 5
        assert [len(rows) for rows in task.targets] == [3] * 5
