"""What a reader is: from the files a publisher ships to classes, images and splits."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from PIL import ImageOps

from cnaps.data import splits
from cnaps.errors import DataError
from cnaps.files import escaped
from cnaps.images.archives import Tree
from cnaps.images.decoding import ImageLike, is_image, load_image

Splits = dict[str, list[int]]


class Item(NamedTuple):
    """An image: its identity, whether read from a folder or an archive; its file; and its place in the file."""

    key: str
    file: str
    at: Any = None  # a box, a row, a range of bytes: whatever the listing's ``load`` understands


@dataclass
class Listing:
    """All that a reader found out before any image is decoded."""

    tree: Tree
    classes: list[str]
    items: Sequence[Sequence[Item]]  # of each class
    load: Callable[[Tree, Item], ImageLike]  # a function of a module: worker processes call it
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
    read: Callable[[Tree], Listing]
    licence: str = ""
    parts: tuple[Part, ...] = ()
    default_splits: str = "published"


def load_file(tree: Tree, item: Item) -> ImageLike:
    """The image in a file, or a box (left, top, right, bottom) of it, clipped to it."""
    content = tree.read(item.file)
    if item.at is None:
        return content
    image = load_image(content)
    left, top = max(item.at[0], 0), max(item.at[1], 0)
    right, bottom = min(item.at[2], image.width), min(item.at[3], image.height)
    if right <= left or bottom <= top:
        raise DataError(f"the box {item.at} lies outside the image of {image.width} x {image.height} pixels")
    return image.crop((left, top, right, bottom))


def load_inverted(tree: Tree, item: Item) -> ImageLike:
    """The image in a file, dark and light exchanged."""
    return ImageOps.invert(load_image(tree.read(item.file)))


def list_files(
    tree: Tree,
    images: Iterable[tuple[str, Item]],
    classes: Sequence[str] = (),
    load: Callable[[Tree, Item], ImageLike] = load_file,
) -> Listing:
    """A listing of (class, image) pairs, images sorted by key; without ``classes`` those are sorted by name."""
    found: dict[str, list[Item]] = {name: [] for name in classes}
    for name, item in images:
        found.setdefault(name, []).append(item._replace(key=escaped(item.key)))
    if not found:
        raise DataError(f"{tree.path} holds no images in class folders")
    order = classes or sorted_classes(found)
    return Listing(tree, [escaped(name) for name in order], [sorted(found[name]) for name in order], load)


def sorted_classes(names: Iterable[str]) -> list[str]:
    """Class names in order; plain numbers in the order of numbers."""
    found = list(names)
    return sorted(found, key=int) if all(name.isdecimal() for name in found) else sorted(found)


def pictures(tree: Tree) -> Iterator[tuple[str, list[str]]]:
    """The names of all images, each also split into its folders and file."""
    return ((name, name.split("/")) for name in tree.names() if is_image(name))


def below(tree: Tree, folder: str) -> dict[str, str]:
    """Images by their path from a folder on, wherever that folder lies."""
    return {"/".join(parts[parts.index(folder) :]): name for name, parts in pictures(tree) if folder in parts[:-1]}


def find(tree: Tree, ending: str) -> str:
    """The one file of a tree with this name, wherever it lies."""
    found = [name for name in tree.names() if f"/{name}".endswith(f"/{ending}")]
    if not found:
        raise DataError(f"{tree.path} lacks {ending}; `cnaps data doctor` tells where it is published")
    return min(found, key=len)


@contextlib.contextmanager
def parsing(tree: Tree, file: str) -> Iterator[None]:
    """Whatever goes wrong with the content of a file becomes an error that names it."""
    try:
        yield
    except DataError:
        raise
    except Exception as error:  # damaged files make parsers raise almost anything
        reason = f"{type(error).__name__}: {error}"
        raise DataError(f"{file} in {tree.path} is damaged or not as published ({reason})") from error


def read_lines(tree: Tree, ending: str) -> list[str]:
    """The lines of the file found by :func:`find`."""
    with parsing(tree, ending):
        return tree.read(find(tree, ending)).decode("utf-8").splitlines()


def read_json(tree: Tree, ending: str) -> Any:
    """The JSON in the file found by :func:`find`."""
    with parsing(tree, ending):
        return json.loads(tree.read(find(tree, ending)))


def alphabets(classes: Sequence[str]) -> dict[str, Any]:
    """The hierarchy of classes named ``Alphabet/character01``."""
    return {"kind": "alphabets", "groups": splits.alphabets(classes)}
