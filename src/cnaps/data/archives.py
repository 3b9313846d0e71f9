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
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from cnaps.errors import DataError
from cnaps.files import atomic_path

MAX_FILE = 4 << 30  # bytes of one file read into memory
MAX_UNPACKED = 1 << 40  # bytes that a compressed tar may grow to
_RATIO = 200  # a zip member or a gzip file that grows more than this is no image but a bomb


class Tree(ABC):
    """Files by their relative names, with ``/`` between folders."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @abstractmethod
    def names(self) -> Iterable[str]:
        """All file names; hidden files and the leavings of file managers are passed over."""

    @abstractmethod
    def read(self, name: str) -> bytes:
        """The content of a file."""

    def local(self, name: str) -> Path | None:
        """The path of a file where it lies on disk as it is, so that it can be memory-mapped."""
        return None


class Folder(Tree):
    """A folder on disk; links to folders are not followed."""

    def names(self) -> Iterator[str]:
        """See :class:`Tree`."""
        for folder, below, files in os.walk(self.path):
            below[:] = sorted(name for name in below if _wanted(name))
            inside = Path(folder).relative_to(self.path)
            yield from ((inside / name).as_posix() for name in sorted(files) if _wanted(name))

    def read(self, name: str) -> bytes:
        """See :class:`Tree`."""
        path = self.local(name)
        try:
            _check_size(path.stat().st_size, path)
            return path.read_bytes()
        except OSError as error:
            raise DataError(f"cannot read {path}: {error.strerror}") from error

    def local(self, name: str) -> Path:
        """See :class:`Tree`."""
        if name.startswith("/") or ".." in PurePosixPath(name).parts:
            raise DataError(f"{name} leads out of {self.path}")
        return self.path / name


class Tar(Tree):
    """A plain tar, read by offset; the tars inside it (as ImageNet has them) are folders of their stem."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.index: dict[str, tuple[int, int]] = {}
        try:
            with path.open("rb") as file:
                self._scan(file, 0, "")
        except (tarfile.TarError, OSError, EOFError) as error:
            raise DataError(f"cannot read the archive {path}: {error}") from error

    def _scan(self, file: BinaryIO, start: int, prefix: str) -> None:
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
                    self.index[name] = (member.offset_data, member.size)
        for offset, inside in nested:
            self._scan(file, offset, inside)

    def names(self) -> Iterable[str]:
        """See :class:`Tree`."""
        return self.index

    def read(self, name: str) -> bytes:
        """See :class:`Tree`."""
        if name not in self.index:
            raise DataError(f"{self.path} has no file {name}")
        offset, size = self.index[name]
        _check_size(size, f"{name} in {self.path}")
        with self.path.open("rb", buffering=0) as file:  # not kept open: a data set may come in a thousand tars
            file.seek(offset)
            return file.read(size)


class Zip(Tree):
    """A zip archive."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._file: zipfile.ZipFile | None = None
        self.members = {name: info for info in self._open().infolist() if (name := self._usable(info))}

    def _usable(self, info: zipfile.ZipInfo) -> str | None:
        kind = info.external_attr >> 28
        return _safe(info.filename) if not info.is_dir() and kind in (0, 8) else None  # 8: a regular file

    def _open(self) -> zipfile.ZipFile:
        if self._file is None:
            try:
                self._file = zipfile.ZipFile(self.path)
            except (zipfile.BadZipFile, OSError) as error:
                raise DataError(f"cannot read the archive {self.path}: {error}") from error
        return self._file

    def names(self) -> Iterable[str]:
        """See :class:`Tree`."""
        return self.members

    def read(self, name: str) -> bytes:
        """See :class:`Tree`."""
        if name not in self.members:
            raise DataError(f"{self.path} has no file {name}")
        info = self.members[name]
        place = f"{name} in {self.path}"
        _check_size(info.file_size, place)
        if info.file_size > (1 << 20) + _RATIO * info.compress_size:
            raise DataError(f"{place} grows from {info.compress_size:,} to {info.file_size:,} bytes: refused")
        try:
            return self._open().read(info)
        except Exception as error:  # zlib, zipfile and its decryption each raise their own
            raise DataError(f"cannot read {place}: {error}") from error

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_file": None}


class Union(Tree):
    """Several trees seen as one: the downloads of a data set that comes in parts lie side by side."""

    def __init__(self, path: Path, trees: Iterable[Tree]) -> None:
        super().__init__(path)
        self.trees = list(trees)
        self.owner = {name: index for index, tree in enumerate(self.trees) for name in tree.names()}

    def names(self) -> Iterable[str]:
        """See :class:`Tree`."""
        return self.owner

    def read(self, name: str) -> bytes:
        """See :class:`Tree`."""
        return self.trees[self.owner[name]].read(name)

    def local(self, name: str) -> Path | None:
        """See :class:`Tree`."""
        return self.trees[self.owner[name]].local(name)


def open_tree(path: str | Path, scratch: Path, parts: Iterable[str] = ()) -> Tree:
    """Open a folder, tar or zip; a compressed tar is first unpacked to one plain tar in ``scratch``.

    Archives in a folder whose names fit one of the patterns ``parts`` show their content as the folder's own.
    """
    path = Path(path)
    if path.is_dir():
        folder = Folder(path)
        found = {item for part in parts for item in path.glob(part)}
        packed = sorted(item for item in found if item.is_file() and is_archive(item))
        return Union(path, [folder, *(open_tree(item, scratch) for item in packed)]) if packed else folder
    if not path.exists():
        raise DataError(f"{path} does not exist")
    if zipfile.is_zipfile(path):
        return Zip(path)
    return Tar(_plain_tar(path, scratch))


def _plain_tar(path: Path, scratch: Path) -> Path:
    with path.open("rb") as file:
        magic = file.read(6)
    opener = next((opener for start, opener in _COMPRESSED.items() if magic.startswith(start)), None)
    if opener is None:
        return path
    plain = scratch / f"{path.name}.{path.stat().st_size}.tar"
    if not plain.exists():
        limit = min(MAX_UNPACKED, (1 << 26) + _RATIO * path.stat().st_size)
        with atomic_path(plain) as temporary:
            try:
                with opener(path) as source, temporary.open("wb") as target:
                    while block := source.read(1 << 20):
                        target.write(block)
                        if target.tell() > limit:
                            raise DataError(f"{path} unpacks to more than {limit:,} bytes: refused")
            except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile) as error:
                raise DataError(f"cannot read the archive {path}: {error}") from error
    return plain


_COMPRESSED: dict[bytes, Any] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ\x00": lzma.open}
_ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".zip")


def is_archive(path: Path) -> bool:
    """Whether the name is that of an archive."""
    return path.name.lower().endswith(_ARCHIVES)


def _wanted(part: str) -> bool:
    return not part.startswith(".") and part not in ("__MACOSX", "Thumbs.db", "desktop.ini")


def _safe(name: str) -> str | None:
    """The normal form of a member's name, or None for one that leads out of the archive or is hidden."""
    parts = PurePosixPath(name).parts
    if name.startswith("/") or "\\" in name or "\0" in name or not parts or not all(map(_wanted, parts)):
        return None  # ".." starts with a dot as well
    return "/".join(parts)


def _check_size(size: int, place: str | Path) -> None:
    if size > MAX_FILE:
        raise DataError(f"{place} has {size:,} bytes; the limit for one file is {MAX_FILE:,}")
