"""The page that learns in the browser: it says what Python says, and its files are Python's."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from cnaps.runtime.engine import open_engine
from cnaps.runtime.task import Examples, FittedTask
from cnaps.runtime.taskfile import read_task

from .conftest import CLASSES, Page

pytest.importorskip("selenium")
Pictures = dict[str, list[Path]]
SHOTS = 5


def _teach(page: Page, pictures: Pictures) -> None:
    for i, name in enumerate(CLASSES, 1):
        page.name_class(name)
        page.drop(f"#classes > li:nth-child({i})", pictures[name][:SHOTS])
    page.learned(SHOTS * len(CLASSES))


def _learn(pictures: Pictures) -> FittedTask:
    """The same in Python."""
    examples = [(path, name) for name in CLASSES for path in pictures[name][:SHOTS]]
    engine = open_engine("cnaps-lite0")
    read = Examples.read([p for p, _ in examples], [n for _, n in examples], engine.image_size)
    return FittedTask.learn(engine, read)


def _probabilities(task: FittedTask, files: list[Path]) -> np.ndarray:
    return np.concatenate([found for _, found in task.predict(files)])


def _table(path: Path) -> dict[str, dict[str, float]]:
    """Probabilities by file and class."""
    found = {}
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            keys = [key for key in row if key.startswith("label")]
            found[row["path"]] = {row[key]: float(row[key.replace("label", "probability")]) for key in keys}
    return found


def test_film_and_probabilities_agree_with_python_on_photographs(page: Page, pictures: Pictures) -> None:
    page.open()
    _teach(page, pictures)
    asked = [path for name in CLASSES for path in pictures[name][SHOTS:10]]
    page.drop("#test", asked)
    page.wait(lambda: len(page.answers()) == len(asked))

    wanted = _learn(pictures)
    made = read_task(page.export("task"))
    assert made.names == wanted.names
    assert np.abs(made.film - wanted.film).max() < 1e-3
    assert np.abs(made.statistics.means - wanted.statistics.means).max() < 1e-3
    assert made.threshold == pytest.approx(wanted.threshold, abs=1e-3)

    table = _table(page.export("csv"))
    here = np.array([[table[path.name][name] for name in wanted.names] for path in asked])
    assert np.abs(here - _probabilities(wanted, asked)).max() < 1e-3
    # and the task file, in Python, says the same again
    assert np.abs(here - _probabilities(made, asked)).max() < 1e-3
    assert page.complaints() == []
