"""The one place that decides about threads and devices."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import torch

T = TypeVar("T")
R = TypeVar("R")


def cpu_count() -> int:
    """The number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


@cache
def configure_threads() -> int:
    """Set torch's threads, once: CNAPS_THREADS, or every processor this process may use."""
    import torch

    chosen = int(os.environ.get("CNAPS_THREADS", "0")) or cpu_count()
    torch.set_num_threads(chosen)
    return chosen


def pick_device(name: str = "auto") -> torch.device:
    """Turn ``auto`` into the best device there is; any other name is taken as it is.

    >>> pick_device("cpu").type
    'cpu'
    """
    import torch

    configure_threads()
    if name != "auto":
        return torch.device(name)
    if torch.cuda.is_available():
        return torch.device("cuda")
    if torch.backends.mps.is_available():
        return torch.device("mps")
    return torch.device("cpu")


def read_ahead(function: Callable[[T], R], items: Iterable[T], *, threads: int, depth: int) -> Iterator[R]:
    """``function`` of each item in order, done in threads, with at most ``depth`` results waiting.

    An error is raised where its result would have come. Leaving the loop stops the threads.

    >>> list(read_ahead(abs, [-3, 2, -1], threads=2, depth=1))
    [3, 2, 1]
    """
    waiting: deque[Future[R]] = deque()
    pool = ThreadPoolExecutor(threads, thread_name_prefix="ahead")
    try:
        for item in items:
            waiting.append(pool.submit(function, item))
            if len(waiting) > depth:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
