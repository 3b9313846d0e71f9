"""FGVC Aircraft: ``data/images/*.jpg`` with their variants and bounding boxes in text files beside them."""

from __future__ import annotations

from cnaps.data.archives import Tree
from cnaps.data.readers.base import Item, Part, Plan, Reader, locate, plan_files, read_text
from cnaps.errors import DataError


def read(tree: Tree) -> Plan:
    """A variant is a class; images are cropped to the box, which also cuts off the copyright line."""
    files = locate(tree, "images")
    boxes = {}
    for line in read_text(tree, "images_box.txt").splitlines():
        name, *numbers = line.split()
        if len(numbers) != 4 or not all(number.isdecimal() for number in numbers):
            raise DataError(f"images_box.txt in {tree.path}: expected a name and four numbers, not {line[:80]!r}")
        boxes[name] = (int(numbers[0]), int(numbers[1]), int(numbers[2]), int(numbers[3]))
    found: dict[str, list[Item]] = {}
    for part in ("trainval", "test"):
        for line in read_text(tree, f"images_variant_{part}.txt").splitlines():
            name, _, variant = line.strip().partition(" ")
            if name not in boxes or f"images/{name}.jpg" not in files:
                raise DataError(f"{tree.path} has no image or no box for {name} of images_variant_{part}.txt")
            found.setdefault(variant, []).append(Item(f"{name}.jpg", files[f"images/{name}.jpg"], boxes[name]))
    return plan_files(tree, found)


_HOME = "https://www.robots.ox.ac.uk/~vgg/data/fgvc-aircraft/archives"
READER = Reader(
    "aircraft",
    "FGVC Aircraft: 100 variants of aircraft",
    read,
    licence="non-commercial research",
    parts=(Part("fgvc-aircraft-2013b.tar.gz", f"{_HOME}/fgvc-aircraft-2013b.tar.gz", ("fgvc-aircraft-2013b",)),),
)
