"""A fitted task: the classes of a task by name, and everything that was learned of them.

From images of any kind to probabilities of named classes. `FewShotClassifier` gives this the shape of a
scikit-learn estimator; the command line, the studio and the server use it as it is.
"""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from cnaps.errors import InputError
from cnaps.images.inputs import Images, OnError, read_pixels, stream
from cnaps.maths.calibration import own_calibration, temperature
from cnaps.maths.heads import Classifier, Head, RidgeHead
from cnaps.maths.left_out import left_out_logits
from cnaps.maths.statistics import ClassStatistics
from cnaps.runtime.engine import Engine, Network, Support
from cnaps.runtime.examples import Examples, Name, check_alike
from cnaps.runtime.novelty import STRANGE, class_ease, none_level, novelty, strange_level, strangeness

UPDATES = {"freeze": "freeze", "recompute": "recompute", "fixed": "freeze", "paper": "recompute"}  # and old names
_UNSOUND = "this task gives no probabilities: its numbers, or those of its model, are out of all range"
_JUDGED, _JUDGED_CLASSES = 150, 100  # about as many examples are left out in turn; of more classes, none
_QUICK = 400  # examples that are left out in turn in less than a second
_PICKLED = 600_000  # bytes of scatter that are pickled exactly; more goes as into a task file
_KEPT = 100  # features of examples of a class that a task remembers, to tell what is unlike them


@dataclass(frozen=True)
class Fits:
    """What examples are given for their own class when they are left out (n,), and which class that is (n,)."""

    values: np.ndarray
    labels: np.ndarray


@dataclass(frozen=True)
class Judged:
    """Some examples as features (n, d) and labels (n,), and what the others of them say of each: logits (n, C)."""

    features: np.ndarray
    labels: np.ndarray
    logits: np.ndarray


