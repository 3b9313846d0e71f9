"""MNIST: images and labels in the idx format, with or without gzip."""

from __future__ import annotations

import gzip
import io
import math
import struct
import zlib

import numpy as np

from cnaps.data.archives import Tree
from cnaps.data.readers.base import ArrayImages, Part, Plan, Reader
from cnaps.errors import DataError

_HOME = "https://storage.googleapis.com/cvdf-datasets/mnist"
_LIMIT = 1 << 28
_PARTS = ("train", "t10k")


class _Keys:
    """``train/0`` .. ``train/59999``, ``t10k/0`` ..."""

    def __init__(self, first: int) -> None:
        self.first = first

    def __call__(self, row: int) -> str:
        return f"train/{row}" if row < self.first else f"t10k/{row - self.first}"


def read(tree: Tree) -> Plan:
    """Training and test images together, as Meta-Dataset's test uses them all; digits are white on black."""
    names = list(tree.names())
    images = [_idx(tree, names, f"{part}-images", 3) for part in _PARTS]
    labels = [_idx(tree, names, f"{part}-labels", 1) for part in _PARTS]
    for part, pictures, digits in zip(_PARTS, images, labels, strict=True):
        if len(pictures) != len(digits):
            raise DataError(f"MNIST's {part} files hold {len(pictures)} images but {len(digits)} labels")
    every = np.concatenate(labels)
    rows = [np.flatnonzero(every == digit) for digit in range(10)]
    return Plan(
        [str(digit) for digit in range(10)], ArrayImages(np.concatenate(images), rows, _Keys(len(labels[0])))
    )


def _idx(tree: Tree, names: list[str], stem: str, dimensions: int) -> np.ndarray:
    found = [name for name in names if stem in name and "ubyte" in name]
    if not found:
        raise DataError(f"{tree.path} lacks {stem}-idx{dimensions}-ubyte.gz of MNIST")
    content = tree.read(found[0])
    try:
        if content[:2] == b"\x1f\x8b":
            with gzip.open(io.BytesIO(content)) as file:
                content = file.read(_LIMIT)
        magic, *shape = struct.unpack_from(f">{1 + dimensions}I", content)
    except (OSError, EOFError, zlib.error, struct.error) as error:
        raise DataError(f"{found[0]} in {tree.path} is damaged: {error}") from error
    values = np.frombuffer(content, np.uint8, offset=4 * (1 + dimensions))
    if magic != 0x800 + dimensions or values.size != math.prod(shape):
        raise DataError(f"{found[0]} in {tree.path} is no whole idx file of {dimensions} dimensions")
    return values.reshape(shape)


READER = Reader(
    "mnist",
    "MNIST: handwritten digits",
    read,
    licence="CC BY-SA 3.0",
    parts=tuple(
        Part(f"{part}-{kind}-ubyte.gz", f"{_HOME}/{part}-{kind}-ubyte.gz", (f"{part}-{kind}-ubyte",))
        for part in _PARTS
        for kind in ("images-idx3", "labels-idx1")
    ),
)
