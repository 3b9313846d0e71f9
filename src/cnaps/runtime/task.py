"""A fitted task: the classes of a task by name, and everything that was learned of them.

From images of any kind to probabilities of named classes. `FewShotClassifier` gives this the shape of a
scikit-learn estimator; the command line, the studio and the server use it as it is.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

from cnaps import values
from cnaps.errors import InputError
from cnaps.images.inputs import Images, OnError, as_images, look_at, stream
from cnaps.images.sizes import Look, auto_size
from cnaps.maths.calibration import own_calibration, temperature
from cnaps.maths.heads import Classifier
from cnaps.maths.left_out import left_out_logits
from cnaps.maths.statistics import ClassStatistics
from cnaps.runtime.engine import Engine, Network, Support
from cnaps.runtime.novelty import STRANGE, none_level, novelty

Name: TypeAlias = str | int
UPDATES = {"freeze": "freeze", "recompute": "recompute", "fixed": "freeze", "paper": "recompute"}  # and old names
_UNSOUND = "this task gives no probabilities: its numbers, or those of its model, are out of all range"


_LOOKED_AT = 16  # examples that decide about the size
_JUDGED, _JUDGED_CLASSES = 150, 100  # about as many examples are left out in turn; of more classes, none


def choose_size(
    engine: Engine,
    images: Sequence[Any],
    wanted: int | str = "auto",
    look: Callable[[Any], Look | None] = look_at,
) -> int:
    """The size at which a task's images are read: the one wanted, or by `auto` what its examples are worth.

    A model that was trained at one size is used at that size unless another is asked for.
    """
    if isinstance(wanted, int) and not isinstance(wanted, bool):
        return engine.check_size(wanted)
    if wanted != "auto":
        raise InputError(f"the size of images is 'auto' or a number of pixels such as 160, not {wanted!r}")
    sizes = engine.notes.get("image_sizes")
    if not sizes:
        return engine.image_size
    step = max(1, len(images) // _LOOKED_AT)
    looks = [found for image in images[::step] if (found := look(image)) is not None]
    return min(sizes, key=lambda size: abs(size - auto_size(looks)))


@dataclass(frozen=True)
class Examples:
    """Labelled images, decoded: pixels uint8 (N, 3, S, S) and the name of the class of each."""

    pixels: np.ndarray
    names: list[Name]

    @classmethod
    def read(
        cls, images: Images, labels: Sequence[Any] | np.ndarray, size: int, on_error: OnError | None = None
    ) -> Examples:
        """Decode labelled images; without `on_error` a broken one is raised, with it the rest is kept."""
        names = check_names(labels)
        sources = as_images(images)
        images = sources if isinstance(sources, Sized) else list(sources)
        if len(images) != len(names):
            raise InputError(f"{len(images)} images but {len(names)} labels: give one label for each image")
        where: list[int] = []
        batches = [np.empty((0, 3, size, size), np.uint8)]
        for indices, pixels in stream(images, size, on_error=on_error):
            where += indices
            batches.append(pixels)
        return cls(np.concatenate(batches), [names[i] for i in where])

    def of(self, names: Iterable[Name]) -> Examples:
        """Those of some classes."""
        keep = [i for i, name in enumerate(self.names) if name in set(names)]
        return Examples(self.pixels[keep], [self.names[i] for i in keep])

    def concerns(self, titles: Sequence[str] | None = None) -> list[str]:
        """What may be wrong with the labels, a sentence each; `titles` name the images."""
        titles = titles or [f"image {i}" for i in range(len(self.names))]
        found = [
            f"classes {' and '.join(map(repr, twins))} differ only by case: are they one class?"
            for twins in _case_twins(self.names)
        ]
        first: dict[bytes, int] = {}
        for i, image in enumerate(self.pixels):
            j = first.setdefault(hashlib.blake2b(image.tobytes(), digest_size=16).digest(), i)
            if self.names[i] != self.names[j]:
                found.append(
                    f"{titles[j]} and {titles[i]} are the same image, but one is {self.names[j]!r} "
                    f"and the other {self.names[i]!r}"
                )
        return found


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

    @classmethod
    def learn(cls, engine: Engine, examples: Examples, *, flip: bool = False) -> FittedTask:
        """Adapt to examples; `flip` adds their mirror images."""
        names = sorted(set(examples.names))
        size = engine.check_size(examples.pixels.shape[-1])
        support = _support(examples, names, flip)
        made = engine.adapt(support)
        with _sound():
            statistics = _statistics(engine, made.features, support.labels, len(names))
        task = cls(engine, names, made.film, statistics, made.embedding, len(support.labels), size)
        plain = slice(len(examples.names))  # a mirror image is no other example
        features, labels = made.features[plain], support.labels[plain]
        own = task._own_calibration(features, labels)
        return replace(task, threshold=task.none_level(features, labels), calibration=own)._running(made.network)

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
        added = _statistics(self.engine, features, support.labels, len(here))
        merged = self.statistics.merge(added, [order.index(name) for name in here], len(order))
        names = sorted(order)
        return FittedTask(
            self.engine,
            names,
            film,
            merged.select([order.index(name) for name in names]),
            embedding,
            self.seen + len(support.labels),
            self.image_size,
            calibration=self.calibration,
        )._running(network)

    def forget(self, names: Iterable[Name]) -> FittedTask:
        """Without some classes; FiLM and what it was made from stay."""
        gone = list(names)
        unknown = [name for name in gone if name not in self.names]
        if unknown:
            raise InputError(f"cannot forget {unknown[0]!r}: the classes are {_some(self.names)}")
        keep = [i for i, name in enumerate(self.names) if name not in gone]
        if not keep:
            raise InputError("cannot forget every class: at least one must remain")
        return self.with_classes([self.names[i] for i in keep], self.statistics.select(keep), self.seen)

    def refit(self, features: np.ndarray, labels: np.ndarray) -> FittedTask:
        """The same classes and FiLM, learned from nothing but these features (n, d) and labels of 0..C-1 (n,)."""
        statistics = _statistics(self.engine, features, labels, len(self.names))
        return self.with_classes(self.names, statistics, len(labels))

    def with_classes(
        self, names: Sequence[Name], statistics: ClassStatistics, seen: int, threshold: float | None = None
    ) -> FittedTask:
        """Other classes under the same FiLM."""
        changed = replace(self, names=list(names), statistics=statistics, seen=seen, threshold=threshold)
        return changed._running(self._network)

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
        if len(self.names) < 2:
            raise InputError(f"only the class {self.names[0]!r} is known: at least two classes are needed")
        with _sound():
            found = softmax(self.classifier(features) / self.temperature)
        if not np.isfinite(found).all():
            raise InputError(_UNSOUND)
        return found

    @cached_property
    def classifier(self) -> Classifier:
        """From features (n, d) to logits (n, C)."""
        return self.engine.head.classifier(self.statistics)

    def left_out(self, features: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Class probabilities (N, C) of each example by a classifier that has not seen it; nothing is refitted.

        Rows of NaN stand for examples that are alone in their class: without them the class would not exist.
        """
        return softmax(left_out_logits(self.engine.head, features, labels) / self.temperature)

    def _own_calibration(self, features: np.ndarray, labels: np.ndarray) -> float:
        if not 1 < len(self.names) <= _JUDGED_CLASSES:
            return 0.0
        counts = np.cumsum(labels == np.arange(len(self.names))[:, None], axis=1)  # (C, N)
        turn = counts[labels, np.arange(len(labels))]  # the how-manieth of its class an example is
        some = np.sort(np.argsort(turn, kind="stable")[: max(_JUDGED, 2 * len(self.names))])
        with _sound():
            logits = left_out_logits(self.engine.head, features[some], labels[some])
        shots = len(some) / len(self.names)
        return own_calibration(logits / temperature(self.engine.notes, len(self.names), shots), labels[some])

    def novelty(self, features: np.ndarray) -> np.ndarray:
        """How unlike all classes features (n, d) are, 0..2; see `novelty`."""
        means = self.statistics.means.astype(features.dtype)
        return novelty(features, means, self.engine.head.emphasis(features))

    def none_level(self, features: np.ndarray, labels: np.ndarray, share: float = STRANGE) -> float | None:
        """What `threshold` is after examples with these features (n, d) and labels (n,); see `none_level`."""
        return none_level(features, labels, self.engine.head.emphasis(features), share)

    def embed(
        self, images: Images, on_error: OnError | None = None
    ) -> Iterator[tuple[list[int], np.ndarray, np.ndarray]]:
        """Batches of positions, features (n, d) and probabilities (n, C), in order, at constant memory."""
        for where, pixels in stream(images, self.image_size, on_error=on_error):
            features = self.features(pixels)
            yield where, features, self.probabilities(features)

    def predict(self, images: Images, on_error: OnError | None = None) -> Iterator[tuple[list[int], np.ndarray]]:
        """Batches of positions and probabilities (n, C), in order, at constant memory; see `stream`."""
        for where, _, probabilities in self.embed(images, on_error):
            yield where, probabilities

    def __getstate__(self) -> dict[str, Any]:
        return {name: self.__dict__[name] for name in self.__dataclass_fields__}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    @cached_property
    def _network(self) -> Network:
        return self.engine.network(self.film, self.image_size)

    def _running(self, network: Network) -> FittedTask:
        """This task, with the network of its FiLM that is there already."""
        self.__dict__["_network"] = network
        return self


