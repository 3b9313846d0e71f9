"""How many processors there are, and reading ahead in threads."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def cpu_count() -> int:
    """The number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


def thread_count() -> int:
    """How many threads a network may use: CNAPS_THREADS, or one for every processor of this process."""
    return int(os.environ.get("CNAPS_THREADS", "0")) or cpu_count()


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
