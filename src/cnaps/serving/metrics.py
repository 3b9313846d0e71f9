"""Counters and histograms of all processes that serve together, in the text format of Prometheus."""

from __future__ import annotations

import os
import time
from bisect import bisect_left
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
_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_HISTOGRAMS: dict[str, tuple[str, tuple[float, ...]]] = {
    "request_seconds": ("Seconds from the arrival of a request for predictions to its answer.", _SECONDS),
    "decoding_seconds": ("Seconds that the images of a request took to decode.", _SECONDS),
    "batch_seconds": ("Seconds that the network took over a batch.", _SECONDS),
    "batch_images": ("Images in a batch.", (1, 2, 4, 8, 16, 32)),
}
# one row of numbers: what is counted, then for each histogram its buckets, the last without end, and its sum
_PLACES = {name: i for i, name in enumerate(_COUNTED)}
_ROW = len(_COUNTED)
for _name, (_, _bounds) in _HISTOGRAMS.items():
    _PLACES[_name] = _ROW
    _ROW += len(_bounds) + 2


class Metrics:
    """Numbers of this process; with a folder, in a file there, so that any of several processes adds them up."""

    def __init__(self, folder: str | Path | None = None) -> None:
        self._folder, self._started = Path(folder) if folder else None, time.time()
        self._own = np.zeros(_ROW)
        if self._folder:
            self._own = np.memmap(self._folder / f"{os.getpid()}.counts", np.float64, "w+", shape=_ROW)

    def add(self, name: str, amount: float = 1) -> None:
        """Count."""
        self._own[_PLACES[name]] += amount

    def observe(self, name: str, value: float) -> None:
        """Add a value to a histogram."""
        start, bounds = _PLACES[name], _HISTOGRAMS[name][1]
        self._own[start + bisect_left(bounds, value)] += 1
        self._own[start + len(bounds) + 1] += value

    def __getitem__(self, name: str) -> float:
        """A number of this process alone."""
        return float(self._own[_PLACES[name]])

    def text(self) -> str:
        """The sums over all processes, and how long the one that answers has run."""
        sums, files = self._own, sorted(self._folder.glob("*.counts")) if self._folder else []
        if files:
            rows = [(path, np.fromfile(path, np.float64)) for path in files]
            sums = np.sum([row * _counts(path) for path, row in rows if len(row) == _ROW], axis=0)
        lines = []
        for name, (kind, text) in _COUNTED.items():
            lines += _head(name, kind, text)
            lines += [f"cnaps_{name} {sums[_PLACES[name]]:.12g}"]
        for name, (text, bounds) in _HISTOGRAMS.items():
            start, ends = _PLACES[name], [*(f"{bound:g}" for bound in bounds), "+Inf"]
            *buckets, total = sums[start : start + len(bounds) + 2].tolist()
            lines += _head(name, "histogram", text)
            below = np.cumsum(buckets).tolist()
            lines += [f'cnaps_{name}_bucket{{le="{end}"}} {n:.12g}' for end, n in zip(ends, below, strict=True)]
            lines += [f"cnaps_{name}_sum {total:.12g}", f"cnaps_{name}_count {below[-1]:.12g}"]
        uptime = f'cnaps_uptime_seconds{{process="{os.getpid()}"}} {time.time() - self._started:.3f}'
        lines += _head("uptime_seconds", "gauge", "Seconds since the process that answers began.")
        return "\n".join([*lines, uptime, ""])


def _head(name: str, kind: str, text: str) -> list[str]:
    return [f"# HELP cnaps_{name} {text}", f"# TYPE cnaps_{name} {kind}"]


def _counts(path: Path) -> np.ndarray:
    """Ones, with zeros for what a process that is gone does not have any more."""
    found = np.ones(_ROW)
    try:
        os.kill(int(path.stem), 0)
    except OSError:
        found[[_PLACES[name] for name, (kind, _) in _COUNTED.items() if kind == "gauge"]] = 0
    return found
