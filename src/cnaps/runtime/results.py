"""What was found for each image, and how it is written down: CSV or JSON."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cnaps.files import escaped, spreadsheet_cell, write_json, write_text


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


def write_results(path: Path, results: Sequence[Result], skipped: Sequence[Skipped]) -> None:
    """Write a CSV (path, label, probability, then the runners-up) or a JSON file, whole or not at all."""
    if path.suffix.lower() == ".json":
        write_json(path, {
            "format": "cnaps-results",
            "version": 1,
            "results": [
                {
                    "path": escaped(result.path),
                    "label": result.label,
                    "probability": round(result.probability, 6),
                    "runners_up": [
                        {"label": label, "probability": round(p, 6)} for label, p in result.ranking[1:]
                    ],
                }
                for result in results
            ],
            "skipped": [{"path": escaped(item.path), "reason": escaped(item.reason)} for item in skipped],
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
        writer.writerow(map(spreadsheet_cell, [escaped(result.path), *cells]))
    write_text(path, text.getvalue())
