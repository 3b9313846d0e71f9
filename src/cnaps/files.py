"""Writing files so that nothing is lost: a temporary neighbour, flushed, then renamed over the target."""

from __future__ import annotations

import contextlib
import csv
import hashlib
import io
import json
import os
import re
import secrets
import shutil
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from safetensors import SafetensorError

from cnaps.errors import CnapsError, InputError, explained

# How the files of this program begin or end: a file with another beginning is somebody's.
_OWN_START = re.compile(
    rb'\s*\{\s*"format": ?("cnaps-|1,\s*"name")|\s*\{\s*"backbone": "|path,(score,)?label,(probability|fit)'
    rb'|.{8}\{"__metadata__":\{.*"format":"cnaps-|\x89PNG.{,200}tEXtSoftware\0cnaps'
    rb'|<!doctype html>.{,200}<meta name="generator" content="cnaps">',
    re.DOTALL,
)
_OWN_END = re.compile(rb"<footer>Written by cnaps\.|cnaps-classifier")
_LOOKED_AT = 1 << 20  # bytes, at either end


def is_own(path: Path) -> bool:
    """Whether a file was written by this program, or is empty: nobody misses what is replaced."""
    with path.open("rb") as file:
        start = file.read(_LOOKED_AT)
        file.seek(max(0, path.stat().st_size - _LOOKED_AT))
        return not start or bool(_OWN_START.match(start) or _OWN_END.search(file.read(_LOOKED_AT)))


def check_output(
    path: Path | None,
    suffixes: Sequence[str] = (),
    *,
    inputs: Iterable[Path] = (),
    force: bool = False,
    folder: Sequence[str] | None = None,
) -> None:
    """Say before any work is done that something must not or cannot be written there.

    `inputs` are the files and folders that the command reads: an output is none of them and lies in none of those
    folders. A file of somebody else is overwritten with `force` alone. For a folder, `folder` names the files that
    it will consist of.
    """
    if path is None:
        return
    if suffixes and path.suffix.lower() not in suffixes:
        raise InputError(f"{path} must end in {' or '.join(suffixes)}")
    with explained(InputError, f"cannot write {path}"):
        for each in inputs:
            if path.exists() and each.exists() and path.samefile(each):
                raise InputError(f"cannot write {path}: it is read by this command; write to another place")
            if each.is_dir() and each.resolve() in path.resolve().parents:
                raise InputError(f"cannot write {path}: it lies in {each}, which is read; write to another place")
        if folder is not None:
            _check_replaceable(path, folder)
        elif path.is_dir():
            raise InputError(f"cannot write {path}: it is a folder")
        elif path.exists() and not path.is_file():
            raise InputError(f"cannot write {path}: it is no regular file")
        elif path.exists() and not force and not is_own(path):
            raise InputError(f"{path} exists and was not written by cnaps: give another name, or --force")
        above = path.absolute().parent
        while not above.exists():
            above = above.parent
    if not above.is_dir():
        raise InputError(f"cannot write {path}: {above} is no folder")
    if not os.access(above, os.W_OK | os.X_OK):
        raise InputError(f"cannot write {path}: {above} is read-only for you")


def _check_replaceable(target: Path, names: Sequence[str]) -> None:
    """A folder is replaced whole, so it may hold nothing but files of this program, of these names."""
    if not target.exists():
        return
    if not target.is_dir():
        raise InputError(f"cannot write {target}: it is no folder")
    for item in sorted(target.iterdir()):
        ours = item.is_file() and (item.suffix != ".json" or is_own(item))
        graphs = item.is_dir() and all(part.suffix == ".onnx" and part.is_file() for part in item.iterdir())
        if item.name not in names or not (ours or graphs):
            raise InputError(
                f"the folder {target} is not replaced: its {item.name} is not of cnaps; give another destination"
            )


