"""What the studio knows at any moment: a worker thread that learns whenever the project changed.

Learning has two steps. At once, the statistics of the classes are made anew from stored features, under the FiLM
there is: that takes milliseconds, and predictions follow. Then the model reads all examples again and FiLM is
made for them; every feature follows from it. A further change interrupts the second step.

Images are read at the size that the examples are worth, as everywhere. It changes when most of the examples do;
then all of them are read anew.
"""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from cnaps.errors import CnapsError
from cnaps.maths.statistics import ClassStatistics
from cnaps.parallel import cpu_count, read_ahead
from cnaps.runtime.accuracy import share_of
from cnaps.runtime.engine import Engine
from cnaps.runtime.examples import Examples, choose_size
from cnaps.runtime.review import LeftOut, project, suspects
from cnaps.runtime.suggest import choose
from cnaps.runtime.task import FittedTask
from cnaps.runtime.taskfile import read_task
from cnaps.studio.store import Contents, Project

# By `python -m benchmarks.studio COLLECTIONS`: nineteen in twenty answers without a mark are right.
UNSURE = 0.8  # below this probability the best class is a guess
_CHUNK = 16
_SUGGESTED = 24
_CORRECTED, _FEW = 8, 500  # labels that are corrected in thought, of examples at most
_PAUSE = 0.15  # seconds: changes come in bursts; wait for the end of one
_KEPT = 100_000_000  # bytes of decoded images in memory


@dataclass(frozen=True)
class Insight:
    """Everything derived from the examples, ready for the page; replaced as a whole."""

    predictions: dict[str, dict[str, Any]] = field(default_factory=dict)
    review: dict[str, Any] | None = None
    suggestions: list[str] = field(default_factory=list)
    points: dict[str, list[float]] = field(default_factory=dict)
    held_out: dict[str, Any] | None = None  # how the images that are held out were answered


class Interrupted(Exception):
    """The project changed: what is being computed is out of date."""


