"""Which of Meta-Dataset's data sets are ready in a folder, and what is missing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cnaps.data.collection import METADATA, Collection
from cnaps.data.readers import META_DATASET, READERS
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
    found: dict[str, Finding] = {}
    for metadata in sorted(folder.glob(f"[!.]*/{METADATA}")):
        path = metadata.parent
        try:
            opened = Collection.open(path)
        except DataError as error:
            found.setdefault(path.name, Finding(path.name, "damaged", str(error)))
            continue
        note = f"{path.name}: {len(opened.classes):,} classes, {len(opened):,} images of {opened.size} pixels"
        found[opened.name] = Finding(opened.name, "ready", note)
    return [found.get(name) or _downloads(folder, name) for name in META_DATASET]


def _downloads(folder: Path, name: str) -> Finding:
    parts = READERS[name].parts
    missing = tuple(
        part
        for part in parts
        if not any(any(place.glob(pattern)) for place in (folder, folder / name) for pattern in part.patterns)
    )
    if not missing:
        source = folder / name if (folder / name).is_dir() else folder
        dest = folder / (f"{name}-84" if source != folder else name)
        return Finding(name, "downloaded", f"run `cnaps data prepare {name} {source} {dest}`")
    return Finding(name, "missing", f"{len(missing)} of {len(parts)} files are not here:", missing)
