"""The stream of training tasks: collections, each with its split, as a function of (seed, index)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import torch

from cnaps.data.collection import Collection
from cnaps.episodes import Limits, Sampler, TaskDescription
from cnaps.errors import InputError
from cnaps.training.config import Tasks, TrainConfig, Validation

SPLITS = ("train", "valid", "test", "all")


def open_collections(entries: Iterable[str], default_split: str) -> list[tuple[Collection, str | None]]:
    """Open ``path`` or ``path:split`` entries; the split ``all`` means every class and becomes None."""
    opened: list[tuple[Collection, str | None]] = []
    for entry in entries:
        path, colon, split = entry.rpartition(":")
        if not colon or split not in SPLITS:
            path, split = entry, default_split
        collection = Collection.open(path)
        if collection.name in {other.name for other, _ in opened}:
            raise InputError(f"the collection {collection.name} ({entry}) is given twice")
        opened.append((collection, None if split == "all" else split))
    return opened


class TaskStream(Sequence[TaskDescription]):
    """Training tasks 0, 1, 2, ...: first a collection at random, then a task of its split."""

    def __init__(self, sets: Sequence[tuple[Collection, str | None]], tasks: Tasks, seed: int) -> None:
        limits = _limits(tasks)
        self._seed, self._total = seed, tasks.total
        self._samplers = [_sampler(collection, split, tasks, limits, seed) for collection, split in sets]
        counts = [len(c.indices_of(split)) for c, split in sets]
        shares = np.array(counts, dtype=float) ** tasks.balance
        self._ends = np.cumsum(shares / shares.sum())

    def __len__(self) -> int:
        return self._total

    def __getitem__(self, index: Any) -> Any:
        """The description of a task; a pure function of the seed and the index."""
        if not 0 <= index < self._total:
            raise IndexError(index)
        draw = np.random.default_rng((self._seed, index, 1)).random()
        place = int(np.searchsorted(self._ends, draw, side="right"))
        return self._samplers[min(place, len(self._samplers) - 1)].describe(index)


def task_size(sizes: Mapping[str, Sequence[int]], default: int, seed: int, description: TaskDescription) -> int:
    """The size at which a training task is read: one of those of its collection, by chance."""
    choices = sizes.get(description.collection) or sizes.get("others") or [default]
    draw = np.random.default_rng((seed, description.index, 3)).random()
    return int(choices[int(draw * len(choices))])


def validation_sampler(collection: Collection, split: str | None, config: TrainConfig) -> Sampler:
    """The tasks of a validation set: larger than those of training, and always the same ones."""
    options = config.validation
    limits = _limits(options, min_ways=min(config.tasks.min_ways, options.max_ways))
    return _sampler(collection, split, config.tasks, limits, options.seed)


def _limits(options: Tasks | Validation, **more: int) -> Limits:
    """Those that the settings name; of the others, the protocol's."""
    named = [each.name for each in fields(Limits) if hasattr(options, each.name)]
    return Limits(**{name: getattr(options, name) for name in named} | more)


def _sampler(collection: Collection, split: str | None, tasks: Tasks, limits: Limits, seed: int) -> Sampler:
    fixed = {"ways": tasks.ways, "shots": tasks.shots, "targets": tasks.targets}
    return Sampler([collection], split, limits=limits, seed=seed, hierarchy=tasks.hierarchy, **fixed)


def task_generator(seed: int, index: int) -> torch.Generator:
    """The generator of everything random in one task; so no generator's state outlives a task."""
    state = np.random.SeedSequence((seed, index, 2)).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(state) >> 1)
