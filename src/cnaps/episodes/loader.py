"""Tasks in memory before they are needed."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from cnaps.episodes.sampler import Sampler
from cnaps.episodes.task import Task, TaskDescription, load_task
from cnaps.errors import InputError
from cnaps.parallel import read_ahead

if TYPE_CHECKING:
    from cnaps.data.collection import Collection


class TaskLoader:
    """Iterates over loaded tasks in the order of ``indices`` while ``workers`` threads decode the next ones.

    ``tasks`` is a sampler, or a list of descriptions (of a manifest, say). Without ``indices`` a list comes
    once from start to end, and a sampler's tasks 0, 1, 2, ... without end. At most ``prefetch`` tasks wait in
    memory. ``size`` may depend on the task. An error is raised where its task would have come. Leaving the loop
    stops the threads::

        for task in TaskLoader(sampler, {"cu_birds": birds}, size=84, indices=range(600)):
            ...
    """

    def __init__(
        self,
        tasks: Sampler | Sequence[TaskDescription],
        collections: Mapping[str, Collection],
        size: int | Callable[[TaskDescription], int] | None = None,
        indices: Iterable[int] | None = None,
        workers: int = 1,
        prefetch: int = 4,
    ) -> None:
        if workers < 1 or prefetch < 1:
            raise InputError(f"a loader needs at least 1 worker and 1 task ahead, not {workers} and {prefetch}")
        if indices is None:
            indices = itertools.count() if isinstance(tasks, Sampler) else range(len(tasks))
        self.tasks, self.collections, self.size = tasks, collections, size
        self.indices, self.workers, self.prefetch = indices, workers, prefetch

    def __iter__(self) -> Iterator[Task]:
        return read_ahead(self._load, self.indices, threads=self.workers, depth=self.prefetch)

    def _load(self, index: int) -> Task:
        described = self.tasks.describe(index) if isinstance(self.tasks, Sampler) else self.tasks[index]
        size = self.size(described) if callable(self.size) else self.size
        return load_task(described, self.collections, size)
