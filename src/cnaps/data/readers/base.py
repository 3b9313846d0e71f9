"""What a reader is: from the files a publisher ships to classes, images and splits."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageOps

from cnaps.data import splits
from cnaps.data.archives import Tree
from cnaps.data.images import SUFFIXES, ImageLike, load_image
from cnaps.errors import DataError

Splits = dict[str, list[int]]


class Images(ABC):
    """The images of a data set by class and position; pickled once to every worker process."""

    counts: list[int]

    @abstractmethod
    def key(self, class_index: int, position: int) -> str:
        """The identity of an image: the same whether it is read from a folder or from an archive of it."""

    @abstractmethod
    def load(self, class_index: int, position: int) -> ImageLike:
        """The image, or its encoded bytes."""


@dataclass
class Plan:
    """All that a reader found out before any image is decoded."""

    classes: list[str]
    images: Images
    published: Callable[[], Splits] | None = None  # the splits, where the rule of the data set's name is not it
    hierarchy: dict[str, Any] | None = None
    name: str | None = None  # of the data set, where the files tell it


class Part(NamedTuple):
    """A file that the publisher ships, where it is published, and what else shows that it is there."""

    file: str
    url: str
    others: tuple[str, ...] = ()

    @property
    def patterns(self) -> tuple[str, ...]:
        """Every name by which it is found, packed or unpacked."""
        return (self.file if self.file.startswith("*") else f"*{self.file}", *self.others)


@dataclass(frozen=True)
class Reader:
    """A data set that can be prepared."""

    name: str
    title: str
    read: Callable[[Tree], Plan]
    licence: str = ""
    parts: tuple[Part, ...] = ()
    default_splits: str = "published"


class Item(NamedTuple):
    """An image in a file, or a box (left, top, right, bottom) of it, clipped to it."""

    key: str
    file: str
    box: tuple[int, int, int, int] | None = None


class FileImages(Images):
    """Images that are files of a tree."""

    def __init__(self, tree: Tree, items: Sequence[Sequence[Item]], *, invert: bool = False) -> None:
        self.tree = tree
        self.items = items
        self.counts = [len(some) for some in items]
        self.invert = invert

    def key(self, class_index: int, position: int) -> str:
        """See :class:`Images`."""
        return self.items[class_index][position].key

    def load(self, class_index: int, position: int) -> ImageLike:
        """See :class:`Images`."""
        item = self.items[class_index][position]
        content = self.tree.read(item.file)
        if item.box is None:
            return ImageOps.invert(load_image(content)) if self.invert else content
        return crop(load_image(content), item.box)


class ArrayImages(Images):
    """Images that are rows of one array; ``rows`` are those of each class."""

    def __init__(self, array: np.ndarray, rows: Sequence[np.ndarray], keys: Callable[[int], str]) -> None:
        self.array = array
        self.rows = rows
        self.keys = keys
        self.counts = [len(some) for some in rows]

    def key(self, class_index: int, position: int) -> str:
        """See :class:`Images`."""
        return self.keys(int(self.rows[class_index][position]))

    def load(self, class_index: int, position: int) -> ImageLike:
        """See :class:`Images`."""
        return np.ascontiguousarray(self.array[self.rows[class_index][position]])


def crop(image: Image.Image, box: tuple[int, int, int, int]) -> Image.Image:
    """Cut a box out, clipped to the image."""
    left, top = max(box[0], 0), max(box[1], 0)
    right, bottom = min(box[2], image.width), min(box[3], image.height)
    if right <= left or bottom <= top:
        raise DataError(f"the box {tuple(box)} lies outside the image of {image.width} x {image.height} pixels")
    return image.crop((left, top, right, bottom))


def plan_files(
    tree: Tree, by_class: Mapping[str, Iterable[Item]], *, in_order: bool = False, **options: Any
) -> Plan:
    """A plan of files grouped by class; classes sorted by name unless ``in_order`` already, images by key."""
    if not by_class:
        raise DataError(f"{tree.path} holds no images in class folders")
    order = list(by_class) if in_order else sorted_classes(by_class)
    items = [sorted(item._replace(key=printable(item.key)) for item in by_class[name]) for name in order]
    return Plan([printable(name) for name in order], FileImages(tree, items, **options))


def printable(name: str) -> str:
    """A file name as text: bytes that are no UTF-8 become question marks."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def sorted_classes(names: Iterable[str]) -> list[str]:
    """Class names in order; plain numbers in the order of numbers."""
    found = list(names)
    return sorted(found, key=int) if all(name.isdecimal() for name in found) else sorted(found)


def class_folders(tree: Tree, *, below: str = "") -> dict[str, list[Item]]:
    """Image files by the folder they lie in: ``.../<below>/<class>/<image>``, or ``<class>/<image>``.

    A file counts for the class whose folder it is in, at any depth below it.
    """
    found: dict[str, list[Item]] = {}
    for name in tree.names():
        if not is_image(name):
            continue
        parts = PurePosixPath(name).parts
        if below in parts[:-2]:
            parts = parts[parts.index(below) + 1 :]
        if len(parts) >= 2:
            found.setdefault(parts[0], []).append(Item("/".join(parts), name))
    return found


def is_image(name: str) -> bool:
    """Whether the name ends like that of an image."""
    return PurePosixPath(name).suffix.lower() in SUFFIXES


def find(tree: Tree, ending: str) -> str:
    """The one file of a tree with this name, wherever it lies."""
    found = [name for name in tree.names() if f"/{name}".endswith(f"/{ending}")]
    if not found:
        raise DataError(f"{tree.path} lacks {ending}; `cnaps data doctor` tells where it is published")
    return min(found, key=len)


def read_text(tree: Tree, ending: str) -> str:
    """The text of the file found by :func:`find`."""
    try:
        return tree.read(find(tree, ending)).decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{ending} in {tree.path} is not text: {error}") from error


def read_json(tree: Tree, ending: str) -> dict[str, Any]:
    """The JSON object in the file found by :func:`find`."""
    try:
        value = json.loads(read_text(tree, ending))
    except ValueError as error:
        raise DataError(f"{ending} in {tree.path} is damaged: {error}") from error
    if not isinstance(value, dict):
        raise DataError(f"{ending} in {tree.path} should hold a JSON object")
    return value


def locate(tree: Tree, below: str) -> dict[str, str]:
    """Images by their path from the folder ``below`` on, wherever that folder lies."""
    found: dict[str, str] = {}
    for name in tree.names():
        parts = PurePosixPath(name).parts
        if below in parts[:-1] and is_image(name):
            found["/".join(parts[parts.index(below) :])] = name
    return found


def alphabets(classes: Sequence[str]) -> dict[str, Any]:
    """The hierarchy of classes named ``Alphabet/character01``."""
    return {"kind": "alphabets", "groups": splits.alphabets(classes)}
