"""What was found for each image, and how it is written down: CSV or JSON."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cnaps.errors import InputError
from cnaps.files import write_json, write_text


@dataclass(frozen=True)
class Result:
    """The most probable classes of an image, best first, each with its probability."""

    path: str
    ranking: tuple[tuple[str, float], ...]

    @classmethod
    def of(cls, path: str, names: Sequence[Any], probabilities: np.ndarray, top: int) -> Result:
        """From the probabilities (C,) of all classes."""
        best = np.argsort(-probabilities, kind="stable")[:top]
        return cls(path, tuple((str(names[i]), float(probabilities[i])) for i in best))

    @property
    def label(self) -> str:
        """The most probable class."""
        return self.ranking[0][0]

    @property
    def probability(self) -> float:
        """Its probability."""
        return self.ranking[0][1]


@dataclass(frozen=True)
class Skipped:
    """An image that could not be read, and why."""

    path: str
    reason: str


FORMATS = (".csv", ".json")


def check_output(path: Path | None, suffixes: Sequence[str] = ()) -> None:
    """Say before any work is done that a file cannot be written there."""
    if path is None:
        return
    if suffixes and path.suffix.lower() not in suffixes:
        raise InputError(f"{path} must end in {' or '.join(suffixes)}")
    if path.is_dir():
        raise InputError(f"cannot write {path}: it is a folder")
    above = path.absolute().parent
    while not above.exists():
        above = above.parent
    if not above.is_dir():
        raise InputError(f"cannot write {path}: {above} is no folder")
    if not os.access(above, os.W_OK | os.X_OK):
        raise InputError(f"cannot write {path}: {above} is read-only for you")


def write_results(path: Path, results: Sequence[Result], skipped: Sequence[Skipped]) -> None:
    """Write a CSV (path, label, probability, then the runners-up) or a JSON file, whole or not at all."""
    if path.suffix.lower() == ".json":
        write_json(path, {
            "format": "cnaps-results",
            "version": 1,
            "results": [
                {
                    "path": printable(result.path),
                    "label": result.label,
                    "probability": round(result.probability, 6),
                    "runners_up": [
                        {"label": label, "probability": round(p, 6)} for label, p in result.ranking[1:]
                    ],
                }
                for result in results
            ],
            "skipped": [{"path": printable(item.path), "reason": printable(item.reason)} for item in skipped],
        })  # fmt: skip
        return
    places = max((len(result.ranking) for result in results), default=1)
    header = ["path", "label", "probability"]
    for place in range(2, places + 1):
        header += [f"label_{place}", f"probability_{place}"]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    for result in results:
        cells = [cell for label, p in result.ranking for cell in (label, f"{p:.6f}")]
        writer.writerow([printable(result.path), *cells])
    write_text(path, text.getvalue())


def printable(text: str) -> str:
    """File names are bytes, and some are no UTF-8: those bytes become question marks."""
    return text.encode("utf-8", "replace").decode("utf-8")
