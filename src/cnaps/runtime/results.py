"""What was found for each image, and how it is written down: CSV or JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cnaps.files import csv_text, escaped, write_json, write_text
from cnaps.runtime.novelty import NONE


@dataclass(frozen=True)
class Result:
    """The most probable classes of an image, best first, with probabilities, and what else is known of it."""

    path: str
    ranking: tuple[tuple[str, float], ...]
    novelty: float | None = None  # how unlike all classes it is, where that was asked for
    stranger: bool = False  # so unlike that it is none of them
    truth: str | None = None  # its class, where that is known

    @classmethod
    def of(
        cls,
        path: str | Path,
        names: Sequence[Any],
        probabilities: np.ndarray,
        top: int,
        novelty: float | None = None,
        level: float | None = None,
        truth: str | None = None,
    ) -> Result:
        """From the probabilities (C,) of all classes; with a novelty beyond `level` it is none of them."""
        best = np.argsort(-probabilities, kind="stable")[:top]
        ranking = tuple((str(names[i]), float(probabilities[i])) for i in best)
        strange = novelty is not None and level is not None and novelty > level
        return cls(str(path), ranking, novelty, strange, truth)

    @property
    def label(self) -> str:
        """The answer: the most probable class, or that it is none of them."""
        return NONE if self.stranger else self.ranking[0][0]

    @property
    def mistaken(self) -> bool:
        """Whether the answer is known to be wrong."""
        return self.truth is not None and self.truth != self.label

    @property
    def probability(self) -> float:
        """That of the most probable class."""
        return self.ranking[0][1]

    @property
    def answers(self) -> tuple[tuple[str, float | None], ...]:
        """As they are written down, the answer first: "none of these" has no probability, then classes follow."""
        return ((NONE, None), *self.ranking)[: len(self.ranking)] if self.stranger else self.ranking


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
            "results": [_record(result) for result in results],
            "skipped": [{"path": escaped(item.path), "reason": escaped(item.reason)} for item in skipped],
        })  # fmt: skip
    else:
        write_text(path, results_csv(results))


def results_csv(results: Sequence[Result]) -> str:
    """The table as text; columns of what is known of no image are left away."""
    places = max((len(result.ranking) for result in results), default=1)
    header = ["path", "label", "probability"]
    for place in range(2, places + 1):
        header += [f"label_{place}", f"probability_{place}"]
    novelty = any(result.novelty is not None for result in results)
    truth = any(result.truth is not None for result in results)
    rows = [[*header, *["novelty"] * novelty, *["true_label"] * truth]]
    for result in results:
        cells = [cell for label, p in result.answers for cell in (label, "" if p is None else f"{p:.6f}")]
        cells += [""] * (2 * places - len(cells))
        cells += ["" if result.novelty is None else f"{result.novelty:.6f}"] * novelty
        rows.append([escaped(result.path), *cells, *[result.truth or ""] * truth])
    return csv_text(rows)


def _record(result: Result) -> dict[str, Any]:
    answers = [{"label": label, "probability": None if p is None else round(p, 6)} for label, p in result.answers]
    known: dict[str, Any] = {"path": escaped(result.path), **answers[0], "runners_up": answers[1:]}
    if result.novelty is not None:
        known["novelty"] = round(result.novelty, 6)
    if result.truth is not None:
        known["true_label"] = result.truth
    return known
