"""A fitted task as one ONNX file that needs nothing of this package: pixels of any size in, probabilities out.

Resizing, normalisation, the adapted network, the classifier and the calibration are all in the graph. It is put
together from the bundle's graphs, whose nodes stay as they are; only what this task adds is written here.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from itertools import chain

import numpy as np

from cnaps.errors import InputError
from cnaps.files import atomic_path
from cnaps.maths import heads
from cnaps.maths.arrays import unit
from cnaps.runtime.bundle import INPUT, Bundle
from cnaps.runtime.engine import with_film
from cnaps.runtime.novelty import EASE, FLAT, MIDDLE, STEEP, common_part
from cnaps.runtime.onnx import Graph, Port, node, write_model
from cnaps.runtime.task import FittedTask

_FLOAT = 1  # the number of this type in ONNX
_LEANING = 1 / 64  # of a grey: more than onnxruntime's `Resize` is off by, up to 384 pixels a side (0.010)


def export_onnx(task: FittedTask, path: str | os.PathLike[str]) -> None:
    """Write a network from pixels, uint8 RGB (batch, 3, H, W) of any size, to class probabilities (batch, C).

    A second output, `novelty` (batch,), says how unlike all classes an image is; beyond `threshold` it is none of
    them. The metadata holds `classes` (JSON), `image_size` and, where it is known, `threshold`. To run it, with
    `image` an upright Pillow image:

        session = onnxruntime.InferenceSession(path)
        classes = json.loads(session.get_modelmeta().custom_metadata_map["classes"])
        pixels = np.asarray(image.convert("RGB")).transpose(2, 0, 1)[None]  # uint8 (1, 3, H, W)
        probabilities, novelty = session.run(None, {"images": pixels})
        print(classes[probabilities[0].argmax()])
    """
    data = onnx_bytes(task)
    with atomic_path(path) as temporary:
        temporary.write_bytes(data)


def onnx_bytes(task: FittedTask, more: Mapping[str, str] | None = None) -> bytes:
    """The file that `export_onnx` writes, with `more` in its metadata."""
    bundle = task.engine.bundle()
    drawing = _Drawing()
    weights = with_film(bundle.layers(task.image_size), chain(*bundle.sites), task.film)
    drawing.preprocessing(bundle, task.image_size)
    for name in ("stem", *bundle.stages):
        graph = bundle.graph(name)
        drawing.nodes.append(graph.nodes)
        drawing.kept.append(graph.tensors)
    features = drawing.embedded(task.engine.head, bundle)
    logits = drawing.classified(task.classifier, features)
    calibrated = drawing.add("Div", logits, drawing.tensor(np.float32(task.temperature)))
    if task.prior is not None:
        calibrated = drawing.add("Add", calibrated, drawing.tensor(_row(task.prior)))
    drawing.add("Softmax", calibrated, to="probabilities", axis=1)
    drawing.novelty(task, features, logits)
    nodes = b"".join(drawing.nodes)
    floats = {name: value.astype(np.float32) for name, value in weights.items() if value.dtype.kind == "f"}
    used = {name: value for name, value in floats.items() if name.encode() in nodes}
    metadata = {
        "format": "cnaps-classifier",
        "version": "2",
        "classes": json.dumps(task.names, ensure_ascii=False),
        "image_size": str(task.image_size),
        "input": "uint8 RGB, (batch, 3, H, W) of any size, upright",
        "model": task.engine.fingerprint,
    }
    if task.threshold is not None:
        metadata["threshold"] = f"{task.threshold:.6g}"
    metadata |= more or {}
    return write_model(
        Graph(nodes, b"".join(drawing.kept)),
        {**used, **drawing.tensors},
        [Port("images", ("batch", 3, "height", "width"), np.uint8)],
        [Port("probabilities", ("batch", len(task.names))), Port("novelty", ("batch",))],
        metadata,
    )


class _Drawing:
    """Nodes and tensors of a graph as it grows."""

    def __init__(self) -> None:
        self.nodes: list[bytes] = []
        self.kept: list[bytes] = []  # tensors of the bundle's own graphs
        self.tensors: dict[str, np.ndarray] = {}
        self._count = 0

    def tensor(self, value: np.ndarray | np.float32) -> str:
        """A constant; its name."""
        name = f"task.{len(self.tensors)}"
        self.tensors[name] = np.asarray(value)
        return name

    def add(self, kind: str, *inputs: str, to: str = "", **attributes: int | float | str | list[int]) -> str:
        """An operation; the name of its result."""
        self._count += 1
        to = to or f"task/{self._count}"
        self.nodes.append(node(kind, inputs, [to], **attributes))
        return to

    def matrix(self, x: str, rows: np.ndarray) -> str:
        """x @ rows.T."""
        return self.add("MatMul", x, self.tensor(np.ascontiguousarray(rows.T, np.float32)))

    def unit(self, x: str) -> str:
        """Rows of unit length."""
        return self.add("LpNormalization", x, axis=1, p=2)

    def preprocessing(self, bundle: Bundle, size: int) -> None:
        """Pillow's bilinear resizing, rows and then columns, to within a grey level; then normalisation.

        Half-way between two greys Pillow's whole-numbered weights decide, and `Resize` is off by some thousandths.
        Two such roundings could add up, so they lean to opposite sides: that keeps within one.
        """
        self.nodes.append(node("Cast", ["images"], ["task/pixels"], to=_FLOAT))
        x, side = "task/pixels", self.tensor(np.array([size], np.int64))
        for axis, half in ((3, 0.5 + _LEANING), (2, 0.5 - _LEANING)):
            x = self.add(
                "Resize", x, "", "", side, mode="linear", antialias=1, exclude_outside=1, axes=[axis],
                coordinate_transformation_mode="half_pixel",
            )  # fmt: skip
            x = self.add("Floor", self.add("Add", x, self.tensor(np.float32(half))))
        self.add("Div", self.add("Sub", x, self.tensor(bundle.mean)), self.tensor(bundle.std), to=INPUT)

    def embedded(self, head: heads.Head, bundle: Bundle) -> str:
        """Pooled features as the head reads them."""
        every = bundle.settings["features"] == "all"
        parts = [f"{name}.pooled" for name in (bundle.stages if every else bundle.stages[-1:])]
        if isinstance(head, heads.UnitHead):
            parts = [self.unit(part) for part in parts]
        return self.add("Concat", *parts, axis=1)

    def classified(self, classifier: heads.Classifier, x: str) -> str:
        """Logits, by any classifier that a head makes."""
        if isinstance(classifier, heads.LinearClassifier):
            return self.add("Add", self.matrix(x, classifier.weight), self.tensor(_row(classifier.bias)))
        if isinstance(classifier, heads.CosineClassifier):
            away = self.add("Sub", x, self.tensor(_row(classifier.centre)))
            names = [f"{away}.{i}" for i in range(len(classifier.groups))]
            sizes = self.tensor(np.array(classifier.groups, np.int64))
            self.nodes.append(node("Split", [away, sizes], names, axis=1))
            return self.matrix(self.add("Concat", *map(self.unit, names), axis=1), classifier.prototypes)
        if isinstance(classifier, heads.RidgeClassifier):
            away = self.add("Sub", x, self.tensor(_row(classifier.centre)))
            v = self.add("Mul", away, self.tensor(_row(classifier.weight)))
            regression = self.matrix(v, classifier.regression)
            logits = self.add("Add", regression, self.matrix(self.unit(v), classifier.prototypes))
            return self.add("Add", logits, self.tensor(_row(classifier.bias)))
        if isinstance(classifier, heads.MahalanobisClassifier):
            inside = self.matrix(x, classifier.basis)
            lengths = [self.add("ReduceSumSquare", y, self.tensor(np.array([1], np.int64))) for y in (x, inside)]
            gaps = self.add("Sub", inside, self.tensor(classifier.means[:, None].astype(np.float32)))  # (C, M, r)
            whitening = self.tensor(np.ascontiguousarray(classifier.whitening.transpose(0, 2, 1), np.float32))
            axes = self.tensor(np.array([2], np.int64))
            distances = self.add("ReduceSumSquare", self.add("MatMul", gaps, whitening), axes, keepdims=0)
            turned = self.add("Transpose", distances, perm=[1, 0])  # (M, C)
            return self.add("Neg", self.add("Add", turned, self.add("Sub", *lengths)))
        raise InputError(f"a {type(classifier).__name__} cannot be exported")

    def novelty(self, task: FittedTask, x: str, logits: str) -> None:
        """As `FittedTask.novelty` says it."""
        axes = self.tensor(np.array([1], np.int64))
        if task.ease is not None and len(task.names) > 1:
            last = task.engine.head.groups[-1]
            present = self.add("Sub", logits, self.tensor(_row(EASE * task.ease)))
            present = self.add("ReduceLogSumExp", present, axes, keepdims=0)
            ends = [self.tensor(np.array([at], np.int64)) for at in (-last, 2**31)]
            flat = self.add("ReduceL1", self.add("Slice", x, *ends, axes), axes, keepdims=0)
            there = self.add("Add", present, self.add("Mul", flat, self.tensor(np.float32(FLAT / last**0.5))))
            there = self.add("Sub", self.tensor(np.float32(MIDDLE)), there)
            share = self.add("Sigmoid", self.add("Div", there, self.tensor(np.float32(STEEP))))
            self.add("Mul", share, self.tensor(np.float32(2)), to="novelty")
            return
        means = task.statistics.means.astype(np.float32)
        emphasis, common = task.engine.head.emphasis(means), common_part(means)
        apart = self.add("Mul", self.add("Sub", x, self.tensor(_row(common))), self.tensor(_row(emphasis)))
        near = self.matrix(self.unit(apart), unit((means - common) * emphasis))
        best = self.add("ReduceMax", near, axes, keepdims=0)
        self.add("Sub", self.tensor(np.float32(1)), best, to="novelty")


def _row(value: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(value, np.float32)
