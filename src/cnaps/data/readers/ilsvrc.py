"""ILSVRC-2012: training images by WordNet id, with ``wordnet.is_a.txt`` and ``words.txt`` beside them.

They come as a tar of a thousand tars (``ILSVRC2012_img_train.tar``), as those tars, or as class folders.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from cnaps.data.archives import Tree
from cnaps.data.readers.base import Item, Part, Plan, Reader, Splits, find, is_image, plan_files
from cnaps.data.wordnet import Hierarchy
from cnaps.errors import DataError

_WNID = re.compile(r"n\d{8}")


def read(tree: Tree) -> Plan:
    """Classes are WordNet ids; what ``*_duplicates.txt`` list as shared with other data sets is left out."""
    skipped = _duplicates(tree)
    found: dict[str, list[Item]] = {}
    for name in tree.names():
        path = PurePosixPath(name)
        wnid = _WNID.match(path.name) or _WNID.fullmatch(path.parent.name)
        if wnid and is_image(name) and path.name not in skipped:
            found.setdefault(wnid.group(), []).append(Item(f"{wnid.group()}/{path.name}", name))
    plan = plan_files(tree, found)
    hierarchy = _hierarchy(tree, plan.classes)
    if hierarchy:
        plan.hierarchy = hierarchy.describe()

    def published() -> Splits:
        if hierarchy is None:
            raise DataError(
                f"the published split needs wordnet.is_a.txt and words.txt beside the images in {tree.path}; "
                "without them choose --splits random, none, or a JSON file"
            )
        return hierarchy.splits()

    plan.published = published
    return plan


def _hierarchy(tree: Tree, classes: list[str]) -> Hierarchy | None:
    """WordNet from the files in the tree, or beside the archive that it is."""
    paths = []
    for file in ("wordnet.is_a.txt", "words.txt"):
        try:
            path = tree.local(find(tree, file))
        except DataError:
            path = tree.path.parent / file
        if path is None or not path.exists():
            return None
        paths.append(path)
    return Hierarchy.from_files(paths[0], paths[1], classes)


def _duplicates(tree: Tree) -> set[str]:
    """Lines like ``n02355227/n02355227_3688.JPEG  # name in the other data set``."""
    listed: set[str] = set()
    for name in tree.names():
        if name.endswith("_duplicates.txt"):
            lines = tree.read(name).decode("utf-8", "replace").splitlines()
            listed |= {PurePosixPath(line.split("#")[0].strip()).name for line in lines}
    return listed


READER = Reader(
    "ilsvrc_2012",
    "ILSVRC-2012: photographs of 1000 WordNet classes",
    read,
    licence="non-commercial research and education",
    parts=(
        Part(
            "ILSVRC2012_img_train.tar",
            "https://image-net.org/challenges/LSVRC/2012/2012-downloads.php",
            ("n????????.tar", "n????????", "ILSVRC2012_img_train"),
        ),
        Part("wordnet.is_a.txt", "https://image-net.org/data/wordnet.is_a.txt"),
        Part("words.txt", "https://image-net.org/data/words.txt"),
    ),
)
