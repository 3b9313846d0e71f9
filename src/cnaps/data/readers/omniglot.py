"""Omniglot: ``images_background`` and ``images_evaluation``, in them ``<alphabet>/<character>/<image>``."""

from __future__ import annotations

from pathlib import PurePosixPath

from cnaps.data.archives import Tree
from cnaps.data.readers.base import Item, Part, Plan, Reader, alphabets, is_image, plan_files
from cnaps.errors import DataError

_HOME = "https://github.com/brendenlake/omniglot/raw/master/python"


def read(tree: Tree) -> Plan:
    """Classes are called ``Alphabet/character01``; strokes become white, as Meta-Dataset has them."""
    found: dict[str, list[Item]] = {}
    for name in tree.names():
        parts = PurePosixPath(name).parts
        if len(parts) >= 4 and parts[-4] in ("images_background", "images_evaluation") and is_image(name):
            character = "/".join(parts[-3:-1])
            found.setdefault(character, []).append(Item("/".join(parts[-3:]), name))
    if not found:
        raise DataError(f"{tree.path} holds neither images_background nor images_evaluation of Omniglot")
    plan = plan_files(tree, found, invert=True)
    plan.hierarchy = alphabets(plan.classes)
    return plan


READER = Reader(
    "omniglot",
    "Omniglot: handwritten characters of 50 alphabets",
    read,
    licence="MIT",
    parts=(
        Part("images_background.zip", f"{_HOME}/images_background.zip", ("images_background",)),
        Part("images_evaluation.zip", f"{_HOME}/images_evaluation.zip", ("images_evaluation",)),
    ),
)
