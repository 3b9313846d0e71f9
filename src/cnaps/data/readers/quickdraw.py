"""Quick Draw: a numpy file of 28 x 28 bitmaps a category."""

from __future__ import annotations

import io
from functools import lru_cache
from pathlib import PurePosixPath

import numpy as np

from cnaps.data.archives import Tree
from cnaps.data.images import ImageLike
from cnaps.data.readers.base import Images, Part, Plan, Reader
from cnaps.errors import DataError


class Bitmaps(Images):
    """Rows of 784 pixels in one file a class; mapped where the files lie in a folder."""

    def __init__(self, tree: Tree, files: list[str]) -> None:
        self.tree = tree
        self.files = files
        self.names = [PurePosixPath(file).stem for file in files]
        self.counts = [len(self._array(index)) for index in range(len(files))]

    def _array(self, class_index: int) -> np.ndarray:
        return _bitmaps(self.tree, self.files[class_index])

    def key(self, class_index: int, position: int) -> str:
        """See :class:`Images`."""
        return f"{self.names[class_index]}/{position}"

    def load(self, class_index: int, position: int) -> ImageLike:
        """See :class:`Images`."""
        return np.array(self._array(class_index)[position]).reshape(28, 28)


@lru_cache(maxsize=4)  # images come class by class
def _bitmaps(tree: Tree, name: str) -> np.ndarray:
    try:
        local = tree.local(name)
        if local is not None:
            array = np.load(local, mmap_mode="r", allow_pickle=False)
        else:
            array = np.load(io.BytesIO(tree.read(name)), allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise DataError(f"{name} in {tree.path} is no numpy file of drawings: {error}") from error
    if not isinstance(array, np.ndarray):
        raise DataError(f"{name} in {tree.path} is an archive of arrays, not one array")
    if array.ndim != 2 or array.shape[1] != 784 or array.dtype not in (np.uint8, np.bool_):
        raise DataError(f"{name} in {tree.path} should hold uint8 rows of 784, not {array.dtype} {array.shape}")
    return array


def read(tree: Tree) -> Plan:
    """A category is a class, named by its file; strokes are white on black as published."""
    files = sorted(
        (name for name in tree.names() if name.endswith(".npy")), key=lambda name: PurePosixPath(name).stem
    )
    if not files:
        raise DataError(f"{tree.path} holds no <category>.npy")
    bitmaps = Bitmaps(tree, files)
    return Plan(bitmaps.names, bitmaps)


READER = Reader(
    "quickdraw",
    "Quick, Draw!: sketches of 345 categories",
    read,
    licence="CC BY 4.0",
    parts=(Part("*.npy", "https://console.cloud.google.com/storage/browser/quickdraw_dataset/full/numpy_bitmap"),),
)