class Learner(threading.Thread):
    """Learns in the background; `fitted`, `insight` and `status` are what it has come to."""

    def __init__(self, project: Project, model: Engine) -> None:
        super().__init__(name="engine", daemon=True)
        self.project, self.model = project, model
        self.fitted: FittedTask | None = None
        self.insight = Insight()
        self.status: dict[str, Any] = {"phase": "waiting", "text": ""}
        self._numbers = itertools.count(1)  # several threads count
        self.version = 0
        self._changed, self._stopping, self._behind = threading.Event(), False, True
        self.size = project.files.decoder.size
        self._pixels: dict[str, np.ndarray] = {}  # at this size
        self._features: dict[str, np.ndarray] = {}  # under the FiLM of _base
        self._base: FittedTask | None = None
        self._origin: object = None  # what FiLM was made from
        project.listeners.append(self.wake)
        self._changed.set()

    def wake(self) -> None:
        """The project changed."""
        self.version = next(self._numbers)
        self._changed.set()

    @property
    def settled(self) -> bool:
        """Whether everything follows from the project as it is."""
        return not self._changed.is_set() and not self._behind  # in this order: `run` is behind, then clears

    def stop(self) -> None:
        """End the thread."""
        self._stopping = True
        self._changed.set()
        if self.is_alive():
            self.join()

    def run(self) -> None:
        """Wait for changes and follow them."""
        while True:
            self._changed.wait()
            time.sleep(_PAUSE)
            self._behind = True
            self._changed.clear()
            if self._stopping:
                return
            try:
                self._follow()
            except Interrupted:
                continue
            except CnapsError as error:
                self._say("error", str(error))
            except Exception as error:  # the studio must go on; whatever it was is shown
                self._say("error", f"something went wrong while learning: {error!r}")
            self._behind = False

    def _follow(self) -> None:
        plan = self.project.contents()
        every = (*plan.classes.values(), *plan.held.values(), plan.test, plan.pool)
        self._forget_others({i for ids in every for i in ids})
        if len(plan.names) < 2:
            self.fitted, self.insight = None, Insight()
            self._say("waiting", "")
            return
        started = time.monotonic()
        count = sum(map(len, plan.classes.values()))
        origin = plan.task or frozenset(frozenset(ids) for ids in plan.classes.values())
        again = origin != self._origin
        if self._base is not None:
            self._say("refining" if again else "learning", f"Looking at {count} examples")
            if not again or plan.task is None:
                known = [i for i in plan.pool if i in self._features]
                self._conclude(replace(plan, pool=known) if again else plan, thorough=not again)
        if again:
            if self._base is None:
                self._say("learning", f"Learning from {count} examples")
            self._base, self._features = self._learn(plan)
            self._origin = origin
            self._conclude(replace(plan, pool=[]), thorough=False)
            self._conclude(plan, thorough=True)
        assert self.fitted is not None
        learned = f"Learned from {self.fitted.seen} images, read at {self.size} pixels,"
        self._say("ready", learned, time.monotonic() - started)

    def _learn(self, plan: Contents) -> tuple[FittedTask, dict[str, np.ndarray]]:
        """Read all examples, and their features; or take what an imported task learned, whose FiLM then stays."""
        if plan.task is not None:
            known = read_task(plan.task, self.model)
            self._read_at(known.image_size)
            return known, {}
        own = sorted(plan.classes)
        examples = [i for name in own for i in plan.classes[name]]
        self._read_at(choose_size(self.model, examples, look=self.project.files.look))
        pixels = self._read(examples)
        fitted = FittedTask.learn(self.model, Examples(pixels, [n for n in own for _ in plan.classes[n]]))
        self._check_current()
        return fitted, _features_in(fitted.statistics, [plan.classes[name] for name in own])

    def _statistics(self, plan: Contents, features: np.ndarray, labels: np.ndarray) -> ClassStatistics:
        """Of the classes in the order of their names; `labels` count those with images only."""
        assert self._base is not None
        own = sorted(plan.classes)
        scatter = self.model.head.needs_scatter
        if plan.task is None:
            return ClassStatistics.of(features, labels, len(own), scatter=scatter)
        order = list(plan.learned)
        earlier = self._base.statistics.select(list(plan.learned.values()))
        if own:
            order += [name for name in own if name not in plan.learned]
            place = [order.index(name) for name in own]
            added = ClassStatistics.of(features, labels, len(own), scatter=scatter)
            earlier = earlier.merge(added, place, len(order))
        return earlier.select([order.index(name) for name in plan.names])

    def _conclude(self, plan: Contents, *, thorough: bool) -> None:
        """Predictions and everything else, from features under the present FiLM.

        The review takes longest and follows when there is time to be thorough; until then the last one stands.
        """
        assert self._base is not None
        base, names = self._base, plan.names
        own = sorted(plan.classes)
        examples = [i for name in own for i in plan.classes[name]]
        asked = [*plan.test, *plan.pool]
        features = self._embed([*asked, *examples])
        questions, answers = features[: len(asked)], features[len(asked) :]
        labels = np.array([k for k, name in enumerate(own) for _ in plan.classes[name]], np.int64)
        statistics = self._statistics(plan, answers, labels)
        judged = plan.task is None  # what an imported task has seen is not here to be judged
        seen = len(labels) + (0 if judged else base.seen)
        strangers = base.judge_strangers(answers, labels) if judged else None
        fitted = base.with_classes(names, statistics, seen, strangers)
        probabilities = fitted.probabilities(questions)
        level = fitted.threshold
        strange = fitted.novelty(questions) > (math.inf if level is None else level)
        keys = [self.project.find_class(name) or "" for name in names]
        review = self.insight.review if judged else None
        if judged and (thorough or review is None):
            review = _review(fitted, answers, labels, examples, keys)
        held = self.insight.held_out if plan.held else None
        if plan.held and thorough:
            held = self._test(fitted, plan, keys)
        n = len(plan.test)
        vectors = features.astype(np.float64)
        next_ones = choose(probabilities[n:], vectors[n : len(asked)], _SUGGESTED) if plan.pool else []
        points = project(vectors).round(3).tolist() if len(vectors) else []
        self.fitted = fitted
        self.insight = Insight(
            {i: _prediction(p, keys, bool(s)) for i, p, s in zip(asked, probabilities, strange, strict=True)},
            review,
            [plan.pool[i] for i in next_ones],
            dict(zip([*asked, *examples], points, strict=True)),
            held,
        )
        self.version = next(self._numbers)

    def _test(self, fitted: FittedTask, plan: Contents, keys: Sequence[str]) -> dict[str, Any]:
        """How the images are answered that are held out of each class, all of which are known by now."""
        labels = np.array([plan.names.index(name) for name in plan.held for _ in plan.held[name]], np.int64)
        images = [i for ids in plan.held.values() for i in ids]
        answers = fitted.probabilities(self._embed(images))
        correct = int((answers.argmax(1) == labels).sum())
        return {**share_of(correct, len(labels)), **_mistakes(answers, labels, images, keys)}

    def _embed(self, images: Sequence[str]) -> np.ndarray:
        assert self._base is not None
        missing = [i for i in images if i not in self._features]
        for start in range(0, len(missing), _CHUNK):
            part = missing[start : start + _CHUNK]
            features = self._base.features(self._read(part))
            self._features.update(zip(part, features, strict=True))
            self._check_current()
        width = self._base.statistics.means.shape[1]
        return np.stack([self._features[i] for i in images]) if images else np.empty((0, width), np.float32)

    def _read_at(self, size: int) -> None:
        if size != self.size:
            self._say("learning", f"Reading all images at {size} pixels")
            self.size, self._pixels = size, {}
            self.project.files.read_at(size)

    def _read(self, images: Sequence[str]) -> np.ndarray:
        """Pixels uint8 (n, 3, S, S); as many of them are remembered as there is room for."""
        found = np.empty((len(images), self.size, self.size, 3), np.uint8)
        missing = [i for i in images if i not in self._pixels]
        decoded = read_ahead(
            lambda i: self.project.files.pixels(i, self.size), missing, threads=cpu_count(), depth=2 * _CHUNK
        )
        for row, i in enumerate(images):
            found[row] = self._pixels[i] if i in self._pixels else next(decoded)
            if (len(self._pixels) + 1) * found[row].nbytes <= _KEPT:
                self._pixels.setdefault(i, found[row].copy())
        return found.transpose(0, 3, 1, 2)

    def _forget_others(self, keep: set[str]) -> None:
        for store in (self._pixels, self._features):
            for i in store.keys() - keep:
                del store[i]

    def _check_current(self) -> None:
        if self._changed.is_set():
            raise Interrupted

    def _say(self, phase: str, text: str, seconds: float | None = None) -> None:
        self.status = {"phase": phase, "text": text, "seconds": seconds}
        self.version = next(self._numbers)


