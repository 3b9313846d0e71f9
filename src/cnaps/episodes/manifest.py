"""Tasks written down by the names of their images, so that anybody scores the same ones.

A manifest is a text file of JSON lines. The first holds the format, the protocol and the fingerprints of the
collections; every other line is a task: class names, and for each class the keys of its images.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cnaps import values
from cnaps.episodes.task import TaskDescription
from cnaps.errors import DataError
from cnaps.files import atomic_path, parse_json, read_bytes

if TYPE_CHECKING:
    from cnaps.data.collection import Collection

FORMAT, VERSION = "cnaps-tasks", 1


def write_manifest(
    path: str | Path,
    descriptions: Iterable[TaskDescription],
    collections: Mapping[str, Collection],
    protocol: Mapping[str, object] | None = None,
) -> None:
    """Write tasks as a manifest; ``protocol`` (a sampler's) says how they were drawn."""
    header = {
        "format": FORMAT,
        "version": VERSION,
        "protocol": dict(protocol or {}),
        "collections": {name: collections[name].fingerprint for name in sorted(collections)},
    }
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        file.write(_line(header))
        for described in descriptions:
            collection = collections[described.collection]
            line = {
                "index": described.index,
                "collection": described.collection,
                "classes": [collection.classes[index] for index in described.classes],
                "context": [collection.keys(rows) for rows in described.context],
                "targets": [collection.keys(rows) for rows in described.targets],
            }
            file.write(_line(line))


def read_manifest(path: str | Path, collections: Mapping[str, Collection]) -> list[TaskDescription]:
    """The tasks of a manifest; a DataError says why where it does not fit the collections."""
    try:
        header, *lines = read_bytes(path).decode("utf-8").split("\n")
    except (OSError, ValueError) as error:
        raise DataError(f"cannot read the manifest {path}: {error}") from error
    _check_header(path, _parse(path, 1, header), collections)
    finder = lru_cache(maxsize=None)(_finder)
    return [
        _describe(f"{path}, line {number}", _parse(path, number, line), collections, finder)
        for number, line in enumerate(lines, 2)
        if line
    ]


def _check_header(path: str | Path, header: dict[str, Any], collections: Mapping[str, Collection]) -> None:
    fingerprints = header.get("collections")
    if header.get("format") != FORMAT or not isinstance(fingerprints, dict):
        raise DataError(f"{path} is no manifest of tasks; make one with `cnaps tasks sample`")
    if header.get("version") != VERSION:
        raise DataError(f"{path} has version {header.get('version')}, and this program reads version {VERSION}")
    missing = sorted(set(fingerprints) - set(collections))
    if missing:
        raise DataError(f"{path} needs the collections {', '.join(missing)} too; give their folders")
    for name, wanted in fingerprints.items():
        found = collections[name]
        if found.fingerprint != wanted:
            raise DataError(
                f"{path} was made from other data: it needs {name} with fingerprint {str(wanted)[:16]}, but "
                f"{found.path} has {found.fingerprint[:16]}: its images, size, classes or splits differ; "
                "prepare it as it was, or sample new tasks"
            )


def _describe(
    where: str,
    line: dict[str, Any],
    collections: Mapping[str, Collection],
    finder: Callable[[Collection, str], tuple[int, dict[str, int]]],
) -> TaskDescription:
    try:
        collection = collections[line["collection"]]
        found = [finder(collection, values.name(name, "a class")) for name in line["classes"]]
        if len({index for index, _ in found}) < len(found):
            raise ValueError("a class comes twice")
        context, targets = (
            tuple(tuple(rows[key] for key in keys) for (_, rows), keys in zip(found, line[part], strict=True))
            for part in ("context", "targets")
        )
        if not found or not all(map(len, context)):
            raise DataError(f"{where}: a task needs classes, and every class a context image")
        number, classes = values.count(line["index"], "index"), tuple(index for index, _ in found)
        return TaskDescription(number, collection.name, classes, context, targets)
    except KeyError as error:
        raise DataError(f"{where}: there is no {error.args[0]!r}") from error
    except RecursionError as error:
        raise DataError(f"{where} is nested too deep") from error
    except (TypeError, ValueError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{where} is damaged: {error}") from error


def _finder(collection: Collection, name: str) -> tuple[int, dict[str, int]]:
    """A class's index, and the row of each of its keys."""
    try:
        index = collection.classes.index(name)
    except ValueError:
        raise KeyError(f"class {name} in {collection.name}") from None
    rows = collection.rows(index)
    return index, dict(zip(collection.keys(rows), rows, strict=True))


def _parse(path: str | Path, number: int, line: str) -> dict[str, Any]:
    try:
        value = parse_json(line)
    except ValueError as error:
        raise DataError(f"{path}, line {number} is no JSON: {error}") from error
    if not isinstance(value, dict):
        raise DataError(f"{path}, line {number} is no JSON object")
    return value


def _line(value: dict[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n"
