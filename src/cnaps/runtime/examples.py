"""Examples of a task: labelled images, decoded at the size that they are worth; what labels may be."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Sized
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from cnaps import values
from cnaps.errors import InputError, explained
from cnaps.files import content_id
from cnaps.images.inputs import Images, OnError, as_images, look_at, stream
from cnaps.images.sizes import Look, auto_size
from cnaps.runtime.engine import Engine

Name: TypeAlias = str | int
_LOOKED_AT = 16  # examples that decide about the size


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
    """Labelled images, decoded: pixels uint8 (N, 3, S, S), the class of each, and how much it counts."""

    pixels: np.ndarray
    names: list[Name]
    weights: np.ndarray | None = None  # (N,) above 0; None: every example counts alike

    @classmethod
    def read(
        cls,
        images: Images,
        labels: Sequence[Any] | np.ndarray,
        size: int,
        on_error: OnError | None = None,
        weights: Sequence[float] | np.ndarray | None = None,
    ) -> Examples:
        """Decode labelled images; without `on_error` a broken one is raised, with it the rest is kept.

        Examples of weight 0 are left out.
        """
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
        read = cls(np.concatenate(batches), [names[i] for i in where])
        if weights is None:
            return read
        counted = check_weights(weights, len(names))[where]
        return replace(read, weights=counted)._at(np.flatnonzero(counted))

    def of(self, names: Iterable[Name]) -> Examples:
        """Those of some classes."""
        wanted = set(names)
        return self._at([i for i, name in enumerate(self.names) if name in wanted])

    def _at(self, places: Sequence[int] | np.ndarray) -> Examples:
        weights = None if self.weights is None else self.weights[places]
        return Examples(self.pixels[places], [self.names[i] for i in places], weights)

    def concerns(self, titles: Sequence[str] | None = None) -> list[str]:
        """What may be wrong with the labels, a sentence each; `titles` name the images."""
        titles = titles or [f"image {i}" for i in range(len(self.names))]
        found = [
            f"classes {' and '.join(map(repr, twins))} differ only by case: are they one class?"
            for twins in _case_twins(self.names)
        ]
        first: dict[str, int] = {}
        for i, image in enumerate(self.pixels):
            j = first.setdefault(content_id(image.tobytes()), i)
            if self.names[i] != self.names[j]:
                found.append(
                    f"{titles[j]} and {titles[i]} are the same image, but one is {self.names[j]!r} "
                    f"and the other {self.names[i]!r}"
                )
        return found


def check_names(labels: Sequence[Any] | np.ndarray) -> list[Name]:
    """Labels as plain strings, integers or truth values."""
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
        elif isinstance(label, int):
            names.append(label)
        else:
            raise InputError(
                f"label {i} is {label!r}; labels are strings (not empty), integers, or False and True"
            )
    check_alike(names)
    return names


def check_alike(names: Iterable[Name]) -> None:
    """All strings, all integers or all truth values: 1 and "1" and True are easily confused."""
    kinds = {type(name).__name__: name for name in names}
    if len(kinds) > 1:
        found = " and ".join(f"{name!r} ({kind})" for kind, name in kinds.items())
        raise InputError(f"labels are of several kinds, such as {found}: make them all of one kind")


def check_weights(weights: Sequence[float] | np.ndarray, count: int) -> np.ndarray:
    """Weights of examples (N,): finite, none below 0."""
    with explained(InputError, "sample_weight is a list of numbers", TypeError, ValueError):
        found = np.asarray(weights, np.float64)
    if found.shape != (count,):
        raise InputError(f"sample_weight has the shape {found.shape}: give one number for each of {count} images")
    if not (np.isfinite(found) & (found >= 0)).all():
        raise InputError("sample_weight holds a number below 0, NaN or infinity")
    return found


def check_enough(names: Iterable[Name]) -> None:
    """At least two classes."""
    classes = set(names)
    if not classes:
        raise InputError("there are no examples: give some labelled images of at least two classes")
    if len(classes) == 1:
        raise InputError(f"there is only the class {classes.pop()!r}: at least two classes are needed")


def _case_twins(names: Iterable[Name]) -> list[list[str]]:
    groups: dict[str, list[str]] = {}
    for name in sorted({name for name in names if isinstance(name, str)}):
        groups.setdefault(name.casefold(), []).append(name)
    return [group for group in groups.values() if len(group) > 1]
