"""A task: a context set to learn from and a target set to be scored on, with the identity of every image."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from cnaps.errors import DataError

if TYPE_CHECKING:
    from cnaps.data.collection import Collection


@dataclass(frozen=True)
class TaskDescription:
    """Which images make a task: rows of a collection, a tuple of them for each class.

    >>> TaskDescription(0, "letters", classes=(7, 3), context=((70,), (31, 30)), targets=((71,), (32,))).ways
    2
    """

    index: int
    collection: str
    classes: tuple[int, ...]
    context: tuple[tuple[int, ...], ...]
    targets: tuple[tuple[int, ...], ...]

    @property
    def ways(self) -> int:
        """The number of classes."""
        return len(self.classes)

    @property
    def context_size(self) -> int:
        """The number of context images of all classes."""
        return sum(map(len, self.context))

    @property
    def target_size(self) -> int:
        """The number of target images of all classes."""
        return sum(map(len, self.targets))


@dataclass
class Task:
    """A task in memory. Label ``k`` is the class ``class_names[k]``."""

    context_images: torch.Tensor  # uint8 (N, 3, S, S)
    context_labels: torch.Tensor  # int64 (N,)
    target_images: torch.Tensor  # uint8 (M, 3, S, S)
    target_labels: torch.Tensor  # int64 (M,)
    class_names: list[str]
    collection: str
    index: int
    context_keys: list[str]
    target_keys: list[str]


def load_task(
    description: TaskDescription,
    collections: Mapping[str, Collection],
    size: int | None = None,
    threads: int | None = None,
) -> Task:
    """Read a task's images, ``size`` pixels square; the context comes shuffled, always in the same order."""
    collection = collections.get(description.collection)
    if collection is None:
        raise DataError(
            f"task {description.index} is of the collection {description.collection!r}, "
            f"which is not among {', '.join(sorted(collections)) or 'the given ones (none)'}"
        )
    context, context_labels = flat_rows(description.context)
    targets, target_labels = flat_rows(description.targets)
    order = np.argsort(np.random.Generator(np.random.Philox(context.tolist())).random(len(context)))
    rows = [*context[order].tolist(), *targets.tolist()]
    images = collection.read(rows, size=size, threads=threads)
    keys = collection.keys(rows)
    n = len(context)
    return Task(
        context_images=images[:n],
        context_labels=torch.from_numpy(context_labels[order]),
        target_images=images[n:],
        target_labels=torch.from_numpy(target_labels),
        class_names=[collection.classes[index] for index in description.classes],
        collection=description.collection,
        index=description.index,
        context_keys=keys[:n],
        target_keys=keys[n:],
    )


def flat_rows(rows: tuple[tuple[int, ...], ...]) -> tuple[np.ndarray, np.ndarray]:
    """All rows, and the label of each."""
    labels = np.repeat(np.arange(len(rows), dtype=np.int64), [len(some) for some in rows])
    return np.array([row for some in rows for row in some], dtype=np.int64), labels
