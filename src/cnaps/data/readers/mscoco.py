"""MSCOCO 2017: ``train2017/*.jpg`` with the boxes of ``annotations/instances_train2017.json``."""

from __future__ import annotations

from cnaps.data.archives import Tree
from cnaps.data.readers.base import Item, Part, Plan, Reader, locate, plan_files, read_json
from cnaps.errors import DataError

SCALE = 1.2


def enlarge(box: list[float]) -> tuple[int, int, int, int]:
    """From (x, y, width, height) to whole pixels (left, top, right, bottom), 1.2 times as large.

    COCO counts from the centres of pixels and Pillow from their corners: hence the halves.

    >>> enlarge([100, 50, 22, 12])
    (97, 48, 125, 64)
    """
    x, y, width, height = box
    x, y = x - 0.5 * width * (SCALE - 1), y - 0.5 * height * (SCALE - 1)
    right, bottom = x + SCALE * width, y + SCALE * height
    return round(x - 0.5), round(y - 0.5), round(right - 0.5) + 1, round(bottom - 0.5) + 1


def read(tree: Tree) -> Plan:
    """A box is an image; categories stay in the order of the file, on which the published split rests."""
    files = locate(tree, "train2017")
    content = read_json(tree, "instances_train2017.json")
    try:
        names = {category["id"]: category["name"] for category in content["categories"]}
        found: dict[str, list[Item]] = {name: [] for name in names.values()}
        for annotation in content["annotations"]:
            path = f"train2017/{annotation['image_id']:012d}.jpg"
            item = Item(f"{path}#{annotation['id']}", files.get(path, path), enlarge(annotation["bbox"]))
            found[names[annotation["category_id"]]].append(item)
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"instances_train2017.json in {tree.path} is not as published: {error!r}") from error
    return plan_files(tree, found, in_order=True)


_HOME = "http://images.cocodataset.org"
READER = Reader(
    "mscoco",
    "MSCOCO 2017: objects of 80 categories, cut out of photographs",
    read,
    licence="annotations CC BY 4.0; images under their owners' Flickr terms",
    parts=(
        Part("train2017.zip", f"{_HOME}/zips/train2017.zip", ("train2017",)),
        Part(
            "annotations_trainval2017.zip", f"{_HOME}/annotations/annotations_trainval2017.zip", ("annotations",)
        ),
    ),
)
