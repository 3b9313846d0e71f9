"""Drawing tasks as Meta-Dataset specifies.

A task is a pure function of (seed, index, data). Every decision is made from numbers in [0, 1) of a generator
that belongs to that task alone, so tasks do not depend on the machine, the order or the process that asks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from cnaps.data.wordnet import MAX_LEAVES
from cnaps.episodes.task import TaskDescription
from cnaps.errors import DataError, InputError

if TYPE_CHECKING:
    from cnaps.data.collection import Collection

T = TypeVar("T")


@dataclass(frozen=True)
class Limits:
    """How large a task may be."""

    min_ways: int = 5
    max_ways: int = 50
    max_context: int = 500
    max_targets_per_class: int = 10
    max_context_per_class: int = 100  # of a class's images, how many count towards the size of the context
    log_weight: float = math.log(2)

    def __post_init__(self) -> None:
        if not 1 <= self.min_ways <= self.max_ways <= self.max_context:
            raise InputError(
                "limits need 1 <= min_ways <= max_ways <= max_context, "
                f"not {self.min_ways}, {self.max_ways}, {self.max_context}"
            )
        if self.max_targets_per_class < 1 or self.max_context_per_class < 1 or self.log_weight < 0:
            raise InputError("limits need max_targets_per_class >= 1, max_context_per_class >= 1, log_weight >= 0")


TRAIN_LIMITS = Limits(max_ways=40, max_context=400)
TEST_LIMITS = Limits()


@dataclass(frozen=True)
class _Source:
    """What sampling needs of a collection: no more than numbers a class."""

    name: str
    counts: np.ndarray  # (classes,)
    starts: np.ndarray  # (classes,) the first row of each
    pools: list[list[int]]  # the classes of a task come from one of these
    whole: bool  # a task takes the whole pool (WordNet) rather than a number of ways by chance


class Sampler:
    """Describes task 0, 1, 2, ... of a split, uniform over collections.

    Classes come from one alphabet (Omniglot) or one WordNet node (ILSVRC) where a collection has such a
    ``hierarchy``. Fixed ``ways``, ``shots`` (context images a class) and ``targets`` (a class) replace the
    protocol's random ones. ``split=None`` takes all classes. Classes with too few images are left out::

        sampler = Sampler([Collection.open("collections/cu_birds")], "test", seed=1)
        sampler.describe(0).ways
    """

    def __init__(
        self,
        collections: Sequence[Collection],
        split: str | None,
        *,
        limits: Limits = TEST_LIMITS,
        seed: int = 0,
        ways: int | None = None,
        shots: int | None = None,
        targets: int | None = None,
        hierarchy: bool = True,
    ) -> None:
        for name, value in {"ways": ways, "shots": shots, "targets": targets}.items():
            if value is not None and value < 1:
                raise InputError(f"{name} must be at least 1, not {value}")
        if seed < 0:
            raise InputError(f"a seed is a whole number from 0, not {seed}")
        if ways is not None and shots is None and ways > limits.max_context:
            raise InputError(f"{ways} ways do not fit a context of at most {limits.max_context} images")
        if not collections:
            raise InputError("tasks need at least one collection")
        names = [collection.name for collection in collections]
        if len(set(names)) < len(names):
            raise InputError(f"two collections have the same name: {', '.join(sorted(names))}")
        self.split, self.limits, self.seed = split, limits, seed
        self.ways, self.shots, self.targets, self.hierarchy = ways, shots, targets, hierarchy
        ordered = sorted(collections, key=lambda collection: collection.name)
        self._sources = [self._source(collection) for collection in ordered]

    @property
    def protocol(self) -> dict[str, object]:
        """Everything that, with the data, decides the tasks; manifests keep it."""
        names = ("split", "seed", "ways", "shots", "targets", "hierarchy")
        return {name: getattr(self, name) for name in names} | {"limits": asdict(self.limits)}

    def describe(self, index: int) -> TaskDescription:
        """The task with this number: the same on any machine and in any process."""
        if index < 0:
            raise InputError(f"tasks are numbered from 0, there is no task {index}")
        sequence = np.random.SeedSequence(self.seed, spawn_key=(index,))
        generator = np.random.Generator(np.random.Philox(sequence))
        source = _pick(generator, self._sources)
        pool = _pick(generator, source.pools)
        classes = [pool[i] for i in _draw(generator, self._count_ways(generator, source, pool), len(pool))]
        counts = source.counts[classes]
        targets = self._count_targets(counts)
        shots = self._count_shots(generator, counts, targets)
        chosen_context, chosen_targets = [], []
        for start, count, n in zip(source.starts[classes].tolist(), counts.tolist(), shots, strict=True):
            rows = tuple(start + i for i in _draw(generator, targets + n, count))
            chosen_targets.append(rows[:targets])
            chosen_context.append(rows[targets:])
        chosen = tuple(chosen_context), tuple(chosen_targets)
        return TaskDescription(int(index), source.name, tuple(classes), *chosen)

    def _count_ways(self, generator: np.random.Generator, source: _Source, pool: Sequence[int]) -> int:
        most = min(self.limits.max_ways, len(pool))
        if self.ways is not None:
            return self.ways
        if source.whole:
            return most
        return self.limits.min_ways + int(generator.random() * (most - self.limits.min_ways + 1))

    def _count_targets(self, counts: np.ndarray) -> int:
        """Targets a class, equal for all classes."""
        if self.targets is not None:
            return self.targets
        smallest = int(counts.min())
        available = smallest // 2 if self.shots is None else smallest - self.shots
        return min(self.limits.max_targets_per_class, available)

    def _count_shots(self, generator: np.random.Generator, counts: np.ndarray, targets: int) -> list[int]:
        """Context images of each class: a total by chance, shared out about as the class sizes are."""
        limits, ways = self.limits, len(counts)
        if self.shots is not None:
            return [self.shots] * ways
        left = counts - targets
        contributions = np.floor(generator.random() * np.minimum(limits.max_context_per_class, left) + 1)
        size = min(limits.max_context, int(contributions.sum()))
        weights = counts * np.exp((2 * generator.random(ways) - 1) * limits.log_weight)
        desired = np.floor(weights / weights.sum() * (size - ways)).astype(np.int64) + 1
        return np.minimum(desired, left).tolist()

    def _source(self, collection: Collection) -> _Source:
        where = f"{collection.name}, split {self.split!r}" if self.split else collection.name
        if self.split is not None and self.split not in collection.splits:
            held = ", ".join(collection.splits) or "none"
            raise DataError(f"{collection.name} has no classes in a split {self.split!r} (its splits: {held})")
        counts = np.asarray(collection.counts, dtype=np.int64)
        fewest = (self.shots or 1) + (self.targets or 1)
        usable = [index for index in collection.indices_of(self.split) if counts[index] >= fewest]
        least = self.ways or self.limits.min_ways
        if len(usable) < least:
            raise DataError(
                f"{where}: a task needs {least} classes of at least {fewest} images, and there are "
                f"{len(usable)}; choose another split, or fix smaller ways and shots"
            )
        kind, groups = self._groups(collection)
        allowed = set(usable)
        pools = [[index for index in group if index in allowed] for group in groups] if groups else [usable]
        most = MAX_LEAVES if kind == "wordnet" else len(counts)
        pools = [pool for pool in pools if least <= len(pool) <= most]
        if not pools:
            group = "WordNet node" if kind == "wordnet" else "alphabet"
            raise DataError(
                f"{where}: no {group} has {least} classes of at least {fewest} images; "
                "choose another split, or draw classes without the hierarchy"
            )
        starts = np.cumsum(counts) - counts
        return _Source(collection.name, counts, starts, pools, whole=kind == "wordnet")

    def _groups(self, collection: Collection) -> tuple[str, list[list[int]]]:
        if not self.hierarchy or not collection.hierarchy:
            return "", []
        kind = collection.hierarchy.get("kind")
        groups = collection.hierarchy.get({"alphabets": "groups", "wordnet": "nodes"}.get(str(kind), ""))
        if not groups:
            raise DataError(f"{collection.name} has a hierarchy of an unknown kind, {kind!r}; prepare it again")
        return str(kind), [groups[name] for name in sorted(groups)]


def _pick(generator: np.random.Generator, items: Sequence[T]) -> T:
    return items[int(generator.random() * len(items))]


def _draw(generator: np.random.Generator, k: int, n: int) -> list[int]:
    """``k`` different numbers below ``n`` in random order: the first ``k`` steps of a shuffle."""
    moved: dict[int, int] = {}
    drawn = []
    for step, chance in enumerate(generator.random(k).tolist()):
        other = step + int(chance * (n - step))
        drawn.append(moved.get(other, other))
        moved[other] = moved.get(step, step)
    return drawn
