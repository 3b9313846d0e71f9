"""A fitted task without ceremony: from images of any kind to probabilities of named classes.

`FewShotClassifier` gives this the shape of a scikit-learn estimator; the command line uses it as it is, because
it starts faster.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
from collections.abc import Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cnaps import values
from cnaps.errors import InputError
from cnaps.images.inputs import Images, OnError, as_images, stream
from cnaps.nn.adapted import Adapted
from cnaps.nn.checkpoints import list_models, load_model
from cnaps.nn.model import CNAPs
from cnaps.nn.statistics import ClassStatistics
from cnaps.nn.task_model import TaskModel
from cnaps.parallel import pick_device

Name: TypeAlias = str | int
ModelSource: TypeAlias = str | os.PathLike[str] | CNAPs


@dataclass(frozen=True)
class Examples:
    """Labelled images, decoded: pixels uint8 (N, 3, S, S) and the name of the class of each."""

    pixels: Tensor
    names: list[Name]

    @classmethod
    def read(cls, images: Images, labels: Sequence[Any], size: int, on_error: OnError | None = None) -> Examples:
        """Decode labelled images; without `on_error` a broken one is raised, with it the rest is kept."""
        names = check_names(labels)
        sources = as_images(images)
        images = sources if isinstance(sources, Sized) else list(sources)
        if len(images) != len(names):
            raise InputError(f"{len(images)} images but {len(names)} labels: give one label for each image")
        where: list[int] = []
        batches = [torch.empty(0, 3, size, size, dtype=torch.uint8)]
        for indices, pixels in stream(images, size, on_error=on_error):
            where += indices
            batches.append(pixels)
        return cls(torch.cat(batches), [names[i] for i in where])

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
        for i, image in enumerate(self.pixels.numpy()):
            j = first.setdefault(hashlib.blake2b(image.tobytes(), digest_size=16).digest(), i)
            if self.names[i] != self.names[j]:
                found.append(
                    f"{titles[j]} and {titles[i]} are the same image, but one is {self.names[j]!r} "
                    f"and the other {self.names[i]!r}"
                )
        return found


class Recogniser:
    """The classes of a task by name, and the adapted network that tells them apart.

    `names` are sorted and stand in the order of the columns of `probabilities`.
    """

    def __init__(self, adapted: Adapted, names: Sequence[Name], image_size: int, source: str = "") -> None:
        self.adapted = adapted
        self.names = list(names)
        self.image_size = image_size
        self.source = source  # the name of the model, if it has one

    @classmethod
    @torch.no_grad()
    def learn(cls, model: CNAPs, examples: Examples, *, flip: bool = False, source: str = "") -> Recogniser:
        """Adapt a model to examples; `flip` adds their mirror images."""
        names = sorted(set(examples.names))
        images, labels = _context(model, examples, names, flip)
        with _sound():
            return cls(model.adapt(images, labels), names, examples.pixels.shape[-1], source)

    @torch.no_grad()
    def update(self, examples: Examples, *, mode: str = "fixed", flip: bool = False) -> Recogniser:
        """After more examples, of known classes or new ones; see `Adapted.update`."""
        check_alike([*self.names, *examples.names])
        names = sorted({*self.names, *examples.names})
        place = {name: i for i, name in enumerate(names)}
        known = torch.tensor([place[name] for name in self.names])
        images, labels = _context(self.adapted.model, examples, names, flip)
        adapted = self.adapted.relabel(known).update(images, labels, mode=mode)
        return Recogniser(adapted, names, self.image_size, self.source)

    def forget(self, names: Iterable[Name]) -> Recogniser:
        """Without some classes."""
        gone = list(names)
        unknown = [name for name in gone if name not in self.names]
        if unknown:
            raise InputError(f"cannot forget {unknown[0]!r}: the classes are {_some(self.names)}")
        keep = [name for name in self.names if name not in gone]
        adapted = self.adapted.relabel(torch.arange(len(self.names)))
        return Recogniser(
            adapted.forget(self.names.index(name) for name in gone), keep, self.image_size, self.source
        )

    @property
    def temperature(self) -> float:
        """What logits are divided by, so that probabilities mean what they say.

        log T = a + b log(ways) + c log(shots), with `"calibration": [a, b, c]` in the model's notes.
        """
        a, b, c = self.adapted.model.notes.get("calibration", (0.0, 0.0, 0.0))
        shots = float(self.adapted.statistics.counts.mean())
        return math.exp(a + b * math.log(len(self.names)) + c * math.log(max(shots, 1.0)))

    @torch.no_grad()
    def features(self, pixels: Tensor) -> Tensor:
        """Adapted features (n, d) of pixels uint8 (n, 3, S, S); they hold for as long as FiLM does."""
        return self.adapted.features(self.adapted.model.preprocess(pixels))

    @torch.no_grad()
    def probabilities(self, features: Tensor) -> np.ndarray:
        """Class probabilities (n, C) of features (n, d)."""
        if len(self.names) < 2:
            raise InputError(f"only the class {self.names[0]!r} is known: at least two classes are needed")
        with _sound():
            logits = self.adapted.classify(features) / self.temperature
        found = logits.double().softmax(1).cpu().numpy()
        if not np.isfinite(found).all():
            raise InputError(_UNSOUND)
        return found

    @torch.no_grad()
    def novelty(self, features: Tensor) -> np.ndarray:
        """How unlike all classes features (n, d) are, 0..2: one minus the cosine to the nearest class mean."""
        emphasis, means = self.adapted.model.head.emphasis, self.adapted.statistics.means.to(features.dtype)
        cosines = F.normalize(features * emphasis, dim=1) @ F.normalize(means * emphasis, dim=1).T
        return (1 - cosines.amax(1)).cpu().numpy()

    def refit(self, features: Tensor, labels: Tensor) -> Recogniser:
        """The same classes and FiLM, learned from nothing but these features (n, d) and labels of 0..C-1 (n,)."""
        scatter = self.adapted.model.head.needs_scatter
        statistics = ClassStatistics.of(features, labels, len(self.names), scatter=scatter)
        adapted = self.adapted._with(statistics=statistics, seen=len(labels))
        return Recogniser(adapted, self.names, self.image_size, self.source)

    def embed(
        self, images: Images, on_error: OnError | None = None
    ) -> Iterator[tuple[list[int], Tensor, np.ndarray]]:
        """Batches of positions, features (n, d) and probabilities (n, C), in order, at constant memory."""
        for where, pixels in stream(images, self.image_size, on_error=on_error):
            features = self.features(pixels)
            yield where, features, self.probabilities(features)

    def predict(self, images: Images, on_error: OnError | None = None) -> Iterator[tuple[list[int], np.ndarray]]:
        """Batches of positions and probabilities (n, C), in order, at constant memory; see `stream`."""
        for where, _, probabilities in self.embed(images, on_error):
            yield where, probabilities

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the task file; see `cnaps.runtime.taskfile`."""
        from cnaps.runtime.taskfile import write_task

        write_task(path, self)

    @classmethod
    def load(cls, path: str | os.PathLike[str], model: ModelSource | None = None) -> Recogniser:
        """Read a task file; `model` is needed where the task's model does not come with the package."""
        from cnaps.runtime.taskfile import read_task

        return read_task(path, model)

    def export_onnx(self, path: str | os.PathLike[str]) -> None:
        """Write a network from pixels, uint8 (batch, 3, S, S) RGB, to class probabilities (batch, C).

        The metadata holds `classes` (JSON) and `image_size`. To run it, with `image` a Pillow image:

            session = onnxruntime.InferenceSession(path)
            about = session.get_modelmeta().custom_metadata_map
            size, classes = int(about["image_size"]), json.loads(about["classes"])
            resized = image.convert("RGB").resize((size, size), Image.Resampling.BILINEAR)
            pixels = np.asarray(resized).transpose(2, 0, 1)[None]  # uint8 (1, 3, S, S)
            (probabilities,) = session.run(None, {"images": pixels})
            print(classes[probabilities[0].argmax()])
        """
        import json

        from cnaps.nn.export import export_onnx

        metadata = {
            "format": "cnaps-classifier",
            "classes": json.dumps(self.names, ensure_ascii=False),
            "image_size": str(self.image_size),
            "input": "uint8 RGB, (batch, 3, S, S), squares by bilinear resizing",
            "model": self.adapted.model.fingerprint(),
        }
        network = _Deployed(self)
        export_onnx(network, path, self.image_size, metadata=metadata, dtype=torch.uint8, output="probabilities")


