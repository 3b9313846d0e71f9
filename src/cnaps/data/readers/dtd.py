"""Describable Textures: ``dtd/images/<texture>/<image>.jpg``."""

from __future__ import annotations

from cnaps.data.archives import Tree
from cnaps.data.readers.base import Part, Plan, Reader, class_folders, plan_files


def read(tree: Tree) -> Plan:
    """The folders below ``images``, or class folders alone."""
    return plan_files(tree, class_folders(tree, below="images"))


READER = Reader(
    "dtd",
    "Describable Textures: 47 textures",
    read,
    licence="research",
    parts=(
        Part(
            "dtd-r1.0.1.tar.gz",
            "https://www.robots.ox.ac.uk/~vgg/data/dtd/download/dtd-r1.0.1.tar.gz",
            ("dtd/images",),
        ),
    ),
)
