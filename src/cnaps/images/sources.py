"""Images and labels as other libraries hold them, told apart by what they can do: none of them is imported.

Tables (pandas, polars, Hugging Face `datasets`) and their columns, torch data sets and loaders, and a folder or a
zip with a sub-folder for each class.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from cnaps.errors import DataError, InputError
from cnaps.files import escaped
from cnaps.images.archives import open_tree
from cnaps.images.decoding import is_image
from cnaps.images.finding import PATHS, find_examples, find_images


def plain_images(X: Any, column: str | None = None) -> Any:
    """Images in the order given, as `stream` takes them; of a table those in `column`, or in the likely one."""
    if _is_torch_data(X):
        return (image for image, _ in _pairs(X))
    if isinstance(X, str | os.PathLike) and _is_archive(X):
        return [content for content, _ in _packed(Path(X))]
    if isinstance(X, str | os.PathLike) and Path(X).is_dir():
        return find_images([os.fspath(X)])
    return _values(X[image_column(X, column)] if columns_of(X) is not None else X)


def labelled_images(X: Any, y: Any, column: str | None = None) -> tuple[Any, Sequence[Any]]:
    """Images and their labels; `y` may be the name of a column of a table, or None where `X` has the labels."""
    names = columns_of(X)
    if isinstance(y, str) and names is not None:
        if y not in names:
            raise InputError(f"the table has no column {y!r} of labels; there are: {', '.join(map(str, names))}")
        return _values(X[image_column(X, column, y)]), _labels(X[y])
    if y is not None:
        return plain_images(X, column), _labels(y)
    if _is_torch_data(X):
        found = list(_pairs(X))
    elif isinstance(X, str | os.PathLike) and _is_archive(X):
        found = _packed(Path(X))
    elif isinstance(X, str | os.PathLike):
        found = list(find_examples(Path(X)))
    else:
        raise InputError(
            "labels are missing: call fit(images, labels); a folder or a zip with a sub-folder for each class, a "
            "torch data set and a loader have their own"
        )
    return [image for image, _ in found], _labels([label for _, label in found])


def columns_of(X: Any) -> list[Any] | None:
    """The names of the columns of a table; None for anything else."""
    names = getattr(X, "column_names", getattr(X, "columns", None))
    if isinstance(names, dict):
        raise InputError(f"there are several tables: choose one, such as data[{next(iter(names))!r}]")
    return None if names is None or callable(names) else list(names)


def image_column(X: Any, wanted: str | None, labels: str | None = None) -> Any:
    """Which column of a table holds the images: the one wanted, the only one, or one that is called so."""
    names = columns_of(X) or []
    if wanted is not None:
        if wanted not in names:
            raise InputError(f"the table has no column {wanted!r}; there are: {', '.join(map(str, names))}")
        return wanted
    others = [name for name in names if name != labels]
    called = [name for name in others if str(name).lower() in PATHS]
    for found in (others, called):
        if len(found) == 1:
            return found[0]
    raise InputError(
        f"which column holds the images, {', '.join(map(repr, others))}? Say so: FewShotClassifier(column=...)"
    )


def _labels(y: Any) -> Any:
    if hasattr(y, "nnz"):
        raise InputError("labels are a list, one for each image, not a sparse matrix")
    names = columns_of(y)
    if names is not None:
        if len(names) != 1:
            raise InputError(f"labels are one column, not {len(names)}")
        y = y[names[0]]
    return _values(y)


def _values(column: Any) -> Any:
    """A series as a list, a single column as a row; anything else as it is."""
    if hasattr(column, "nnz"):
        raise InputError("images are dense arrays, not a sparse matrix: use .toarray() and reshape to (N, H, W)")
    if isinstance(column, np.ndarray) and column.ndim == 2 and column.shape[1] == 1:
        return column[:, 0]
    return column.to_list() if hasattr(column, "to_list") else column


def _is_torch_data(X: Any) -> bool:
    return any(kind.__module__.startswith("torch.utils.data") for kind in type(X).__mro__)


def _pairs(data: Any) -> Iterator[tuple[Any, Any]]:
    """An image and its label at a time, of a data set, or of the batches of a loader."""
    items: Iterable[Any] = data if hasattr(data, "__iter__") else (data[i] for i in range(len(data)))
    for item in items:
        if not isinstance(item, list | tuple) or len(item) < 2:
            raise InputError(f"a torch data set gives pairs of an image and a label, not {type(item).__name__}")
        image, label = item[:2]
        if isinstance(image, list | tuple) or getattr(image, "ndim", 0) == 4:
            yield from zip(image, label, strict=True)
        else:
            yield image, label


def _is_archive(path: str | os.PathLike[str]) -> bool:
    return os.fspath(path).lower().endswith(".zip")


def _packed(path: Path) -> list[tuple[bytes, str]]:
    """What a zip holds: images, each with the name of its folder; a folder around all is passed over."""
    tree = open_tree(path, path.parent)
    names = sorted(name for name in tree.names() if is_image(name))
    parts = [PurePosixPath(name).parts for name in names]
    level = 1 if parts and len({part[0] for part in parts}) == 1 and min(map(len, parts)) > 2 else 0
    if not parts or any(len(part) < level + 2 for part in parts):
        loose = "some of its images lie in none" if parts else "there are no images in it"
        raise DataError(f"{path} must hold a folder of images for each class: {loose}")
    return [(tree.read(name), escaped(part[level])) for name, part in zip(names, parts, strict=True)]
