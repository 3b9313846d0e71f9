"""Class folders, as they are or in an archive: anybody's own, and the sets that ship so."""

from __future__ import annotations

import csv
import io
from pathlib import Path, PurePosixPath

from cnaps.data.archives import Folder, Tree
from cnaps.data.readers.base import Item, Plan, Reader, class_folders, is_image, plan_files
from cnaps.errors import DataError


def read_folder(tree: Tree) -> Plan:
    """A class a folder; one folder around them all is looked through."""
    found = class_folders(tree)
    while len(found) == 1:
        (only,) = found.values()
        inner: dict[str, list[Item]] = {}
        for item in only:
            rest = PurePosixPath(item.key).parts[1:]
            if len(rest) < 2:
                return plan_files(tree, found)
            inner.setdefault(rest[0], []).append(Item("/".join(rest), item.file))
        found = inner
    return plan_files(tree, found)


def read_csv(path: Path) -> Plan:
    """A CSV with a line an image: its path, seen from the CSV, and its label; a heading is optional."""
    folder = Folder(path.parent)
    try:
        rows = [row for row in csv.reader(io.StringIO(path.read_text(encoding="utf-8-sig"))) if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"cannot read {path}: {error}") from error
    column, label = 0, 1
    if rows and not is_image(rows[0][0]):
        heading = [name.strip().lower() for name in rows.pop(0)]
        column = next(
            (heading.index(name) for name in ("path", "file", "filename", "image") if name in heading), 0
        )
        label = next((heading.index(name) for name in ("label", "class", "category") if name in heading), 1)
    found: dict[str, list[Item]] = {}
    for number, row in enumerate(rows, 1):
        if len(row) <= max(column, label) or not row[label].strip():
            raise DataError(f"{path}, image {number}: expected a path and a label, not {','.join(row)[:80]!r}")
        name = PurePosixPath(row[column].strip())
        if name.is_absolute() or ".." in name.parts:
            raise DataError(f"{path}, image {number}: {name} leads out of the folder {path.parent}")
        found.setdefault(row[label].strip(), []).append(Item(str(name), str(name)))
    return plan_files(folder, found)


READER = Reader(
    "folder",
    "your own images: class folders, an archive of them, or a CSV of path and label",
    read_folder,
    default_splits="none",
)
