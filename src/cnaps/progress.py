"""How far long work has come: whoever works says it here, and the command line shows it.

Used as a library nothing is shown. `show_with` says how; it is called once, by the program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Any, TypeVar

T = TypeVar("T")


class Display:
    """What shows several things that progress: this one nothing; rich's `Progress` is one too."""

    def __enter__(self) -> Display:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def add_task(self, description: str, total: float | None = None, completed: float = 0, note: str = "") -> Any:
        """A further thing that progresses, and a short text that stands behind it; gives its number."""

    def advance(self, number: Any, advance: float = 1) -> None:
        """So much more is done."""
        self.update(number, advance=advance)

    def update(self, number: Any, *, advance: float = 0, **changes: Any) -> None:
        """How far it is, and what else has changed."""


_display: Callable[[], Display] = Display


def show_with(display: Callable[[], Display]) -> None:
    """From now on progress of this process is shown by what `display` makes."""
    global _display
    _display = display


def progress_bar(*, visible: bool = True) -> Display:
    """Something to tell of progress."""
    return _display() if visible else Display()


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
