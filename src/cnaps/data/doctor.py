"""Which of Meta-Dataset's data sets are ready in a folder, and what is missing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cnaps.data.collection import METADATA, Collection
from cnaps.data.readers import META_DATASET, readers
from cnaps.data.readers.base import Part
from cnaps.errors import DataError


@dataclass(frozen=True)
class Finding:
    """The state of a data set: ready, downloaded, damaged or missing."""

    name: str
    state: str
    note: str
    missing: tuple[Part, ...] = ()


def examine(folder: str | Path) -> list[Finding]:
    """Look for collections and for downloads, in the folder itself and one level below."""
    folder = Path(folder)
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder")
    return [_examine(folder, name) for name in META_DATASET]


def _examine(folder: Path, name: str) -> Finding:
    if (folder / name / METADATA).exists():
        try:
            collection = Collection.open(folder / name)
        except DataError as error:
            return Finding(name, "damaged", str(error))
        note = f"{len(collection.classes):,} classes, {len(collection):,} images of {collection.size} pixels"
        return Finding(name, "ready", note)
    absent = {
        part: not any(any(place.glob(part.pattern)) for place in (folder, folder / name))
        for part in readers()[name].parts
    }
    missing = tuple(part for part, away in absent.items() if away)
    if not missing:
        source = folder / name if (folder / name).is_dir() else folder
        return Finding(name, "downloaded", f"run `cnaps data prepare {name} {source} {folder / name}`")
    return Finding(name, "missing", f"{len(missing)} of {len(absent)} files are not here:", missing)
