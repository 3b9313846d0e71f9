"""Data sets that come as arrays: MNIST (idx), CIFAR ("python version") and Quick Draw (numpy bitmaps)."""

from __future__ import annotations

import gzip
import io
import math
import pickle
import re
import struct
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np

from cnaps.data.readers.base import Item, Listing, list_files, parsing
from cnaps.data.readers.folders import class_folders
from cnaps.errors import DataError
from cnaps.images.archives import Tree
from cnaps.images.decoding import ImageLike

_IDX_LIMIT = 1 << 28  # bytes that a packed file may grow to

# What numpy writes into a pickle, under its old and new names; nothing else may be named in one.
_ADMITTED = {
    (f"numpy.{core}.{module}", name)
    for core in ("core", "_core")
    for module, name in (("multiarray", "_reconstruct"), ("numeric", "_frombuffer"))
} | {("numpy", "ndarray"), ("numpy", "dtype"), ("_codecs", "encode")}


def read_mnist(tree: Tree) -> Listing:
    """Training and test images together, as Meta-Dataset's test uses them all; digits are white on black."""
    labels = {}
    for part in ("train", "t10k"):
        file = _idx_file(tree, f"{part}-images-idx3")
        digits = _idx(tree, _idx_file(tree, f"{part}-labels-idx1"), 1)
        if len(_idx(tree, file, 3)) != len(digits):
            raise DataError(
                f"MNIST's {part} files hold {len(_idx(tree, file, 3))} images but {len(digits)} labels"
            )
        labels[file, part] = digits
    return _list_rows(tree, [str(digit) for digit in range(10)], labels, _mnist_image)


def _idx_file(tree: Tree, stem: str) -> str:
    start = stem.rpartition("-")[0]  # some copies are called train-images.idx3-ubyte
    found = [name for name in tree.names() if start in name and "ubyte" in name]
    if not found:
        raise DataError(f"{tree.path} lacks {stem}-ubyte.gz of MNIST")
    return found[0]


@lru_cache(maxsize=8)
def _idx(tree: Tree, file: str, dimensions: int) -> np.ndarray:
    with parsing(tree, file):
        content = tree.read(file)
        if content[:2] == b"\x1f\x8b":
            with gzip.open(io.BytesIO(content)) as packed:
                content = packed.read(_IDX_LIMIT)
        magic, *shape = struct.unpack_from(f">{1 + dimensions}I", content)
    values = np.frombuffer(content, np.uint8, offset=4 * (1 + dimensions))
    if magic != 0x800 + dimensions or values.size != math.prod(shape):
        raise DataError(f"{file} in {tree.path} is no whole idx file of {dimensions} dimensions")
    return values.reshape(shape)


def _mnist_image(tree: Tree, item: Item) -> ImageLike:
    return np.array(_idx(tree, item.file, 3)[item.at])


def _read_cifar(batches: str, meta: str, labels: str, names: str, tree: Tree) -> Listing:
    """All training and test images together; class folders are read as well."""
    files = {name.rpartition("/")[2]: name for name in tree.names()}
    found = {file: files[file] for file in sorted(files) if re.fullmatch(batches, file)}
    if not found:
        return list_files(tree, class_folders(tree))
    if meta not in files:
        raise DataError(f"{tree.path} has batches of CIFAR but lacks {meta}")
    with parsing(tree, meta):
        classes = [_text(name) for name in _batch(tree, files[meta])[names]]
    numbers = {}
    for file, name in found.items():
        with parsing(tree, name):
            batch = _batch(tree, name)
            numbers[name, file] = np.array(batch[labels], dtype=np.int64)
            data = np.asarray(batch["data"])
        if data.dtype != np.uint8 or data.shape != (len(numbers[name, file]), 3072):
            raise DataError(f"{name} in {tree.path} should hold uint8 rows of 3072, a label each")
    return _list_rows(tree, classes, numbers, _cifar_image)


read_cifar10 = partial(_read_cifar, r"data_batch_\d|test_batch", "batches.meta", "labels", "label_names")
read_cifar100 = partial(_read_cifar, r"train|test", "meta", "fine_labels", "fine_label_names")


@lru_cache(maxsize=8)  # all batches: the images of a class lie in each of them
def _batch(tree: Tree, name: str) -> dict[str, Any]:
    with parsing(tree, name):
        content = _Unpickler(io.BytesIO(tree.read(name)), encoding="bytes").load()
        return {_text(key): value for key, value in content.items()}


class _Unpickler(pickle.Unpickler):
    """Reads arrays without letting pickle run code."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ADMITTED:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which is no part of an array")
        return super().find_class(module, name)


def _text(value: str | bytes) -> str:
    return value.decode("utf-8") if isinstance(value, bytes) else value


def _cifar_image(tree: Tree, item: Item) -> ImageLike:
    row = np.asarray(_batch(tree, item.file)["data"])[item.at]
    return np.ascontiguousarray(row.reshape(3, 32, 32).transpose(1, 2, 0))


def _list_rows(tree: Tree, classes: list[str], labels: dict[tuple[str, str], np.ndarray], load: Any) -> Listing:
    """A listing of files that hold a row an image; ``labels`` of each (file, name for people)."""
    items = [
        [
            Item(f"{name}/{row}", file, row)
            for (file, name), numbers in labels.items()
            for row in np.flatnonzero(numbers == index).tolist()
        ]
        for index in range(len(classes))
    ]
    return Listing(tree, classes, items, load)


def read_quickdraw(tree: Tree) -> Listing:
    """A category is a class, named by its file; strokes are white on black as published."""
    files = {name.rpartition("/")[2].removesuffix(".npy"): name for name in tree.names() if name.endswith(".npy")}
    if not files:
        raise DataError(f"{tree.path} holds no <category>.npy")
    classes = sorted(files)
    items = [_Drawings(name, files[name], len(_bitmaps(tree, files[name]))) for name in classes]
    return Listing(tree, classes, items, _drawing)


class _Drawings(Sequence[Item]):
    """The items of a category, made when they are asked for: there are fifty million in all."""

    def __init__(self, name: str, file: str, count: int) -> None:
        self.name, self.file, self.size = name, file, count

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: Any) -> Any:
        if index >= self.size:
            raise IndexError(index)
        return Item(f"{self.name}/{index}", self.file, index)


@lru_cache(maxsize=4)  # images come class by class
def _bitmaps(tree: Tree, name: str) -> np.ndarray:
    local = tree.local(name)
    with parsing(tree, name):
        if local is not None:
            array = np.load(local, mmap_mode="r", allow_pickle=False)
        else:
            array = np.load(io.BytesIO(tree.read(name)), allow_pickle=False)
        if array.ndim != 2 or array.shape[1] != 784 or array.dtype not in (np.uint8, np.bool_):
            raise DataError(
                f"{name} in {tree.path} should hold uint8 rows of 784, not {array.dtype} {array.shape}"
            )
    return array


def _drawing(tree: Tree, item: Item) -> ImageLike:
    return np.array(_bitmaps(tree, item.file)[item.at]).reshape(28, 28)