def _statistics(engine: Engine, features: np.ndarray, labels: np.ndarray, ways: int) -> ClassStatistics:
    return ClassStatistics.of(features, labels, ways, scatter=engine.head.needs_scatter)


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


def check_names(labels: Sequence[Any] | np.ndarray) -> list[Name]:
    """Labels as plain strings or integers."""
    if isinstance(labels, str | bytes) or not hasattr(labels, "__iter__"):
        raise InputError("labels are a list, one for each image")
    names: list[Name] = []
    for i, label in enumerate(labels):
        if hasattr(label, "item") and getattr(label, "ndim", None) == 0:  # a number of numpy or torch
            label = label.item()
        if isinstance(label, str) and label:
            try:
                names.append(values.name(str(label), f"label {i}"))
            except ValueError as error:
                raise InputError(str(error)) from error
        elif isinstance(label, int | np.integer) and not isinstance(label, bool):
            names.append(int(label))
        else:
            raise InputError(f"label {i} is {label!r}; labels are strings (not empty) or integers")
    check_alike(names)
    return names


def check_alike(names: Iterable[Name]) -> None:
    """All strings or all integers: a mixture has no order, and 1 and "1" are easily confused."""
    if len({isinstance(name, str) for name in names}) > 1:
        raise InputError("some labels are strings and some are integers: make them all of one kind")


def check_enough(names: Iterable[Name]) -> None:
    """At least two classes."""
    classes = set(names)
    if not classes:
        raise InputError("there are no examples: give some labelled images of at least two classes")
    if len(classes) == 1:
        raise InputError(f"there is only the class {classes.pop()!r}: at least two classes are needed")


def _support(examples: Examples, names: list[Name], flip: bool) -> Support:
    place = {name: i for i, name in enumerate(names)}
    labels = np.array([place[name] for name in examples.names], np.int64)
    pixels = examples.pixels
    if flip:
        pixels, labels = np.concatenate([pixels, pixels[..., ::-1]]), np.tile(labels, 2)
    return Support(pixels, labels, len(names))


def _case_twins(names: Iterable[Name]) -> list[list[str]]:
    groups: dict[str, list[str]] = {}
    for name in sorted({name for name in names if isinstance(name, str)}):
        groups.setdefault(name.casefold(), []).append(name)
    return [group for group in groups.values() if len(group) > 1]


def _some(names: Sequence[Name], limit: int = 8) -> str:
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(map(repr, names[:limit])) + more
