"""Data sets whose images lie in one place, with their classes and boxes in files beside them."""

from __future__ import annotations

import io
from collections.abc import Sequence

from cnaps.data.readers.base import (
    Item,
    Listing,
    below,
    find,
    list_files,
    parsing,
    pictures,
    read_json,
    read_lines,
)
from cnaps.data.readers.folders import class_folders
from cnaps.errors import DataError
from cnaps.images.archives import Tree

SCALE = 1.2  # of MSCOCO's boxes

# VGG Flower's file of labels has numbers alone; these are the names of 1..102.
_FLOWERS = """
    pink primrose, hard-leaved pocket orchid, canterbury bells, sweet pea, english marigold, tiger lily,
    moon orchid, bird of paradise, monkshood, globe thistle, snapdragon, colt's foot, king protea,
    spear thistle, yellow iris, globe-flower, purple coneflower, peruvian lily, balloon flower,
    giant white arum lily, fire lily, pincushion flower, fritillary, red ginger, grape hyacinth,
    corn poppy, prince of wales feathers, stemless gentian, artichoke, sweet william, carnation,
    garden phlox, love in the mist, mexican aster, alpine sea holly, ruby-lipped cattleya, cape flower,
    great masterwort, siam tulip, lenten rose, barbeton daisy, daffodil, sword lily, poinsettia,
    bolero deep blue, wallflower, marigold, buttercup, oxeye daisy, common dandelion, petunia,
    wild pansy, primula, sunflower, pelargonium, bishop of llandaff, gaura, geranium, orange dahlia,
    pink-yellow dahlia, cautleya spicata, japanese anemone, black-eyed susan, silverbush,
    californian poppy, osteospermum, spring crocus, bearded iris, windflower, tree poppy, gazania,
    azalea, water lily, rose, thorn apple, morning glory, passion flower, lotus, toad lily, anthurium,
    frangipani, clematis, hibiscus, columbine, desert-rose, tree mallow, magnolia, cyclamen, watercress,
    canna lily, hippeastrum, bee balm, ball moss, foxglove, bougainvillea, camellia, mallow,
    mexican petunia, bromelia, blanket flower, trumpet creeper, blackberry lily
"""
FLOWERS = [name.strip() for name in _FLOWERS.split(",")]


def read_aircraft(tree: Tree) -> Listing:
    """A variant is a class; images are cropped to the box, which also cuts off the copyright line."""
    files, boxes, found = below(tree, "images"), {}, []
    for line in read_lines(tree, "images_box.txt"):
        name, *numbers = line.split()
        if len(numbers) != 4 or not all(number.isdecimal() for number in numbers):
            raise DataError(f"images_box.txt in {tree.path}: expected a name and four numbers, not {line[:80]!r}")
        boxes[name] = tuple(map(int, numbers))
    for part in ("images_variant_trainval.txt", "images_variant_test.txt"):
        for line in read_lines(tree, part):
            name, _, variant = line.strip().partition(" ")
            if name not in boxes or f"images/{name}.jpg" not in files:
                raise DataError(f"{tree.path} has no image or no box for {name} of {part}")
            found.append((variant, Item(f"{name}.jpg", files[f"images/{name}.jpg"], boxes[name])))
    return list_files(tree, found)


def read_fungi(tree: Tree) -> Listing:
    """Training and validation images together; classes are called ``0226.Name``, as names repeat."""
    files = below(tree, "images")
    found: list[tuple[str, Item]] = []
    classes: set[str] = set()
    for part in ("train.json", "val.json"):
        content = read_json(tree, part)
        with parsing(tree, part):
            names = {entry["id"]: f"{entry['id']:04d}.{entry['name']}" for entry in content["categories"]}
            paths = {image["id"]: image["file_name"] for image in content["images"]}
            classes.update(names.values())
            for annotation in content["annotations"]:
                path = paths[annotation["image_id"]]
                found.append((names[annotation["category_id"]], Item(path, files.get(path, path))))
    return list_files(tree, found, sorted(classes))


def read_mscoco(tree: Tree) -> Listing:
    """A box is an image; categories stay in the order of the file, on which the published split rests."""
    files, found = below(tree, "train2017"), []
    content = read_json(tree, "instances_train2017.json")
    with parsing(tree, "instances_train2017.json"):
        names = {category["id"]: category["name"] for category in content["categories"]}
        for annotation in content["annotations"]:
            path = f"train2017/{annotation['image_id']:012d}.jpg"
            item = Item(f"{path}#{annotation['id']}", files.get(path, path), enlarge(annotation["bbox"]))
            found.append((names[annotation["category_id"]], item))
    return list_files(tree, found, list(names.values()))


def enlarge(box: Sequence[float]) -> tuple[int, int, int, int]:
    """From (x, y, width, height) to whole pixels (left, top, right, bottom), 1.2 times as large.

    COCO counts from the centres of pixels and Pillow from their corners: hence the halves.

    >>> enlarge([100, 50, 22, 12])
    (97, 48, 125, 64)
    """
    x, y, width, height = box
    x, y = x - 0.5 * width * (SCALE - 1), y - 0.5 * height * (SCALE - 1)
    right, bottom = x + SCALE * width, y + SCALE * height
    return round(x - 0.5), round(y - 0.5), round(right - 0.5) + 1, round(bottom - 0.5) + 1


def read_flowers(tree: Tree) -> Listing:
    """Classes are called ``001.pink primrose``; folders with the numbers 1..102 are read as well."""
    if not any(name.endswith("imagelabels.mat") for name in tree.names()):
        folders = ((_flower(int(name)) if name.isdecimal() else name, item) for name, item in class_folders(tree))
        return list_files(tree, [(label, _in_class(label, item.file)) for label, item in folders])
    from scipy.io import loadmat

    with parsing(tree, "imagelabels.mat"):
        numbers = loadmat(io.BytesIO(tree.read(find(tree, "imagelabels.mat"))))["labels"].ravel().tolist()
    found = []
    for name, parts in pictures(tree):
        if parts[-1].startswith("image_"):
            position = parts[-1].removeprefix("image_").partition(".")[0]
            if not position.isdecimal() or not 1 <= int(position) <= len(numbers):
                raise DataError(f"imagelabels.mat has {len(numbers)} labels, and none for {name}")
            label = _flower(int(numbers[int(position) - 1]))
            found.append((label, _in_class(label, name)))
    return list_files(tree, found)


def _in_class(label: str, file: str) -> Item:
    return Item(f"{label}/{file.rpartition('/')[2]}", file)


def _flower(number: int) -> str:
    if not 1 <= number <= len(FLOWERS):
        raise DataError(f"VGG Flower has the classes 1..{len(FLOWERS)}, not {number}")
    return f"{number:03d}.{FLOWERS[number - 1]}"
