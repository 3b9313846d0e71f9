"""Writing files so that nothing is lost: a temporary neighbour, flushed, then renamed over the target."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from safetensors import SafetensorError

from cnaps.errors import CnapsError


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
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{target.name[:40]}.", suffix=".tmp", dir=target.parent)
        os.close(handle)
    except OSError as error:
        raise CnapsError(f"cannot write {target}: {error.strerror or error}") from error
    temporary = Path(name)
    try:
        yield temporary
        _flush(temporary)
        temporary.chmod(0o666 & ~_umask())
        os.replace(temporary, target)
        _flush(target.parent)
    except (OSError, SafetensorError) as error:  # the second is what safetensors makes of a full disk
        raise CnapsError(f"cannot write {target}: {getattr(error, 'strerror', None) or error}") from error
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def atomic_folder(target: str | os.PathLike[str]) -> Iterator[Path]:
    """Give a temporary folder beside ``target`` that replaces ``target`` when the block ends without an error.

    An existing ``target`` stays as it was until the new folder is whole.
    """
    target = Path(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{target.name[:40]}.", suffix=".tmp", dir=target.parent))
    except OSError as error:
        raise CnapsError(f"cannot write {target}: {error.strerror or error}") from error
    old = temporary.with_suffix(".old")
    try:
        yield temporary
        for path in (temporary, *temporary.rglob("*")):
            # some writers leave files that only their owner may read
            path.chmod((0o777 if path.is_dir() else 0o666) & ~_umask())
            _flush(path)
        if not _exchange(temporary, target):
            if target.exists():
                os.replace(target, old)
            os.replace(temporary, target)
        _flush(target.parent)
    except (OSError, SafetensorError) as error:
        if old.exists() and not target.exists():
            os.replace(old, target)
        raise CnapsError(f"cannot write {target}: {getattr(error, 'strerror', None) or error}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def write_text(target: str | os.PathLike[str], text: str) -> None:
    """Write a whole text file or nothing."""
    with atomic_path(target) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(target: str | os.PathLike[str], value: Any) -> None:
    """Write a whole JSON file or nothing."""
    write_text(target, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def lock_folder(folder: Path, busy: str) -> IO[bytes]:
    """Hold a folder until the file is closed or the process ends, however; `busy` is what others are told."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / ".lock").open("ab")
    except OSError as error:
        raise CnapsError(f"cannot write to {folder}: {error.strerror or error}") from error
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


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
