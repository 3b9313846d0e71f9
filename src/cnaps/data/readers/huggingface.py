"""A folder that Hugging Face ``datasets`` saved (Arrow, mapped), or its Parquet files (read into memory)."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

import pyarrow as pa

from cnaps.data.readers.base import Item, Listing, parsing
from cnaps.errors import DataError
from cnaps.images.archives import Tree
from cnaps.images.decoding import ImageLike


def read_huggingface(tree: Tree) -> Listing:
    """All splits of the data set together: they part images, and tasks need splits that part classes."""
    if not tree.path.is_dir():
        raise DataError(f"{tree.path} should be the folder that datasets' save_to_disk wrote")
    files = sorted(name for name in tree.names() if name.endswith((".arrow", ".parquet")))
    if not files:
        raise DataError(f"{tree.path} holds no .arrow or .parquet files of a Hugging Face data set")
    with parsing(tree, files[0]):
        image, label, names = _columns(_table(tree, files[0]).schema, tree)
    found: dict[str, list[Item]] = {name: [] for name in names}
    for file in files:
        table = _table(tree, file)
        if image not in table.column_names or label not in table.column_names:
            raise DataError(f"{file} in {tree.path} lacks the column {image!r} or {label!r}")
        with parsing(tree, file):
            values = table.column(label).to_pylist()
        for row, value in enumerate(values):
            if names and isinstance(value, int) and not 0 <= value < len(names):
                continue  # datasets mark images without a label by -1
            name = names[value] if names and isinstance(value, int) else str(value)
            found.setdefault(name, []).append(Item(f"{file}/{row}", file, (image, row)))
    classes = names or sorted(found)
    return Listing(tree, classes, [found[name] for name in classes], _load)


def _load(tree: Tree, item: Item) -> ImageLike:
    column, row = item.at
    value = _table(tree, item.file).column(column)[row].as_py()
    content = value.get("bytes") if isinstance(value, dict) else value
    if not isinstance(content, bytes):
        raise DataError("the image is not held in the file itself; embed it when saving")
    return content


def _columns(schema: pa.Schema, tree: Tree) -> tuple[str, str, list[str]]:
    """The columns of images and labels and the labels' names: as datasets noted them, or by common names."""
    noted = (schema.metadata or {}).get(b"huggingface")
    features: dict[str, Any] = json.loads(noted)["info"]["features"] if noted else {}
    kinds = {name: feature.get("_type") for name, feature in features.items() if isinstance(feature, dict)}
    images = [name for name, kind in kinds.items() if kind == "Image"]
    labels = [name for name, kind in kinds.items() if kind == "ClassLabel"]
    images += [name for name in ("image", "img") if name in schema.names]
    labels += [name for name in ("label", "labels", "fine_label", "class") if name in schema.names]
    if not images or not labels:
        raise DataError(f"{tree.path} has no columns of images and labels among {', '.join(schema.names)}")
    return images[0], labels[0], list(features.get(labels[0], {}).get("names", []))


@lru_cache(maxsize=256)
def _table(tree: Tree, name: str) -> pa.Table:
    path = str(tree.local(name))
    with parsing(tree, name):
        if name.endswith(".parquet"):
            import pyarrow.parquet as parquet

            return parquet.read_table(path)
        try:
            return pa.ipc.open_stream(pa.memory_map(path)).read_all()
        except pa.ArrowInvalid:
            return pa.ipc.open_file(pa.memory_map(path)).read_all()
