"""Counters of all processes that serve together, in the text format of Prometheus."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np

_COUNTED = {
    "requests_total": ("counter", "Requests for predictions."),
    "request_seconds_total": ("counter", "Seconds that answers took."),
    "images_total": ("counter", "Images that were classified."),
    "refused_images_total": ("counter", "Images that could not be read."),
    "busy_total": ("counter", "Requests refused because too many images waited."),
    "batches_total": ("counter", "Batches that images were classified in."),
    "waiting_images": ("gauge", "Images between their arrival and their answer."),
}
_PLACES = {name: i for i, name in enumerate(_COUNTED)}


class Metrics:
    """Numbers of this process; with a folder, in a file there, so that any of several processes adds them up."""

    def __init__(self, folder: str | Path | None = None) -> None:
        self._folder, self._started = Path(folder) if folder else None, time.time()
        self._own = np.zeros(len(_COUNTED))
        if self._folder:
            self._own = np.memmap(self._folder / f"{os.getpid()}.counts", np.float64, "w+", shape=len(_COUNTED))

    def add(self, name: str, amount: float = 1) -> None:
        """Count."""
        self._own[_PLACES[name]] += amount

    def __getitem__(self, name: str) -> float:
        """A number of this process alone."""
        return float(self._own[_PLACES[name]])

    def text(self) -> str:
        """The sums over all processes, and how long the one that answers has run."""
        sums, files = self._own, sorted(self._folder.glob("*.counts")) if self._folder else []
        if files:
            rows = [np.fromfile(path, np.float64) * _counts(path) for path in files]
            sums = np.sum([row for row in rows if len(row) == len(_COUNTED)], axis=0)
        lines = []
        for (name, (kind, text)), value in zip(_COUNTED.items(), sums, strict=True):
            lines += [f"# HELP cnaps_{name} {text}", f"# TYPE cnaps_{name} {kind}", f"cnaps_{name} {value:.12g}"]
        uptime = f'cnaps_uptime_seconds{{process="{os.getpid()}"}} {time.time() - self._started:.3f}'
        lines += ["# HELP cnaps_uptime_seconds Seconds since the process that answers began."]
        return "\n".join([*lines, "# TYPE cnaps_uptime_seconds gauge", uptime, ""])


def _counts(path: Path) -> np.ndarray:
    """Ones, with zeros for what a process that is gone does not have any more."""
    try:
        os.kill(int(path.stem), 0)
        alive = True
    except OSError:
        alive = False
    return np.array([alive or kind == "counter" for kind, _ in _COUNTED.values()], np.float64)
