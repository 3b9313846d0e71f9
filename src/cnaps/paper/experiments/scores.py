"""Scores of tasks: measured, kept line by line so that nothing is done twice, and summed up with intervals."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from scipy.special import stdtrit
from torch import Tensor
from torch.nn import functional as F

from cnaps.errors import CnapsError, DataError, InputError
from cnaps.files import write_json

T = TypeVar("T")
Calibration = tuple[float, float, float]  # a, b, c of log T = a + b log(ways) + c log(shots)
BINS = 15  # of the confidence, for the calibration error
LOG_TEMPERATURES = np.linspace(-1.2, 1.2, 13)  # at which likelihoods are kept, so that calibration needs no logits


@dataclass(frozen=True)
class Score:
    """One learner on one task.

    `bins` are, for each bin of confidence, predictions, sum of confidence and hits; `nlls` the negative log
    likelihood at each of LOG_TEMPERATURES; `seconds` the time to adapt and predict, without frozen features.
    """

    learner: str
    collection: str
    index: int
    ways: int
    context: int
    accuracy: float
    nlls: list[float]
    bins: list[list[float]]
    seconds: float

    @property
    def key(self) -> tuple[str, str, int]:
        """Which result this is."""
        return self.learner, self.collection, self.index


def measure(logits: Tensor, labels: Tensor) -> dict[str, Any]:
    """Accuracy, negative log likelihoods and calibration bins of logits (M, C).

    >>> measure(torch.tensor([[9.0, 0.0], [9.0, 0.0]]), torch.tensor([0, 1]))["accuracy"]
    0.5
    """
    confidence, predicted = torch.softmax(logits.float(), 1).max(1)
    hits = (predicted == labels).float()
    place = (confidence * BINS).long().clamp_max(BINS - 1)
    sums = torch.zeros(3, BINS).index_add(1, place, torch.stack([torch.ones_like(hits), confidence, hits]))
    return {
        "accuracy": hits.mean().item(),
        "nlls": [round(F.cross_entropy(logits / np.exp(t), labels).item(), 5) for t in LOG_TEMPERATURES],
        "bins": [[round(value, 4) for value in row] for row in sums.tolist()],
    }


def read_lines(path: Path, make: Callable[[dict[str, Any]], T]) -> list[T]:
    """What the lines of a file of JSON hold; a last line that was cut off by a crash does not count."""
    found = []
    for number, line in enumerate(path.read_bytes().split(b"\n")[:-1] if path.exists() else [], 1):
        try:
            found.append(make(json.loads(line)))
        except (ValueError, TypeError) as error:
            raise DataError(f"{path}, line {number} is damaged ({error}): remove that line") from error
    return found


def append_lines(path: Path, values: Iterable[dict[str, Any]]) -> None:
    """Add lines of JSON, after taking away a torn last one."""
    text = b"".join(json.dumps(value).encode() + b"\n" for value in values)
    try:
        with open(path, "ab+") as file:
            file.seek(0)
            file.truncate(file.read().rfind(b"\n") + 1)
            file.write(text)
    except OSError as error:
        raise CnapsError(f"cannot write {path}: {error.strerror or error}") from error


class ScoreBook:
    """The scores in a folder. Every rank appends to a file of its own; together they are what is done."""

    def __init__(self, folder: str | Path, rank: int = 0) -> None:
        self.folder, self._path = Path(folder), Path(folder) / f"scores-{rank}.jsonl"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CnapsError(f"cannot write to {folder}: {error.strerror or error}") from error

    def read(self) -> dict[tuple[str, str, int], Score]:
        """All scores of all ranks; a line that was cut off by a crash does not count."""
        paths = sorted(self.folder.glob("scores-*.jsonl"))
        scores = [score for path in paths for score in read_lines(path, lambda line: Score(**line))]
        return {score.key: score for score in scores}

    def append(self, scores: Iterable[Score]) -> None:
        """Add lines."""
        append_lines(self._path, map(asdict, scores))

    @property
    def setup(self) -> dict[str, Any]:
        """What the scores are scores of: tasks, data sets and learners, with their fingerprints."""
        path = self.folder / "setup.json"
        try:
            held = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
            if not isinstance(held, dict) or not all(isinstance(part, dict) for part in held.values()):
                raise ValueError("it was not written by cnaps")
            return held
        except (OSError, ValueError) as error:
            raise DataError(f"{path} cannot be read ({error}); choose another folder") from error

    def agree(self, setup: Mapping[str, Any], write: bool) -> dict[str, Any]:
        """The setup of all runs in this folder; refused where `setup` would mix results of different things."""
        merged = self.setup
        try:
            agree(merged, setup)
        except ValueError as error:
            raise InputError(f"{self.folder} {error}: choose another --out, or remove the folder") from None
        if write:
            write_json(self.folder / "setup.json", merged)
        return merged


def agree(held: dict[str, Any], setup: Mapping[str, Any]) -> None:
    """Add a setup to the one that is held; ValueError where results of different things would be mixed."""
    for part, values in setup.items():
        known = held.setdefault(part, {})
        for name, value in values.items():
            if known.setdefault(name, value) != value:
                raise ValueError(f"holds results with {part} {name} = {known[name]}, not {value}")


@dataclass(frozen=True)
class Estimate:
    """A mean and the half-width of its 95% interval by Student's t; of a single value there is no interval.

    >>> str(Estimate.of([0.5, 0.6, 0.7]))
    '60.0 ± 24.8'
    """

    mean: float
    interval: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float] | np.ndarray) -> Estimate:
        """Of independent values."""
        values = np.asarray(values, dtype=float)
        error = values.std(ddof=1) / math.sqrt(len(values)) if len(values) > 1 else math.nan
        return cls(float(values.mean()), _quantile(len(values) - 1) * error, len(values))

    @classmethod
    def average(cls, parts: Sequence[Estimate]) -> Estimate:
        """Of several independent estimates, each with the same weight."""
        error = math.sqrt(sum((part.interval / _quantile(part.count - 1)) ** 2 for part in parts)) / len(parts)
        width = _quantile(sum(part.count - 1 for part in parts)) * error
        return cls(sum(part.mean for part in parts) / len(parts), width, sum(part.count for part in parts))

    def __str__(self) -> str:
        return f"{100 * self.mean:.1f}{self._width}"

    @property
    def signed(self) -> str:
        """As a difference."""
        return f"{100 * self.mean:+.1f}{self._width}"

    @property
    def _width(self) -> str:
        return "" if math.isnan(self.interval) else f" ± {100 * self.interval:.1f}"

    @property
    def numbers(self) -> dict[str, float | None]:
        """For JSON, which knows no NaN."""
        width = None if math.isnan(self.interval) else self.interval
        return {"mean": self.mean, "interval": width, "tasks": self.count}


def _quantile(freedom: int) -> float:
    """By how many standard errors a mean may be off in 95 of 100 cases: 1.96 for many values, more for few."""
    return float(stdtrit(freedom, 0.975))


@dataclass(frozen=True)
class Column:
    """One learner on the tasks of one data set; `bins` are summed over them."""

    index: list[int]
    accuracy: list[float]
    seconds: list[float]
    bins: list[list[float]]

    @classmethod
    def of(cls, scores: Iterable[Score]) -> Column:
        """From its scores, in any order."""
        rows = sorted(scores, key=lambda score: score.index)
        bins = np.sum([score.bins for score in rows], axis=0).round(3).tolist()
        accuracy = [round(score.accuracy, 5) for score in rows]
        return cls([score.index for score in rows], accuracy, [score.seconds for score in rows], bins)

    def joined(self, other: Column) -> Column:
        """With further tasks: others only, or these and more, since the bins of single tasks are not known."""
        mine, its = set(self.index), set(other.index)
        if its <= mine:
            return self
        if mine < its:
            return other
        if mine & its:
            raise InputError("two results share some of their tasks, and each has others: they cannot be joined")
        tasks = [
            *zip(self.index, self.accuracy, self.seconds, strict=True),
            *zip(other.index, other.accuracy, other.seconds, strict=True),
        ]
        index, accuracy, seconds = (list(part) for part in zip(*sorted(tasks), strict=True))
        return Column(index, accuracy, seconds, np.add(self.bins, other.bins).round(3).tolist())


class Scores:
    """Scores by learner and data set, and what can be said of them; plain JSON, and back again."""

    def __init__(self, columns: Mapping[str, Mapping[str, Column]]) -> None:
        self.columns = columns  # by learner, by data set
        self.collections = sorted({name for mine in columns.values() for name in mine})

    @classmethod
    def of(cls, scores: Iterable[Score]) -> Scores:
        """From single scores."""
        groups: dict[str, dict[str, list[Score]]] = {}
        for score in scores:
            groups.setdefault(score.learner, {}).setdefault(score.collection, []).append(score)
        return cls({who: {name: Column.of(some) for name, some in mine.items()} for who, mine in groups.items()})

    @classmethod
    def from_json(cls, data: Mapping[str, Mapping[str, Any]]) -> Scores:
        """What `to_json` gave."""
        return cls({who: {name: Column(**some) for name, some in mine.items()} for who, mine in data.items()})

    def to_json(self) -> dict[str, dict[str, Any]]:
        """Everything, as plain data."""
        return {who: {name: asdict(some) for name, some in mine.items()} for who, mine in self.columns.items()}

    def single(self) -> Iterator[Score]:
        """Single scores again, as far as they are kept: bins, of which the sum is, all lie with the first task."""
        empty = [[0.0] * BINS] * 3
        for who, mine in self.columns.items():
            for name, column in mine.items():
                rows = zip(column.index, column.accuracy, column.seconds, strict=True)
                for place, (index, accuracy, seconds) in enumerate(rows):
                    bins = empty if place or not column.bins else column.bins
                    yield Score(who, name, index, 0, 0, accuracy, [], bins, seconds)

    def joined(self, other: Scores) -> Scores:
        """These and further ones, of the same setup; a task that both have counts once."""
        columns = {who: dict(mine) for who, mine in self.columns.items()}
        for who, mine in other.columns.items():
            held = columns.setdefault(who, {})
            for name, column in mine.items():
                held[name] = held[name].joined(column) if name in held else column
        return Scores(columns)

    def column(self, learner: str, collection: str) -> Column:
        """One learner on one data set; empty where it was not tried."""
        return self.columns.get(learner, {}).get(collection, Column([], [], [], [[0.0] * BINS] * 3))

    def accuracy(self, learner: str, collections: Sequence[str]) -> Estimate | None:
        """The accuracy on a data set, or the mean over several; None where one is missing."""
        return over_tasks([self.tasks(learner, name) for name in collections])

    def difference(self, learner: str, other: str, collections: Sequence[str]) -> Estimate | None:
        """By how much `learner` is more accurate than `other`, over the tasks that both have done."""
        return over_tasks([self._gaps(learner, other, name) for name in collections])

    def seeds(self, learner: str) -> list[str]:
        """The columns of a learner: its own, or one for each seed that it was trained with (`name#1`)."""
        return [who for who in self.columns if learner in (who, without_seed(who))]

    def spread(self, learner: str, collections: Sequence[str], other: str | None = None) -> float | None:
        """The standard deviation over training seeds of the accuracy, or of the difference from `other`.

        There each is compared with the other of its own seed, if that has seeds. It is taken over tasks that all
        seeds have done, since other tasks would differ too. None where there are no two seeds.
        """
        seeds = self.seeds(learner)
        parts: list[list[dict[int, float]]] = []  # by seed, by data set
        for who in seeds:
            twin = f"{other}{who.removeprefix(learner)}"
            against = twin if twin in self.columns else other
            parts.append([
                self._gaps(who, against, name) if against else self.tasks(who, name) for name in collections
            ])  # fmt: skip
        common = [set.intersection(*(set(some) for some in column)) for column in zip(*parts, strict=True)]
        if len(seeds) < 2 or not common or not all(common):
            return None
        means = [
            np.mean([np.mean([some[i] for i in shared]) for some, shared in zip(part, common, strict=True)])
            for part in parts
        ]
        return float(np.std(means, ddof=1))

    def _gaps(self, learner: str, other: str, collection: str) -> dict[int, float]:
        first, second = (self.tasks(who, collection) for who in (learner, other))
        return {i: first[i] - second[i] for i in first.keys() & second.keys()}

    def tasks(self, learner: str, collection: str) -> dict[int, float]:
        """The accuracy on each task by its index; the mean over those seeds that have done it."""
        found: dict[int, list[float]] = {}
        for who in self.seeds(learner):
            column = self.column(who, collection)
            for i, accuracy in zip(column.index, column.accuracy, strict=True):
                found.setdefault(i, []).append(accuracy)
        return {i: sum(each) / len(each) for i, each in sorted(found.items())}

    def reliability(self, learner: str, collections: Sequence[str]) -> np.ndarray:
        """Predictions, sum of confidence and hits in each bin, (3, BINS), over the tasks of some data sets."""
        return np.sum([self.column(who, name).bins for who in self.seeds(learner) for name in collections], axis=0)

    def calibration_error(self, learner: str, collections: Sequence[str]) -> float | None:
        """The expected calibration error: of each data set, averaged."""
        errors = []
        for name in collections:
            if not self.tasks(learner, name):
                return None
            errors.append(calibration_error(self.reliability(learner, [name])))
        return sum(errors) / len(errors) if errors else None


def calibration_error(bins: Any) -> float:
    """The expected calibration error (ECE) of predictions, sums of confidence and hits by bin, (3, BINS).

    >>> calibration_error([[2, 2], [1.2, 1.8], [1, 2]])
    0.1
    """
    count, confidence, hits = np.asarray(bins)
    return round(float(np.abs(confidence - hits).sum() / count.sum()), 6)


def without_seed(learner: str) -> str:
    """The name of a learner without that of a training seed.

    >>> without_seed("cnaps@all#2"), without_seed("logreg")
    ('cnaps@all', 'logreg')
    """
    return learner.partition("#")[0]


def over_tasks(sets: Sequence[Mapping[int, float]]) -> Estimate | None:
    """The mean over data sets, and its interval over the indices of tasks.

    Tasks of one index have like numbers of ways and shots in every data set, since one seed draws them: what is
    hard in one is hard in the others, and intervals of data sets do not average out as independent ones would.
    """
    common = sorted(set.intersection(*(set(values) for values in sets))) if sets else []
    return Estimate.of([float(np.mean([values[i] for values in sets])) for i in common]) if common else None


def fit_calibration(scores: Sequence[Score]) -> Calibration:
    """The (a, b, c) of log T = a + b log(ways) + c log(shots) under which the tasks are most likely, by search."""
    ways = np.log([score.ways for score in scores])
    shots = np.log([max(1.0, score.context / score.ways) for score in scores])
    centre = ways.mean(), shots.mean()  # around these the three numbers hardly depend on each other
    ways, shots = ways - centre[0], shots - centre[1]
    table = np.array([score.nlls for score in scores])  # (tasks, temperatures)
    step = LOG_TEMPERATURES[1] - LOG_TEMPERATURES[0]
    rows = np.arange(len(scores))

    def loss(a: float, b: float, c: float) -> float:
        place = np.clip((a + b * ways + c * shots - LOG_TEMPERATURES[0]) / step, 0, len(LOG_TEMPERATURES) - 1)
        near = np.clip(place.round().astype(int), 1, len(LOG_TEMPERATURES) - 2)
        t = place - near  # a parabola through the three nearest values
        left, middle, right = (table[rows, near + k] for k in (-1, 0, 1))
        return float((middle + t * (right - left) / 2 + t**2 * (right + left - 2 * middle) / 2).mean())

    best = (0.0, 0.0, 0.0)
    for width in (0.2, 0.05, 0.0125):  # walk to the best neighbour until none is better, then with smaller steps
        while True:
            a, b, c = ([x + width * k for k in (-1, 0, 1)] for x in best)
            other = min(product(a, b, c), key=lambda abc: loss(*abc))
            if loss(*other) > loss(*best) - 1e-9:
                break
            best = other
    return best[0] - best[1] * centre[0] - best[2] * centre[1], best[1], best[2]
