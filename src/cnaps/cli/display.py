"""One look for every progress: a bar in a terminal, a plain line every few seconds elsewhere."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import Any

from cnaps.progress import Display

EVERY = 5.0  # seconds between lines; what is done sooner needs none


@dataclass
class _Row:
    description: str
    total: float | None
    completed: float
    note: str

    def __post_init__(self) -> None:
        self.first = self.completed
        self.begun = self.said = time.monotonic()

    def __str__(self) -> str:
        done, total = self.completed, self.total
        text = f"{self.description}: {done:,.0f}" + (f" of {total:,.0f}" if total else "")
        if total and self.first < done < total:
            left = (self.said - self.begun) * (total - done) / (done - self.first)
            text += f", {left:,.0f} s left"
        return f"{text}  {self.note}".rstrip()


class Lines(Display):
    """Stands in for a bar where there is no terminal: `classifying: 320 of 1,000, 12 s left` on standard error."""

    def __init__(self) -> None:
        self._rows: list[_Row] = []

    def add_task(self, description: str, total: float | None = None, completed: float = 0, note: str = "") -> int:
        """A further thing that progresses; its number."""
        self._rows.append(_Row(description, total, completed, note))
        return len(self._rows) - 1

    def update(self, number: int, *, advance: float = 0, **changes: Any) -> None:
        """How far it is; said when the last time was a while ago, ever less often in the course of hours."""
        row, now = self._rows[number], time.monotonic()
        row.completed += advance
        for name, value in changes.items():
            setattr(row, name, value)
        if now - row.said >= max(EVERY, (row.said - row.begun) / 20):
            row.said = now
            print(row, file=sys.stderr, flush=True)


def progress_display() -> Any:
    """A display on standard error; see `cnaps.progress.Display`."""
    if not sys.stderr.isatty():
        return Lines()
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
        console=Console(stderr=True),
        transient=True,
    )
