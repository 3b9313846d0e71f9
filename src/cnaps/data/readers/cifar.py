"""CIFAR-10 and CIFAR-100: the "python version", pickled batches read without letting pickle run code."""

from __future__ import annotations

import io
import pickle
import re
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Any

import numpy as np

from cnaps.data.archives import Tree
from cnaps.data.readers.base import ArrayImages, Part, Plan, Reader, class_folders, plan_files
from cnaps.errors import DataError

_HOME = "https://www.cs.toronto.edu/~kriz"
# What numpy writes into a pickle, under its old and new names; nothing else may be named in one.
_ADMITTED = {
    (f"numpy.{core}.{module}", name)
    for core in ("core", "_core")
    for module, name in (("multiarray", "_reconstruct"), ("numeric", "_frombuffer"))
} | {("numpy", "ndarray"), ("numpy", "dtype"), ("_codecs", "encode")}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ADMITTED:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which is no part of an array")
        return super().find_class(module, name)


class _Keys:
    """``data_batch_1/0`` ...: the batch and the position in it."""

    def __init__(self, names: list[str], starts: list[int]) -> None:
        self.names = names
        self.starts = starts

    def __call__(self, row: int) -> str:
        batch = int(np.searchsorted(self.starts, row, side="right")) - 1
        return f"{self.names[batch]}/{row - self.starts[batch]}"


def _reader(batch_names: str, meta: str, label_key: str, names_key: str) -> Callable[[Tree], Plan]:
    """All training and test images together; class folders are read as well."""

    def read(tree: Tree) -> Plan:
        batches = sorted(
            (name for name in tree.names() if re.fullmatch(batch_names, PurePosixPath(name).name)),
            key=lambda name: PurePosixPath(name).name,
        )
        if not batches:
            return plan_files(tree, class_folders(tree))
        described = [name for name in tree.names() if PurePosixPath(name).name == meta]
        if not described:
            raise DataError(f"{tree.path} has batches of CIFAR but lacks {meta}")
        classes = [_text(name) for name in _load(tree, described[0])[names_key]]
        images, labels, starts = [], [], [0]
        for name in batches:
            batch = _load(tree, name)
            try:
                data = np.asarray(batch["data"])
                if data.dtype != np.uint8 or data.shape != (len(batch[label_key]), 3072):
                    raise DataError(f"{name} in {tree.path} should hold uint8 rows of 3072, a label each")
                images.append(data.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
                labels += [int(label) for label in batch[label_key]]
            except (KeyError, TypeError) as error:
                raise DataError(f"{name} in {tree.path} lacks {error}") from error
            starts.append(len(labels))
        every = np.array(labels)
        rows = [np.flatnonzero(every == index) for index in range(len(classes))]
        keys = _Keys([PurePosixPath(name).name for name in batches], starts[:-1])
        return Plan(classes, ArrayImages(np.concatenate(images), rows, keys))

    return read


def _load(tree: Tree, name: str) -> dict[str, Any]:
    try:
        content = _Unpickler(io.BytesIO(tree.read(name)), encoding="bytes").load()
        return {_text(key): value for key, value in content.items()}
    except DataError:
        raise
    except Exception as error:  # a damaged pickle raises almost anything
        raise DataError(f"{name} in {tree.path} is no batch of CIFAR: {error}") from error


def _text(value: str | bytes) -> str:
    return value.decode("utf-8") if isinstance(value, bytes) else value


READERS = (
    Reader(
        "cifar10",
        "CIFAR-10: small photographs of 10 classes",
        _reader(r"data_batch_\d|test_batch", "batches.meta", "labels", "label_names"),
        licence="not stated by its authors; research",
        parts=(Part("cifar-10-python.tar.gz", f"{_HOME}/cifar-10-python.tar.gz", ("cifar-10-batches-py",)),),
    ),
    Reader(
        "cifar100",
        "CIFAR-100: small photographs of 100 classes",
        _reader(r"train|test", "meta", "fine_labels", "fine_label_names"),
        licence="not stated by its authors; research",
        parts=(Part("cifar-100-python.tar.gz", f"{_HOME}/cifar-100-python.tar.gz", ("cifar-100-python",)),),
    ),
)