_UNSOUND = "this task gives no probabilities: its numbers, or those of its model, are out of all range"


@contextlib.contextmanager
def _sound() -> Iterator[None]:
    try:
        yield
    except torch.linalg.LinAlgError as error:
        raise InputError(_UNSOUND) from error


class _Deployed(nn.Module):
    """Everything from pixels to probabilities in one network."""

    def __init__(self, recogniser: Recogniser) -> None:
        super().__init__()
        self.normalisation = recogniser.adapted.model.backbone.normalisation
        self.network = recogniser.adapted.fold().cpu()
        self.temperature = recogniser.temperature

    def forward(self, pixels: Tensor) -> Tensor:
        """(M, 3, S, S) -> (M, C)."""
        return (self.network(self.normalisation(pixels)) / self.temperature).softmax(1)


def open_model(source: ModelSource, device: str = "auto") -> tuple[CNAPs, str]:
    """A model and the name it has (empty for a folder or an object); read once and shared: nothing changes it."""
    if isinstance(source, CNAPs):
        return source, ""
    if isinstance(source, TaskModel):
        raise InputError(
            f"a model of the compared method {source.kind!r} is for `cnaps evaluate`; give a CNAPs model"
        )
    name = os.fspath(source)
    if name in list_models():
        return _read_model(name, device, 0), name
    config = Path(name) / "config.json"
    stamp = config.stat().st_mtime_ns if config.is_file() else 0
    return _read_model(str(Path(name).absolute()), device, stamp), ""


