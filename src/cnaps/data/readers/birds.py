"""CUB-200-2011: ``CUB_200_2011/images/001.Black_footed_Albatross/<image>.jpg``."""

from __future__ import annotations

from cnaps.data.archives import Tree
from cnaps.data.readers.base import Part, Plan, Reader, class_folders, plan_files


def read(tree: Tree) -> Plan:
    """The folders below ``images``, or class folders alone."""
    return plan_files(tree, class_folders(tree, below="images"))


READER = Reader(
    "cu_birds",
    "CUB-200-2011: birds of 200 species",
    read,
    licence="non-commercial research and education",
    parts=(Part("CUB_200_2011.tgz", "https://data.caltech.edu/records/65de6-vp158", ("CUB_200_2011",)),),
)