@dataclass(frozen=True, eq=False)
class FittedTask:
    """FiLM and class statistics of one task, the names of its classes, and the engine they belong to.

    `names` are sorted and stand in the order of the columns of `probabilities`. Nothing changes a fitted task:
    learning on gives another.
    """

    engine: Engine
    names: list[Name]
    film: np.ndarray  # (F,) gamma and beta, site by site
    statistics: ClassStatistics
    embedding: np.ndarray  # (E,) z_G, the mean over all examples so far
    seen: int  # examples so far
    image_size: int
    threshold: float | None = None  # the novelty beyond which an image is none of the classes, where it is known
    calibration: float = 0.0  # what the first examples, left out in turn, said of log T beside the model's notes
    prior: np.ndarray | None = None  # (C,) logarithms of class weights; None: every class counts alike
    fits: Fits | None = None  # how examples fit when left out; None: not yet looked at
    ease: np.ndarray | None = None  # (C,) see `class_ease`; None: novelty is the distance to the nearest class
    # features (n, d) of the examples and the class of each, at most `_KEPT` of a class, the latest: no file and no
    # pickle holds them. None after those, and where FiLM has changed since
    shown: tuple[np.ndarray, list[Name]] | None = None

    @classmethod
    def learn(cls, engine: Engine, examples: Examples, *, flip: bool = False) -> FittedTask:
        """Adapt to examples; `flip` adds their mirror images."""
        names = sorted(set(examples.names))
        size = engine.check_size(examples.pixels.shape[-1])
        support = _support(examples, names, flip)
        made = engine.adapt(support)
        with _sound():
            statistics = _statistics(engine, made.features, support, len(names))
        task = cls(engine, names, made.film, statistics, made.embedding, len(support.labels), size)
        plain = slice(len(examples.names))  # a mirror image is no other example
        features, labels = made.features[plain], support.labels[plain]
        judged = judged_by_others(engine.head, features, labels)
        task = replace(task, calibration=task._own_calibration(judged))
        return task._running(made.network)._judged_by(features, examples.names, judged)

    def update(self, examples: Examples, *, mode: str = "freeze", flip: bool = False) -> FittedTask:
        """After more examples, of known classes or new ones; earlier images are not needed.

        `freeze` keeps FiLM as the first data made it: the result is that of seeing everything at once with this
        FiLM, in any order. `recompute` (the paper's) makes FiLM anew from the running task embedding and keeps
        the means of earlier examples as they were.
        """
        if mode not in UPDATES:
            raise InputError(f"no update mode named {mode!r}; there are: freeze, recompute")
        check_alike([*self.names, *examples.names])
        here = sorted(set(examples.names))
        support = _support(examples, here, flip)
        if UPDATES[mode] == "recompute":
            made = self.engine.adapt(support, (self.embedding, self.seen))
            film, features, embedding, network = made.film, made.features, made.embedding, made.network
        else:
            film, network, features = self.film, self._network, self._network(support.pixels)
            share = len(support.labels) / (len(support.labels) + self.seen)
            embedding = self.embedding + share * (self.engine.embedding(support.pixels) - self.embedding)
        order = [*self.names, *(name for name in here if name not in self.names)]
        added = _statistics(self.engine, features, support, len(here))
        merged = self.statistics.merge(added, [order.index(name) for name in here], len(order))
        names = sorted(order)
        filmed = replace(self, film=film, embedding=embedding)._running(network)
        places = [order.index(name) for name in names]
        learned = filmed.with_classes(names, merged.select(places), self.seen + len(support.labels))
        if self.shown is None or network is not self._network:  # earlier features are of other FiLM
            return learned
        earlier, given = self.shown
        plain = features[: len(examples.names)]
        return learned._judged_by(np.concatenate([earlier, plain]), [*given, *examples.names])

    def forget(self, names: Iterable[Name]) -> FittedTask:
        """Without some classes; FiLM and what it was made from stay."""
        gone = list(names)
        unknown = [name for name in gone if name not in self.names]
        if unknown:
            raise InputError(f"cannot forget {unknown[0]!r}: the classes are {_some(self.names)}")
        keep = [i for i, name in enumerate(self.names) if name not in gone]
        if not keep:
            raise InputError("cannot forget every class: at least one must remain")
        left = [self.names[i] for i in keep]
        changed = self.with_classes(left, self.statistics.select(keep), self.seen)
        if self.shown is None:
            return changed
        features, given = self.shown
        staying = [i for i, name in enumerate(given) if name in left]
        return changed._judged_by(features[staying], [given[i] for i in staying])

    def refit(self, features: np.ndarray, labels: np.ndarray) -> FittedTask:
        """The same classes and FiLM, learned from nothing but these features (n, d) and labels of 0..C-1 (n,)."""
        ways, scatter = len(self.names), self.engine.head.needs_scatter
        statistics = ClassStatistics.of(features, labels, ways, scatter=scatter)
        return self.with_classes(self.names, statistics, len(labels))

    def with_classes(
        self,
        names: Sequence[Name],
        statistics: ClassStatistics,
        seen: int,
        strangers: tuple[float | None, np.ndarray | None] | None = None,
    ) -> FittedTask:
        """Other classes under the same FiLM; `strangers` is what `judge_strangers` says of their examples."""
        threshold, ease = strangers or (None, self._by_name(self.ease, names))
        changes = {"names": list(names), "statistics": statistics, "seen": seen, "threshold": threshold}
        return self._with(**changes, prior=self._by_name(self.prior, names), fits=None, shown=None, ease=ease)

    def weighed(self, weights: Mapping[Name, float]) -> FittedTask:
        """With classes that count more or less than others: the odds of a class of weight 2 are doubled."""
        unknown = [name for name in weights if name not in self.names]
        if unknown:
            raise InputError(f"a weight for the class {unknown[0]!r}: the classes are {_some(self.names)}")
        found = np.array([weights.get(name, 1.0) for name in self.names], np.float64)
        if not ((found > 0) & np.isfinite(found)).all():
            raise InputError("the weight of a class is a number above 0")
        prior = None if (found == 1).all() else np.log(found)
        return self._with(prior=prior, fits=None)

    @property
    def temperature(self) -> float:
        """What logits are divided by, so that probabilities mean what they say; see `maths.calibration`."""
        shots = float(np.mean(self.statistics.counts))
        return temperature(self.engine.notes, len(self.names), shots) * math.exp(self.calibration)

    def features(self, pixels: np.ndarray) -> np.ndarray:
        """Adapted features (n, d) of pixels uint8 (n, 3, S, S); they hold for as long as FiLM does."""
        return self._network(pixels)

    def probabilities(self, features: np.ndarray) -> np.ndarray:
        """Class probabilities (n, C) of features (n, d)."""
        return softmax(self.logits(features))

    def logits(self, features: np.ndarray) -> np.ndarray:
        """Logarithms of probabilities (n, C) of features (n, d), up to a number for each row."""
        if len(self.names) < 2:
            raise InputError(f"only the class {self.names[0]!r} is known: at least two classes are needed")
        with _sound():
            found = self._calibrated(self.classifier(features))
        if not np.isfinite(found).all():
            raise InputError(_UNSOUND)
        return found

    def _calibrated(self, logits: np.ndarray) -> np.ndarray:
        exact = logits.astype(np.float64) / self.temperature
        return exact if self.prior is None else exact + self.prior

    @cached_property
    def classifier(self) -> Classifier:
        """From features (n, d) to logits (n, C)."""
        return self.engine.head.classifier(self.statistics)

    def left_out(self, features: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Class probabilities (N, C) of each example by a classifier that has not seen it; nothing is refitted.

        Rows of NaN stand for examples that are alone in their class: without them the class would not exist.
        """
        return softmax(self._calibrated(left_out_logits(self.engine.head, features, labels)))

    def _own_calibration(self, judged: Judged | None) -> float:
        if judged is None:
            return 0.0
        ways = len(self.names)
        said = temperature(self.engine.notes, ways, len(judged.labels) / ways)
        return own_calibration(judged.logits / said, judged.labels)

    def novelty(self, features: np.ndarray) -> np.ndarray:
        """How unlike all classes features (n, d) are, 0..2; see `strangeness`, and `novelty` for other heads."""
        if self.ease is None or len(self.names) < 2:
            means = self.statistics.means.astype(features.dtype)
            return novelty(features, means, self.engine.head.emphasis(features))
        with _sound():
            return strangeness(self.classifier(features), features, self.ease, self.engine.head.groups[-1])

    def judge_strangers(
        self, features: np.ndarray, labels: np.ndarray, share: float = STRANGE, judged: Judged | None = None
    ) -> tuple[float | None, np.ndarray | None]:
        """`threshold` and `ease` after examples with these features (n, d) and labels of 0..C-1 (n,).

        `judged` are some of them, where they have been left out in turn already.
        """
        head = self.engine.head
        if isinstance(head, RidgeHead):
            judged = judged_by_others(head, features, labels) if judged is None else judged
            if judged is not None:
                ease = class_ease(judged.logits, judged.labels)
                return strange_level(judged.logits, judged.features, ease, head.groups[-1], share), ease
        return none_level(features, labels, head.emphasis(features), share), None

    def none_level(self, features: np.ndarray, labels: np.ndarray, share: float = STRANGE) -> float | None:
        """What `threshold` is after examples with these features (n, d) and labels of 0..C-1 (n,)."""
        return self.judge_strangers(features, labels, share)[0]

    def none_beyond(self, lost: float = 1 - STRANGE) -> float:
        """The novelty beyond which an image is none of the classes, if so large a share of their own may be lost.

        By the examples, each seen against the others of its class.
        """
        if not 0 < lost < 1:
            raise InputError(f"the share of images that may be lost is between 0 and 1, such as 0.05, not {lost}")
        level = self.threshold
        if self.shown is not None and lost != 1 - STRANGE:
            features, names = self.shown
            level = self.none_level(features, self._places(names), 1 - lost)
        elif lost != 1 - STRANGE:
            raise InputError(
                "a task file knows one level for none of these: take none_of_these=True, or fit again"
            )
        if level is None:
            raise InputError(
                "what is none of these can be told with four examples at least, each beside another of its class, "
                "and not after learning on from a task file: add some, or fit again"
            )
        return level

    @cached_property
    def own_fits(self) -> Fits | None:
        """What `left_out` gives each example for its own class; None where examples are not here any more."""
        if self.fits is not None or self.shown is None:
            return self.fits
        features, names = self.shown
        labels = self._places(names)
        given = self.left_out(features, labels)[np.arange(len(labels)), labels]
        known = ~np.isnan(given)
        return Fits(given[known], labels[known])

    def set_levels(self, coverage: float) -> np.ndarray:
        """The probability (C,) from which on a class belongs to a prediction set, by conformal prediction.

        Examples, each left out in turn, stand for a calibration set in which every class counts alike (or by its
        weight), however many examples it has: the true class of a new image is at least so probable as often as
        `coverage` says. 0, which lets a class into every set, where examples are too few to say.
        """
        if not 0 < coverage < 1:
            raise InputError(f"coverage is a share between 0 and 1, such as 0.9, not {coverage}")
        fits = self.own_fits
        if fits is None:
            raise InputError("the examples are not here, and the task file does not say how they fit: fit again")
        odds = np.ones(len(self.names)) if self.prior is None else np.exp(self.prior)
        share = odds / np.maximum(np.bincount(fits.labels, minlength=len(self.names)), 1)  # of one example
        falling = np.argsort(-fits.values)
        held = np.cumsum(share[fits.labels[falling]])  # by a level that lets so many examples in
        # the new image counts as one more example of the class in question, and may fit worst of all
        wanted = coverage * (share[fits.labels].sum() + share)
        return np.append(fits.values[falling], 0.0)[np.searchsorted(held, wanted - 1e-9)]

    def embed(
        self, images: Images, on_error: OnError | None = None, read: Callable[[Any, int], np.ndarray] = read_pixels
    ) -> Iterator[tuple[list[int], np.ndarray, np.ndarray]]:
        """Batches of positions, features (n, d) and probabilities (n, C), in order, at constant memory."""
        for where, pixels in stream(images, self.image_size, on_error=on_error, read=read):
            features = self.features(pixels)
            yield where, features, self.probabilities(features)

    def predict(self, images: Images, on_error: OnError | None = None) -> Iterator[tuple[list[int], np.ndarray]]:
        """Batches of positions and probabilities (n, C), in order, at constant memory; see `stream`."""
        for where, _, probabilities in self.embed(images, on_error):
            yield where, probabilities

    def compact(self) -> FittedTask:
        """As it goes to files and other processes: with what follows from examples, if they are not too many."""
        quick = self.shown is not None and len(self.shown[1]) <= _QUICK
        return replace(self, fits=self.own_fits) if quick else self

    def __getstate__(self) -> dict[str, Any]:
        from cnaps.runtime.taskfile import pack_scatter  # which reads tasks

        state = vars(replace(self.compact(), shown=None))
        statistics = self.statistics
        if statistics.scatter is not None and sum(rows.nbytes for rows in statistics.scatter) > _PICKLED:
            state["statistics"] = replace(statistics, scatter=None)
            state["packed"] = pack_scatter(self.engine.head, statistics)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        from cnaps.runtime.taskfile import unpack_scatter

        packed = state.pop("packed", None)
        if packed is not None:
            state["statistics"] = replace(state["statistics"], scatter=unpack_scatter(packed))
        self.__dict__.update(state)

    @cached_property
    def _network(self) -> Network:
        return self.engine.network(self.film, self.image_size)

    def _judged_by(self, features: np.ndarray, names: Sequence[Name], judged: Judged | None = None) -> FittedTask:
        """With a threshold by its examples, which are kept as features."""
        count: Counter[Name] = Counter()
        keep = []
        for i in reversed(range(len(names))):
            count[names[i]] += 1
            if count[names[i]] <= _KEPT:
                keep.append(i)
        keep.reverse()
        features, given = features[keep], [names[i] for i in keep]
        level, ease = self.judge_strangers(features, self._places(given), judged=judged)
        return self._with(threshold=level, ease=ease, shown=(features, given))

    def _places(self, names: Sequence[Name]) -> np.ndarray:
        place = {name: i for i, name in enumerate(self.names)}
        return np.array([place[name] for name in names], np.int64)

    def _by_name(self, values: np.ndarray | None, names: Sequence[Name]) -> np.ndarray | None:
        """What each class has (C,), of other classes: 0 for those that are new."""
        if values is None:
            return None
        known = dict(zip(self.names, values, strict=True))
        return np.array([known.get(name, 0.0) for name in names])

    def _with(self, **changes: Any) -> FittedTask:
        """Another task under the same FiLM, whose network it shares."""
        return replace(self, **changes)._running(self._network)

    def _running(self, network: Network) -> FittedTask:
        """This task, with the network of its FiLM that is there already."""
        self.__dict__["_network"] = network
        return self


def judged_by_others(head: Head, features: np.ndarray, labels: np.ndarray) -> Judged | None:
    """About as many examples as there is time to leave out in turn, the first ones of each class."""
    ways = int(labels.max(initial=0)) + 1
    if not 1 < ways <= _JUDGED_CLASSES:
        return None
    counts = np.cumsum(labels == np.arange(ways)[:, None], axis=1)  # (C, N)
    turn = counts[labels, np.arange(len(labels))]  # the how-manieth of its class an example is
    some = np.sort(np.argsort(turn, kind="stable")[: max(_JUDGED, 2 * ways)])
    with _sound():
        return Judged(features[some], labels[some], left_out_logits(head, features[some], labels[some]))


def _statistics(engine: Engine, features: np.ndarray, support: Support, ways: int) -> ClassStatistics:
    scatter = engine.head.needs_scatter
    return ClassStatistics.of(features, support.labels, ways, scatter=scatter, weights=support.weights)


def softmax(logits: np.ndarray) -> np.ndarray:
    """Rows of probabilities, in double precision.

    >>> softmax(np.zeros((1, 4))).tolist()
    [[0.25, 0.25, 0.25, 0.25]]
    """
    exact = logits.astype(np.float64)
    rising = np.exp(exact - exact.max(1, keepdims=True, initial=-np.inf))
    return rising / rising.sum(1, keepdims=True)


@contextlib.contextmanager
def _sound() -> Iterator[None]:
    try:
        yield
    except np.linalg.LinAlgError as error:
        raise InputError(_UNSOUND) from error


def _support(examples: Examples, names: list[Name], flip: bool) -> Support:
    place = {name: i for i, name in enumerate(names)}
    labels = np.array([place[name] for name in examples.names], np.int64)
    pixels, weights = examples.pixels, examples.weights
    if flip:
        pixels, labels = np.concatenate([pixels, pixels[..., ::-1]]), np.tile(labels, 2)
        weights = None if weights is None else np.tile(weights, 2)
    return Support(pixels, labels, len(names), weights)


def _some(names: Sequence[Name]) -> str:
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return ", ".join(map(repr, names[:8])) + more
