"""Images whose class is the name of a folder: anybody's own, and the data sets that ship so; or a list as CSV."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from cnaps.data.readers.base import Item, Listing, alphabets, find, list_files, load_inverted, pictures
from cnaps.data.wordnet import Hierarchy
from cnaps.errors import DataError
from cnaps.images.archives import Tree
from cnaps.images.finding import read_table

_WNID = re.compile(r"n\d{8}")


def class_folders(tree: Tree, start: str = "") -> Iterator[tuple[str, Item]]:
    """Images with their class: ``.../<start>/<class>/<image>``, or ``<class>/<image>``, at any depth below it."""
    for name, parts in pictures(tree):
        if start in parts[:-2]:
            parts = parts[parts.index(start) + 1 :]
        if len(parts) >= 2:
            yield parts[0], Item("/".join(parts), name)


def read_below(folder: str, tree: Tree) -> Listing:
    """The class folders below a folder of this name, or class folders alone."""
    return list_files(tree, class_folders(tree, folder))


def read_folder(tree: Tree) -> Listing:
    """A class a folder; one folder around them all is looked through."""
    found = list(class_folders(tree))
    while len({name for name, _ in found}) == 1:
        inner = [(item.key.split("/")[1:], item.file) for _, item in found]
        if any(len(rest) < 2 for rest, _ in inner):
            break
        found = [(rest[0], Item("/".join(rest), file)) for rest, file in inner]
    return list_files(tree, found)


def read_csv(path: Path) -> Listing:
    """A CSV with a line an image: its path, seen from the CSV, and its label; a heading is optional."""
    listed: list[tuple[str, str]] = []
    for where, file, label in read_table(path):
        name = PurePosixPath(file)
        if name.is_absolute() or ".." in name.parts:
            raise DataError(f"{where}: {name} leads out of the folder {path.parent}")
        listed.append((label, str(name)))
    tree = Tree(path.parent, dict.fromkeys(name for _, name in listed))
    return list_files(tree, [(label, Item(name, name)) for label, name in listed])


def read_omniglot(tree: Tree) -> Listing:
    """Classes are called ``Alphabet/character01``; strokes become white, as Meta-Dataset has them."""
    found = [
        ("/".join(parts[-3:-1]), Item("/".join(parts[-3:]), name))
        for name, parts in pictures(tree)
        if len(parts) >= 4 and parts[-4] in ("images_background", "images_evaluation")
    ]
    if not found:
        raise DataError(f"{tree.path} holds neither images_background nor images_evaluation of Omniglot")
    listing = list_files(tree, found, load=load_inverted)
    listing.hierarchy = alphabets(listing.classes)
    return listing


def read_ilsvrc(tree: Tree) -> Listing:
    """A tar of a thousand tars, those tars, or folders; classes are WordNet ids.

    What ``*_duplicates.txt`` list as shared with other data sets is left out.
    """
    listed: set[str] = set()
    for name in tree.names():
        if name.endswith("_duplicates.txt"):  # "n02355227/n02355227_3688.JPEG  # name in the other data set"
            lines = tree.read(name).decode("utf-8", "replace").splitlines()
            listed |= {line.split("#")[0].strip().rpartition("/")[2] for line in lines}
    found = []
    for name, (*folders, file) in pictures(tree):
        wnid = _WNID.match(file) or (_WNID.fullmatch(folders[-1]) if folders else None)
        if wnid and file not in listed:
            found.append((wnid.group(), Item(f"{wnid.group()}/{file}", name)))
    listing = list_files(tree, found)
    wordnet = _wordnet(tree, "wordnet.is_a.txt"), _wordnet(tree, "words.txt")
    if wordnet[0] and wordnet[1]:
        add_wordnet(listing, wordnet[0], wordnet[1], nodes=True)
    return listing


def add_wordnet(listing: Listing, is_a: Path, words: Path, *, nodes: bool) -> None:
    """Meta-Dataset's split of ImageNet's classes; with `nodes`, its tasks from the nodes of WordNet too."""
    hierarchy = Hierarchy.from_files(is_a, words, listing.classes)
    listing.published = hierarchy.splits
    if nodes:
        listing.hierarchy = hierarchy.describe()


def _wordnet(tree: Tree, file: str) -> Path | None:
    """A file of WordNet in the tree, or beside the archive that the tree is."""
    try:
        return tree.local(find(tree, file))
    except DataError:
        beside = tree.path.parent / file
        return beside if beside.exists() else None
