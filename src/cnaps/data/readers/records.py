"""The TFRecord files of Meta-Dataset: a file a class, with ``dataset_spec.json``."""

from __future__ import annotations

import mmap
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any

from cnaps.data.readers.base import Item, Listing, Splits, alphabets, find, parsing, read_json
from cnaps.data.tfrecord import parse_example, record, scan
from cnaps.data.wordnet import Hierarchy
from cnaps.errors import DataError
from cnaps.images.archives import Tree
from cnaps.images.decoding import ImageLike


def read_records(tree: Tree) -> Listing:
    """Names, splits and hierarchy are those of the specification."""
    spec = read_json(tree, "dataset_spec.json")
    folder = find(tree, "dataset_spec.json").removesuffix("dataset_spec.json")
    hierarchy: dict[str, Any] | None = None
    with parsing(tree, "dataset_spec.json"):
        ids = sorted(spec["class_names"], key=int)
        classes = [str(spec["class_names"][index]) for index in ids]
        pattern, name = spec.get("file_pattern", "{}.tfrecords"), str(spec["name"])
        files = [folder + pattern.replace("{}", index) for index in ids]
        if "split_subgraphs" in spec:
            nodes = [node for part in spec["split_subgraphs"].values() for node in part]
            children: dict[str, set[str]] = {node["wn_id"]: set() for node in nodes}
            for node in nodes:
                children[node["wn_id"]].update(node["children_ids"])
            wordnet = Hierarchy(children, {node["wn_id"]: node["words"] for node in nodes}, classes)
            hierarchy, splits = wordnet.describe(), wordnet.splits()
        elif "classes_per_superclass" in spec:
            supers = sorted(spec["classes_per_superclass"], key=int)
            bounds = [0, *accumulate(spec["classes_per_superclass"][index] for index in supers)]
            for index, (start, stop) in zip(supers, pairwise(bounds), strict=True):
                name_of = spec["superclass_names"][index]
                for at in range(start, stop):  # "Greek-character01" there
                    classes[at] = f"{name_of}/{classes[at].removeprefix(f'{name_of}-')}"
            hierarchy = alphabets(classes)
            splits = _consecutive(spec["superclasses_per_split"], bounds)
        else:
            splits = _consecutive(spec["classes_per_split"], range(len(classes) + 1))
    missing = sorted(set(files) - set(tree.names()))
    if missing:
        raise DataError(f"{tree.path} lacks {len(missing)} of {len(files)} record files, {missing[0]} among them")
    items = []
    for label, file in zip(classes, files, strict=True):
        spans = scan(_content(tree, file), f"{file} in {tree.path}")
        items.append([Item(f"{label}/{position}", file, span) for position, span in enumerate(spans)])
    return Listing(tree, classes, items, _load, lambda: splits, hierarchy, name)


def _load(tree: Tree, item: Item) -> ImageLike:
    image = parse_example(record(_content(tree, item.file), *item.at)).get("image")
    if not image:
        raise DataError("the record holds no image")
    return image[0]


@lru_cache(maxsize=4)  # images come class by class
def _content(tree: Tree, name: str) -> Any:
    path = tree.local(name)
    if path is None or path.stat().st_size == 0:  # an empty file cannot be mapped
        return tree.read(name)
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def _consecutive(per_split: dict[str, int], bounds: Any) -> Splits:
    """Classes come in the order of the splits; ``bounds`` are the first classes of groups."""
    ends = list(accumulate(per_split.get(split, 0) for split in ("TRAIN", "VALID", "TEST")))
    ranges = zip(("train", "valid", "test"), [0, *ends], ends, strict=False)
    return {split: list(range(bounds[start], bounds[stop])) for split, start, stop in ranges if stop > start}
