"""A project as a zip file: folders of examples with people's own file names, and a `project.json` that maps them.

Whatever is written can be read back: the limits of reading follow from those of a project. What a zip file says of
itself is not believed; bytes are counted as they come.
"""

from __future__ import annotations

import re
import struct
import unicodedata
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, Any

from cnaps.errors import CnapsError, DataError, explained
from cnaps.images.decoding import is_image
from cnaps.serving.decoding import MAX_BYTES
from cnaps.studio.description import (
    MAX_DESCRIPTION,
    MAX_IMAGES,
    MAX_TASK,
    POOL,
    TEST,
    encode,
    held_out,
    numbered,
    parse,
)
from cnaps.studio.store import Project

MAX_ZIP = MAX_IMAGES * (MAX_BYTES + 2_000) + MAX_TASK + MAX_DESCRIPTION  # bytes of the largest project
_DESCRIPTION, _TASK, _OLD_TASK = "project.json", "task.safetensors", "task"
_TRAYS = {TEST: "tray", POOL: "unlabelled"}
_PIECE = 1 << 20  # bytes that are read at once
_DIRECTORY = 10_000_000  # bytes of the list of contents: that of the largest project has half of it
_SLACK = 200_000_000  # bytes that a zip file may unpack to, however small it is
# what the reader of the standard library makes of files that were made to confuse it
_BAD = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    LookupError,
    RuntimeError,
    ValueError,
    OverflowError,
    EOFError,
)
_DEVICES = re.compile(r"con|prn|aux|nul|com[0-9]|lpt[0-9]", re.IGNORECASE)  # no names of files on Windows
_BYTES = 180  # of a file's name without its ending
_MAGIC = {
    ".png": re.compile(rb"\x89PNG"),
    ".jpg": re.compile(rb"\xff\xd8"),
    ".gif": re.compile(rb"GIF8"),
    ".webp": re.compile(rb"RIFF.{4}WEBP", re.DOTALL),
    ".bmp": re.compile(rb"BM"),
    ".tif": re.compile(rb"II\*\0|MM\0\*"),
}


def write_zip(project: Project, target: IO[bytes]) -> None:
    """The whole project, images as they came."""
    about = project.describe()
    with explained(CnapsError, "the project cannot be exported", OSError):
        paths = _paths(project, about)
        for entry in about["images"]:
            entry["path"] = paths[entry["id"]]
        with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as archive:
            archive.writestr(_DESCRIPTION, encode(about))
            for key, path in paths.items():
                archive.write(project.files.original(key), path)
            if about["task"]:
                archive.write(project.files.task(about["task"]), _TASK)


def read_zip(project: Project, source: IO[bytes], count_classes: Callable[[bytes], int]) -> dict[str, list[Any]]:
    """Merge a project's zip file into a project, as one change: classes by name, images by content.

    `count_classes` says how many classes a task file has, or raises.
    """
    with open_zip(source) as archive:
        about = parse(archive.read(_DESCRIPTION, MAX_DESCRIPTION))
        learned = [entry["learned"] for entry in about["classes"] if entry["learned"]]
        task = b""
        if learned:
            task = archive.read(_TASK if _TASK in archive.names else _OLD_TASK, MAX_TASK)
            if max(row for row, _ in learned) >= count_classes(task):
                raise DataError("its task file does not fit")

        def images() -> Iterator[tuple[str, bytes, str]]:
            for entry in about["images"]:
                try:
                    data = archive.read(entry["path"], MAX_BYTES)
                except Spent:
                    raise
                except DataError:
                    data = b""  # refused by its name
                yield entry["name"], data, entry["place"]

        return project.merge(about, task, images())


class Spent(DataError):
    """A zip file unpacks to more than anything of its size should."""


class Archive:
    """A zip file from outside: only what is stored or deflated, each part and the whole within limits."""

    def __init__(self, archive: zipfile.ZipFile, budget: int) -> None:
        self._archive, self._budget = archive, budget
        self.names = archive.namelist()

    def read(self, name: str, limit: int) -> bytes:
        """A part, unless it unpacks to more than `limit` bytes."""
        with _explained():
            info = self._archive.getinfo(name)
            if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise DataError("parts of the zip file are compressed in a way that is not read: use deflate")
            data = bytearray()
            with self._archive.open(info) as file:
                while piece := file.read(_PIECE):
                    data += piece
                    self._budget -= len(piece)
                    if self._budget < 0:
                        raise Spent("the zip file unpacks to far more than its size")
                    if len(data) > limit:
                        raise DataError(f"a part of the zip file has more than {limit // 1_000_000} MB")
            return bytes(data)


@contextmanager
def open_zip(source: IO[bytes]) -> Iterator[Archive]:
    """A zip file from outside."""
    size = source.seek(0, 2)
    with _explained(), zipfile.ZipFile(_Careful(source)) as archive:
        yield Archive(archive, 10 * size + _SLACK)


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except CnapsError:
        raise
    except _BAD as error:
        raise DataError(f"this is no zip file of the studio, or a damaged one: {error}") from error


class _Careful:
    """A file that is not read in one gulp: a list of contents as large as the file would fill the memory."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.tell, self.close = file.tell, lambda: None

    def seek(self, offset: int, whence: int = 0) -> int:
        if whence == 0 and offset < 0:
            raise zipfile.BadZipFile("a part lies before its beginning")
        return self._file.seek(offset, whence)

    def seekable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        if size > _DIRECTORY:
            raise DataError("the list of contents of the zip file is too large")
        return self._file.read(size if size >= 0 else _DIRECTORY)


def _paths(project: Project, about: dict[str, Any]) -> dict[str, str]:
    """Where each image goes, safe on every file system and unique.

    examples/CLASS/NAME and held out/CLASS/NAME are folders as every command takes them; the trays lie beside them.
    """
    taken: dict[str, int] = {}
    folders = dict(_TRAYS)
    for entry in about["classes"]:
        name = numbered(safe_name(entry["name"]), taken)
        folders |= {entry["id"]: f"examples/{name}", held_out(entry["id"]): f"held out/{name}"}
    inside: dict[str, dict[str, int]] = {place: {} for place in folders}
    paths = {}
    for entry in about["images"]:
        path = PurePosixPath(safe_name(entry["name"]))
        if not is_image(str(path)):
            path = PurePosixPath(f"{path}{_ending(project.files.original(entry['id']))}")
        file = numbered(path.stem, inside[entry["place"]], path.suffix)
        paths[entry["id"]] = f"{folders[entry['place']]}/{file}"
    return paths


def safe_name(name: str) -> str:
    """A name that any file system takes, as near to the one given as can be."""
    name = re.sub(r'[<>:"/\\|?*]', "_", unicodedata.normalize("NFC", name)).strip(" .") or "image"
    stem, dot, ending = name.rpartition(".") if re.search(r"\.[A-Za-z0-9]{1,8}$", name) else (name, "", "")
    stem = stem.encode()[:_BYTES].decode(errors="ignore").rstrip(" .") or "image"
    return f"{'_' if _DEVICES.fullmatch(stem.split('.')[0]) else ''}{stem}{dot}{ending}"


def _ending(path: Path) -> str:
    with path.open("rb") as file:
        start = file.read(12)
    return next((ending for ending, magic in _MAGIC.items() if magic.match(start)), "")
