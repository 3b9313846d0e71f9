"""One view of a folder, a tar and a zip: names, and the bytes of a name.

Nothing is ever unpacked to a place that an archive names, so nothing can escape; links, devices and odd names
are passed over; sizes are limited. A view holds paths and offsets only and pickles to worker processes.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, NamedTuple

from cnaps.errors import DataError, explained
from cnaps.files import atomic_path

MAX_FILE = 4 << 30  # bytes of one file read into memory
MAX_UNPACKED = 1 << 40  # bytes that a compressed tar may grow to
_RATIO = 200  # a zip member or a gzip file that grows more than this is no image but a bomb
_COMPRESSED: dict[bytes, Any] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ\x00": lzma.open}
_ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".zip")


class Place(NamedTuple):
    """Where a file lies: a range of bytes in a tar, a member of a zip, or the whole of a path."""

    path: Path
    span: tuple[int, int] | None = None  # offset and size
    member: zipfile.ZipInfo | None = None


class Tree:
    """Files by their relative names, with ``/`` between folders; hidden ones are passed over.

    ``files`` tells the place of those in archives; None for those that lie in the folder ``path`` itself.
    """

    def __init__(self, path: Path, files: dict[str, Place | None]) -> None:
        self.path, self.files = path, files

    def names(self) -> Iterable[str]:
        """All file names."""
        return self.files

    def read(self, name: str) -> bytes:
        """The content of a file."""
        if name not in self.files:
            if name.startswith("/") or ".." in PurePosixPath(name).parts:
                raise DataError(f"{name} leads out of {self.path}")
            raise DataError(f"{self.path} has no file {name}")
        path, span, member = self.files[name] or Place(self.path / name)
        place = f"{name} in {path}" if span or member else str(path)
        try:
            if member:
                return _read_member(path, member, place)
            if path.exists() and not path.is_file():
                raise DataError(f"{place} is no regular file")  # to open a pipe is to wait for its writer
            held = path.stat().st_size
            offset, size = span or (0, held)
            _check_size(size, place)
            if offset + size > held:
                raise DataError(f"{place} is cut short")
            with path.open("rb", buffering=0) as file:  # not kept open: a data set may come in a thousand tars
                file.seek(offset)
                return file.read(size)
        except (OSError, OverflowError) as error:
            raise DataError(f"cannot read {place}: {getattr(error, 'strerror', None) or error}") from error

    def local(self, name: str) -> Path | None:
        """The path of a file where it lies on disk as it is, so that it can be memory-mapped."""
        return self.path / name if self.files[name] is None else None


def open_tree(path: str | Path, scratch: Path, parts: Iterable[str] = ()) -> Tree:
    """Open a folder, tar or zip; a compressed tar is first unpacked to one plain tar in ``scratch``.

    Archives in a folder whose names fit one of the patterns ``parts`` show their content as the folder's own.
    """
    path = Path(path)
    if not path.exists():
        raise DataError(f"{path} does not exist")
    if not path.is_dir() and not path.is_file():
        raise DataError(f"{path} is no regular file")
    if path.is_dir():
        files: dict[str, Place | None] = dict.fromkeys(files_below(path))
        packed = {item for part in parts for item in path.glob(part) if item.name.lower().endswith(_ARCHIVES)}
        for item in sorted(item for item in packed if item.is_file()):
            files |= open_tree(item, scratch).files
        return Tree(path, files)
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                members = [info for info in archive.infolist() if _is_file(info)]
            _check_zip(path, members)
            return Tree(
                path, {name: Place(path, member=info) for info in members if (name := _safe(info.filename))}
            )
        plain = _plain_tar(path, scratch)
        with plain.open("rb") as file:
            return Tree(path, {name: Place(plain, span) for name, span in _scan(file, 0, "")})
    except DataError:
        raise
    except Exception as error:  # of damaged archives zipfile and tarfile make almost anything
        raise DataError(f"cannot read the archive {path}: {error or type(error).__name__}") from error


def files_below(folder: Path) -> Iterator[str]:
    """The names of all files in a folder and below, sorted; links to folders are not followed."""
    for place, below, files in os.walk(folder):
        below[:] = sorted(filter(_wanted, below))
        inside = Path(place).relative_to(folder)
        yield from ((inside / name).as_posix() for name in sorted(filter(_wanted, files)))


def _scan(file: BinaryIO, start: int, prefix: str) -> Iterator[tuple[str, tuple[int, int]]]:
    """Names and spans in a plain tar; the tars inside it (as ImageNet has them) are folders of their stem."""
    file.seek(start)
    nested: list[tuple[int, str]] = []
    with tarfile.open(fileobj=file, mode="r:") as archive:
        for member in archive:
            name = _safe(prefix + member.name)
            if name is None or not member.isreg() or member.issparse():
                continue
            if not prefix and name.endswith(".tar"):
                nested.append((member.offset_data, name.removesuffix(".tar") + "/"))
            else:
                yield name, (member.offset_data, member.size)
    for offset, inside in nested:
        yield from _scan(file, offset, inside)


def _plain_tar(path: Path, scratch: Path) -> Path:
    with path.open("rb") as file:
        magic = file.read(6)
    opener = next((opener for start, opener in _COMPRESSED.items() if magic.startswith(start)), None)
    if opener is None:
        return path
    plain = scratch / f"{path.name}.{path.stat().st_size}.tar"
    if not plain.exists():
        limit = min(MAX_UNPACKED, (1 << 26) + _RATIO * path.stat().st_size)
        with atomic_path(plain) as temporary, temporary.open("wb") as target:
            for block in _blocks(opener, path):
                target.write(block)
                if target.tell() > limit:
                    raise DataError(f"{path} unpacks to more than {limit:,} bytes: refused")
    return plain


def _blocks(opener: Any, path: Path) -> Iterator[bytes]:
    broken = EOFError, zlib.error, lzma.LZMAError, OSError
    with explained(DataError, f"cannot read the archive {path}", *broken), opener(path) as source:
        while block := source.read(1 << 20):
            yield block


@lru_cache(maxsize=16)  # kept open: its directory is long to read
def _zip(path: Path, changed: int) -> zipfile.ZipFile:
    return zipfile.ZipFile(path)


def _is_file(info: zipfile.ZipInfo) -> bool:
    return not info.is_dir() and info.external_attr >> 28 in (0, 8)  # 8: a regular file


def _check_zip(path: Path, members: list[zipfile.ZipInfo]) -> None:
    """A budget for the whole: no byte stands for two members, and all members together stay bounded."""
    size = path.stat().st_size
    if sum(info.compress_size for info in members) > size:
        raise DataError(f"{path} is refused: its members overlap")
    limit = min(MAX_UNPACKED, (1 << 26) + _RATIO * size)
    if sum(info.file_size for info in members) > limit:
        raise DataError(f"{path} unpacks to more than {limit:,} bytes: refused")


def _read_member(path: Path, info: zipfile.ZipInfo, place: str) -> bytes:
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise DataError(f"{place} is packed by another method than deflate: pack it anew")
    _check_size(info.file_size, place)
    limit = (1 << 20) + _RATIO * info.compress_size
    if info.file_size > limit:
        raise DataError(f"{place} grows from {info.compress_size:,} to {info.file_size:,} bytes: refused")
    content = bytearray()
    broken = explained(DataError, f"cannot read {place}", Exception)  # zlib, zipfile and its decryption: anything
    with broken, _zip(path, path.stat().st_mtime_ns).open(info) as member:
        # by blocks: asked for everything, zipfile unpacks as much as there is, whatever size was declared
        while block := member.read(1 << 20):
            content += block
    return bytes(content)


def _wanted(part: str) -> bool:
    return not part.startswith(".") and part not in ("__MACOSX", "Thumbs.db", "desktop.ini")


def _safe(name: str) -> str | None:
    """The normal form of a member's name, or None for one that leads out of the archive or is hidden."""
    parts = PurePosixPath(name).parts
    if name.startswith("/") or "\\" in name or "\0" in name or not parts or not all(map(_wanted, parts)):
        return None  # ".." starts with a dot as well
    return "/".join(parts)


def _check_size(size: int, place: str) -> None:
    if size > MAX_FILE:
        raise DataError(f"{place} has {size:,} bytes; the limit for one file is {MAX_FILE:,}")