@contextlib.contextmanager
def atomic_path(target: str | os.PathLike[str]) -> Iterator[Path]:
    """Give a temporary path beside ``target`` that becomes ``target`` when the block ends without an error.

    >>> import tempfile, pathlib
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> with atomic_path(folder / "a.txt") as temporary:
    ...     _ = temporary.write_text("whole")
    >>> (folder / "a.txt").read_text()
    'whole'
    """
    target = Path(target)
    with _telling(target):
        if target.exists() and not target.is_file():
            raise InputError(f"cannot write {target}: it is no regular file")
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = _beside(target)
        # the kernel applies the umask; to ask for it would be to change it, for all threads
        os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
    try:
        with _telling(target):
            mode = temporary.stat().st_mode
            yield temporary
            temporary.chmod(mode)  # some writers leave files that only their owner may read
            _flush(temporary)
            os.replace(temporary, target)
            _flush(target.parent)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def atomic_folder(target: str | os.PathLike[str], names: Sequence[str]) -> Iterator[Path]:
    """Give a temporary folder beside ``target`` that replaces ``target`` when the block ends without an error.

    An existing ``target`` stays as it was until the new folder is whole, and is not replaced if it holds anything
    but files of this program of these ``names``.
    """
    target = Path(target)
    with _telling(target):
        _check_replaceable(target, names)
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = _beside(target)
        temporary.mkdir()
    try:
        with _telling(target):
            mode = temporary.stat().st_mode
            yield temporary
            for path in (temporary, *temporary.rglob("*")):
                path.chmod(mode if path.is_dir() else mode & 0o666)
                _flush(path)
            if not _exchange(temporary, target):
                _replace_folder(temporary, target)
            _flush(target.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _replace_folder(new: Path, target: Path) -> None:
    """In two steps, and back again where the second fails."""
    if not target.exists():
        os.replace(new, target)
        return
    old = new.with_suffix(".old")
    os.replace(target, old)
    try:
        os.replace(new, target)
    except OSError:
        os.replace(old, target)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _beside(target: Path) -> Path:
    return target.with_name(f".{target.name[:40]}.{secrets.token_hex(6)}.tmp")


@contextlib.contextmanager
def _telling(target: Path) -> Iterator[None]:
    """What goes wrong with a file as a sentence."""
    try:
        yield
    except (OSError, SafetensorError) as error:  # the second is what safetensors makes of a full disk
        raise CnapsError(f"cannot write {target}: {getattr(error, 'strerror', None) or error}") from error


def escaped(text: str) -> str:
    """A name as text that can be encoded: bytes of a file name that are no UTF-8 become ``\\xe9``.

    >>> escaped("caf\\udce9")
    'caf\\\\xe9'
    """
    return re.sub("[\ud800-\udfff]", lambda found: f"\\x{ord(found[0]) & 0xFF:02x}", text)


def shown(text: str) -> str:
    """A name as a terminal may have it: nothing in it moves the cursor, changes colours or turns the text round.

    >>> shown("a\\x1b[2Jb")
    'a\\\\x1b[2Jb'
    """
    known = escaped(text)
    return "".join(c if c in _JOINERS or unicodedata.category(c) not in _UNSEEN else _code(c) for c in known)


_JOINERS = "\u200c\u200d"  # parts of words and of emoji
_UNSEEN = ("Cc", "Cf", "Cs", "Zl", "Zp")


def _code(character: str) -> str:
    number = ord(character)
    return f"\\x{number:02x}" if number < 256 else f"\\u{number:04x}"


def spreadsheet_cell(text: str) -> str:
    """A cell that no spreadsheet takes for a formula; `plain_cell` is its inverse.

    >>> spreadsheet_cell("=1+1"), spreadsheet_cell("-0.5")
    ("'=1+1", '-0.5')
    """
    return f"'{text}" if text[:1] in _FORMULA and not _NUMBER.fullmatch(text) else text


def csv_text(rows: Iterable[Iterable[str]]) -> str:
    """A table as text, of which no spreadsheet runs a cell.

    >>> csv_text([["path", "label"], ["a.jpg", "=1+1"]])
    "path,label\\na.jpg,'=1+1\\n"
    """
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(map(spreadsheet_cell, row) for row in rows)
    return text.getvalue()


def plain_cell(text: str) -> str:
    """What `spreadsheet_cell` was given."""
    return text[1:] if text[:1] == "'" and text[1:2] in _FORMULA and text[1:] else text


_FORMULA = tuple("=+-@\t\r")
_NUMBER = re.compile(r"[+-]?[\d.]+(e[+-]?\d+)?( ± [\d.]+)?", re.IGNORECASE)


def read_bytes(path: str | os.PathLike[str], most: int = 1 << 30) -> bytes:
    """The content of a regular file: to open what is none may wait for ever. Raises OSError and ValueError."""
    path = Path(path)
    if path.exists() and not path.is_file():
        raise ValueError("it is no regular file")
    if path.stat().st_size > most:
        raise ValueError(f"it is larger than {most:,} bytes")
    return path.read_bytes()


def content_id(data: bytes) -> str:
    """A name for bytes: the same for the same, and for nothing else.

    >>> content_id(b"")
    'cae66941d9efbd404e4d88758ea67670'
    """
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def read_json(path: str | os.PathLike[str]) -> Any:
    """The JSON in a file. Raises OSError and ValueError."""
    return parse_json(read_bytes(path).decode("utf-8"))


def parse_json(text: str) -> Any:
    """JSON as it is standardised: NaN and Infinity are refused, and so is what is nested without end."""

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is no number")

    try:
        return json.loads(text, parse_constant=refuse)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error


def write_text(target: str | os.PathLike[str], text: str) -> None:
    """Write a whole text file or nothing."""
    with atomic_path(target) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(target: str | os.PathLike[str], value: Any) -> None:
    """Write a whole JSON file or nothing."""
    write_text(target, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def lock_folder(folder: Path, busy: str) -> IO[bytes]:
    """Hold a folder until the file is closed or the process ends, however; `busy` is what others are told."""
    with explained(CnapsError, f"cannot write to {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / ".lock").open("ab")
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except ImportError:  # no such locks on Windows
        pass
    except OSError as error:
        file.close()
        raise CnapsError(busy) from error
    return file


def _flush(path: Path) -> None:
    with contextlib.suppress(PermissionError):  # a folder that may not be opened is still renamed safely
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _exchange(a: Path, b: Path) -> bool:
    """Swap two folders in one step, so that a process killed between two steps loses neither; Linux can."""
    import ctypes

    try:
        swap = ctypes.CDLL(None).renameat2
    except (OSError, AttributeError, TypeError):
        return False
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return swap(here, os.fsencode(a), here, os.fsencode(b), exchange) == 0
