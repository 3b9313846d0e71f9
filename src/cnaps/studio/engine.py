"""What the studio knows at any moment: a worker thread that learns whenever the project changed.

Learning has two steps. At once, the statistics of the classes are made anew from stored features, under the FiLM
there is: that takes milliseconds, and predictions follow. Then the model reads all examples again and FiLM is
made for them; every feature follows from it. A further change interrupts the second step.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cnaps.active import choose
from cnaps.errors import CnapsError
from cnaps.nn.adapted import Adapted
from cnaps.nn.model import CNAPs
from cnaps.nn.statistics import ClassStatistics
from cnaps.recogniser import Examples, Recogniser
from cnaps.review import LeftOut, Outsiders, leave_one_out, project, suspects
from cnaps.studio.store import Project

UNSURE = 0.6  # below this probability the best class is a guess
_CHUNK = 32
_SUGGESTED = 24
_KEPT = 4_000  # decoded images in memory


@dataclass(frozen=True)
class Insight:
    """Everything derived from the examples, ready for the page; replaced as a whole."""

    predictions: dict[str, dict[str, Any]] = field(default_factory=dict)
    review: dict[str, Any] | None = None
    suggestions: list[str] = field(default_factory=list)
    points: dict[str, list[float]] = field(default_factory=dict)


class Interrupted(Exception):
    """The project changed: what is being computed is out of date."""


class Engine(threading.Thread):
    """Learns in the background; `recogniser`, `insight` and `status` are what it has come to."""

    def __init__(self, project: Project, model: CNAPs, source: str, pause: float = 0.15) -> None:
        super().__init__(name="engine", daemon=True)
        self.project, self.model, self.source = project, model, source
        self.recogniser: Recogniser | None = None
        self.insight = Insight()
        self.status: dict[str, Any] = {"phase": "waiting", "text": ""}
        self.version = 0
        self._pause = pause  # changes come in bursts; wait for the end of one
        self._changed, self._stopping = threading.Event(), False
        self._pixels: dict[str, np.ndarray] = {}
        self._features: dict[str, Tensor] = {}  # under the FiLM of _base
        self._base: Adapted | None = None
        self._learned_from: frozenset[frozenset[str]] = frozenset()
        project.listeners.append(self.wake)
        self._changed.set()

    def wake(self) -> None:
        """The project changed."""
        self.version += 1
        self._changed.set()

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
            if self._stopping:
                return
            time.sleep(self._pause)
            self._changed.clear()
            try:
                self._follow()
            except Interrupted:
                continue
            except CnapsError as error:
                self._say("error", str(error))
            except Exception as error:  # the studio must go on; whatever it was is shown
                self._say("error", f"something went wrong while learning: {error!r}")

    @torch.no_grad()
    def _follow(self) -> None:
        classes, test, pool = self.project.plan()
        self._forget_others({i for ids in (*classes.values(), test, pool) for i in ids})
        if len(classes) < 2:
            self.recogniser, self.insight = None, Insight()
            self._say("waiting", "")
            return
        started = time.monotonic()
        count = sum(map(len, classes.values()))
        partition = frozenset(frozenset(ids) for ids in classes.values())
        again = partition != self._learned_from
        if self._base is not None:
            self._say("refining" if again else "learning", f"Looking at {count} examples")
            self._conclude(classes, test, pool if not again else [i for i in pool if i in self._features])
        if again:
            if self._base is None:
                self._say("learning", f"Learning from {count} examples")
            names = [name for name, ids in classes.items() for _ in ids]
            pixels = self._read([i for ids in classes.values() for i in ids])
            recogniser = Recogniser.learn(self.model, Examples(pixels, list(names)), source=self.source)
            self._check_current()
            self.recogniser, self._base, self._learned_from = recogniser, recogniser.adapted, partition
            self._features.clear()
            self._conclude(classes, test, [])
            self._conclude(classes, test, pool)
        self._say("ready", f"Learned from {count} images", time.monotonic() - started)

    def _conclude(self, classes: dict[str, list[str]], test: list[str], pool: list[str]) -> None:
        """Predictions and everything else, from features under the present FiLM."""
        assert self._base is not None
        names = sorted(classes)
        examples = [i for name in names for i in classes[name]]
        features = self._embed([*test, *examples, *pool])
        n, m = len(test), len(test) + len(examples)
        labels = torch.tensor([k for k, name in enumerate(names) for _ in classes[name]])
        statistics = ClassStatistics.of(features[n:m], labels, len(names), scatter=self.model.head.needs_scatter)
        base = self._base
        adapted = Adapted(
            self.model, base.film, torch.arange(len(names)), statistics, base.task_embedding, len(labels)
        )
        recogniser = Recogniser(adapted, names, self.model.image_size, self.source)
        vectors = features.double().cpu().numpy()
        outsiders = Outsiders.of(vectors[n:m], labels.numpy())
        rows = np.concatenate([np.arange(n), np.arange(m, len(vectors))])
        probabilities = recogniser.probabilities(features[rows]) if len(rows) else np.empty((0, len(names)))
        strangers = outsiders(vectors[rows]) if outsiders and len(rows) else np.zeros(len(rows), bool)
        keys = [self.project.find_class(name) or "" for name in names]
        predictions = {
            i: _prediction(p, keys, bool(strange))
            for i, p, strange in zip([*test, *pool], probabilities, strangers, strict=True)
        }
        next_ones = choose(probabilities[n:], vectors[m:], _SUGGESTED) if pool else []
        points = project(vectors)
        self.recogniser = recogniser
        self.insight = Insight(
            predictions,
            _review(recogniser, features[n:m], labels, examples, keys),
            [pool[i] for i in next_ones],
            {i: [round(float(v), 3) for v in xy] for i, xy in zip([*test, *examples, *pool], points, strict=True)},
        )
        self.version += 1

    def _embed(self, images: Sequence[str]) -> Tensor:
        assert self._base is not None
        missing = [i for i in images if i not in self._features]
        for start in range(0, len(missing), _CHUNK):
            part = missing[start : start + _CHUNK]
            features = self._base.features(self.model.preprocess(self._read(part)))
            self._features.update(zip(part, features, strict=True))
            self._check_current()
        return torch.stack([self._features[i] for i in images])

    def _read(self, images: Sequence[str]) -> Tensor:
        for i in images:
            if i not in self._pixels:
                if len(self._pixels) >= _KEPT:
                    self._pixels.pop(next(iter(self._pixels)))
                self._pixels[i] = self.project.pixels(i)
        return torch.from_numpy(np.stack([self._pixels[i] for i in images])).permute(0, 3, 1, 2)

    def _forget_others(self, keep: set[str]) -> None:
        for store in (self._pixels, self._features):
            for i in store.keys() - keep:
                del store[i]

    def _check_current(self) -> None:
        if self._changed.is_set():
            raise Interrupted

    def _say(self, phase: str, text: str, seconds: float | None = None) -> None:
        self.status = {"phase": phase, "text": text, "seconds": seconds}
        self.version += 1


def _prediction(probabilities: np.ndarray, keys: Sequence[str], stranger: bool) -> dict[str, Any]:
    order = np.argsort(-probabilities, kind="stable")[:4]
    best = float(probabilities[order[0]])
    return {
        "top": [[keys[k], round(float(probabilities[k]), 4)] for k in order],
        "doubt": "none" if stranger else "unsure" if best < UNSURE else "",
    }


def _review(
    recogniser: Recogniser, features: Tensor, labels: Tensor, examples: Sequence[str], keys: Sequence[str]
) -> dict[str, Any]:
    fit = leave_one_out(recogniser.adapted.model.head, features, labels, recogniser.temperature)
    left_out = LeftOut.of(fit, labels.numpy())
    return {
        "correct": left_out.correct,
        "total": left_out.total,
        "low": left_out.low,
        "high": left_out.high,
        "enough": left_out.enough,
        "suspects": [
            {
                "id": examples[i],
                "better": keys[k],
                "fit": round(float(fit[i, labels[i]]), 4),
                "better_fit": round(float(fit[i, k]), 4),
            }
            for i, k in suspects(fit, labels.numpy())
        ],
    }
