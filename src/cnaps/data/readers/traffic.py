"""GTSRB traffic signs: ``GTSRB/Final_Training/Images/00000/<track>_<frame>.ppm`` with a CSV beside them."""

from __future__ import annotations

from cnaps.data.archives import Tree
from cnaps.data.readers.base import Part, Plan, Reader, class_folders, plan_files


def read(tree: Tree) -> Plan:
    """The folders below ``Images``, or class folders alone; whole images, not the boxes of the CSV files."""
    return plan_files(tree, class_folders(tree, below="Images"))


READER = Reader(
    "traffic_sign",
    "GTSRB: 43 German traffic signs",
    read,
    licence="research",
    parts=(
        Part(
            "GTSRB_Final_Training_Images.zip",
            "https://sid.erda.dk/public/archives/daaeac0d7ce1152aea9b61d9f1e19370/GTSRB_Final_Training_Images.zip",
            ("GTSRB*Training_Images.zip", "GTSRB"),
        ),
    ),
)