@lru_cache(maxsize=4)
def _read_model(source: str, device: str, stamp: int) -> CNAPs:
    model = load_model(source)
    try:
        return model.to(pick_device(device))
    except (RuntimeError, AssertionError) as error:  # no such device, or a build of torch without it
        reason = str(error).splitlines()[0]
        raise InputError(f"the device {device!r} cannot be used: {reason}") from error


def check_names(labels: Sequence[Any]) -> list[Name]:
    """Labels as plain strings or integers."""
    if isinstance(labels, str | bytes) or not hasattr(labels, "__iter__"):
        raise InputError("labels are a list, one for each image")
    names: list[Name] = []
    for i, label in enumerate(labels):
        if isinstance(label, Tensor) and label.ndim == 0:
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


def _context(model: CNAPs, examples: Examples, names: list[Name], flip: bool) -> tuple[Tensor, Tensor]:
    place = {name: i for i, name in enumerate(names)}
    labels = torch.tensor([place[name] for name in examples.names], dtype=torch.long)
    pixels = examples.pixels
    if flip:
        pixels, labels = torch.cat([pixels, pixels.flip(3)]), labels.repeat(2)
    return model.preprocess(pixels), labels


def _case_twins(names: Iterable[Name]) -> list[list[str]]:
    groups: dict[str, list[str]] = {}
    for name in sorted({name for name in names if isinstance(name, str)}):
        groups.setdefault(name.casefold(), []).append(name)
    return [group for group in groups.values() if len(group) > 1]


def _some(names: Sequence[Name], limit: int = 8) -> str:
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(map(repr, names[:limit])) + more
