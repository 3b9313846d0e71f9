"""FGVCx Fungi: ``images/...`` with ``train.json`` and ``val.json`` in COCO's manner."""

from __future__ import annotations

from cnaps.data.archives import Tree
from cnaps.data.readers.base import Item, Part, Plan, Reader, locate, plan_files, read_json
from cnaps.errors import DataError


def read(tree: Tree) -> Plan:
    """Training and validation images together; classes are called ``0226.Name``, as names repeat."""
    files = locate(tree, "images")
    found: dict[str, list[Item]] = {}
    for part in ("train.json", "val.json"):
        content = read_json(tree, part)
        try:
            names = {
                category["id"]: f"{category['id']:04d}.{category['name']}" for category in content["categories"]
            }
            paths = {image["id"]: image["file_name"] for image in content["images"]}
            for name in names.values():
                found.setdefault(name, [])
            for annotation in content["annotations"]:
                path = paths[annotation["image_id"]]
                found[names[annotation["category_id"]]].append(Item(path, files.get(path, path)))
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"{part} in {tree.path} is not as published: {error!r}") from error
    return plan_files(tree, found)


_HOME = "https://labs.gbif.org/fgvcx/2018"
READER = Reader(
    "fungi",
    "FGVCx Fungi: 1394 species of mushrooms",
    read,
    licence="non-commercial research and education",
    parts=(
        Part("fungi_train_val.tgz", f"{_HOME}/fungi_train_val.tgz", ("images",)),
        Part("train_val_annotations.tgz", f"{_HOME}/train_val_annotations.tgz", ("train.json",)),
    ),
)
