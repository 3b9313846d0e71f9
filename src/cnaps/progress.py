"""One look for every progress bar; silent where nobody watches (no terminal)."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sized
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from rich.progress import Progress

T = TypeVar("T")


def progress_bar(*, visible: bool | None = None) -> Progress:
    """A rich progress display on standard error; add tasks to it, and use it as a context manager.

    Extra fields: give ``add_task(..., note="...")`` a short text that stands behind the bar.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    shown = sys.stderr.isatty() if visible is None else visible
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
        console=Console(stderr=True),
        disable=not shown,
        transient=True,
    )


def track(items: Iterable[T], description: str, total: int | None = None) -> Iterator[T]:
    """Iterate with a progress bar.

    >>> list(track([1, 2, 3], "counting"))
    [1, 2, 3]
    """
    if total is None and isinstance(items, Sized):
        total = len(items)
    with progress_bar() as bar:
        row = bar.add_task(description, total=total, note="")
        for item in items:
            yield item
            bar.advance(row)