def _features_in(statistics: ClassStatistics, images: Sequence[Sequence[str]]) -> dict[str, np.ndarray]:
    """Features of the images of each class, where statistics still hold them one by one: a second pass saved."""
    found: dict[str, np.ndarray] = {}
    for mean, rows, ids in zip(statistics.means, statistics.scatter or (), images, strict=False):
        if len(rows) == len(ids):
            found.update(zip(ids, mean + rows, strict=True))
    return found


def _prediction(probabilities: np.ndarray, keys: Sequence[str], stranger: bool) -> dict[str, Any]:
    order = np.argsort(-probabilities, kind="stable")[:4]
    best = float(probabilities[order[0]])
    return {
        # nothing is ever shown as certain
        "top": [[keys[k], round(min(max(float(probabilities[k]), 1e-4), 1 - 1e-4), 4)] for k in order],
        "doubt": "none" if stranger else "unsure" if best < UNSURE else "",
    }


def _review(
    fitted: FittedTask, features: np.ndarray, labels: np.ndarray, examples: Sequence[str], keys: Sequence[str]
) -> dict[str, Any]:
    fit = fitted.left_out(features, labels)
    judged, worst = LeftOut.of(fit, labels), _suspects(fitted, fit, features, labels)
    found = [
        {"id": examples[i], "better": keys[k], "fit": float(fit[i, labels[i]]), "better_fit": float(fit[i, k])}
        for i, k in worst
    ]
    return {**asdict(judged), "suspects": found, **_mistakes(fit, labels, examples, keys)}


def _suspects(
    fitted: FittedTask, fit: np.ndarray, features: np.ndarray, labels: np.ndarray
) -> list[tuple[int, int]]:
    """Labels that look wrong, without those that another wrong one makes look so.

    The worst is corrected and the others are judged again, a few times; of large sets a wrong one spoils little.
    """
    found: list[tuple[int, int]] = []
    corrected = labels.copy()
    for _ in range(_CORRECTED if len(labels) <= _FEW else 0):
        left = [(i, k) for i, k in suspects(fit, corrected) if i not in dict(found)]
        if not left or (corrected == corrected[left[0][0]]).sum() < 3:
            return found + left
        found.append(left[0])
        corrected[left[0][0]] = left[0][1]
        fit = fitted.left_out(features, corrected)
    return found + [(i, k) for i, k in suspects(fit, corrected) if i not in dict(found)]


def _mistakes(fit: np.ndarray, labels: np.ndarray, examples: Sequence[str], keys: Sequence[str]) -> dict[str, Any]:
    """What was taken for what when it was left out, and the surest of the wrong answers."""
    judged = np.flatnonzero(~np.isnan(fit).any(1))
    best = fit[judged].argmax(1)
    pairs = Counter(zip(labels[judged].tolist(), best.tolist(), strict=True))
    wrong = [(float(fit[i, k]), int(i), int(k)) for i, k in zip(judged, best, strict=True) if k != labels[i]]
    return {
        "confusion": [[keys[truth], keys[answer], count] for (truth, answer), count in pairs.items()],
        "mistakes": [
            {"id": examples[i], "answer": keys[k], "probability": p}
            for p, i, k in sorted(wrong, reverse=True)[:24]
        ],
    }
