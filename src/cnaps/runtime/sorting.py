"""Images copied, or linked, into a folder for each class."""

from __future__ import annotations

import filecmp
import os
import re
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

from cnaps.errors import CnapsError, InputError, explained
from cnaps.runtime.results import Result

# What some file system does not take in a name, and names that Windows keeps for devices
_UNSAFE = re.compile(r'[<>:"/\\|?*\x00-\x1f]|[. ]+$|^\.+')
_DEVICES = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)


def check_sorted(folder: Path, inputs: Iterable[Path]) -> None:
    """Say before any work is done that images must not be sorted into a folder: it would be read the next time."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"cannot sort into {folder}: it is a file; name a folder")
    target = folder.resolve()
    for each in inputs:
        source = each.resolve()
        if source.is_dir() and (source == target or source in target.parents):
            raise InputError(f"cannot sort into {folder}: it lies in {each}, which is read; choose another")


def sort_into(folder: Path, results: Sequence[Result], *, link: bool = False) -> int:
    """Copy each image, or make a symbolic link to it, into the sub-folder of its class; how many were new.

    Nothing is overwritten: a further file of the same name gets a number, unless it is the same file.
    """
    made = 0
    with explained(CnapsError, f"cannot sort into {folder}"):
        for result in results:
            source, place = Path(result.path), folder / folder_name(result.label)
            place.mkdir(parents=True, exist_ok=True)
            made += _place(source, place, link)
    return made


def folder_name(label: str) -> str:
    """A class as the name of a folder.

    >>> folder_name("cat / dog"), folder_name(".."), folder_name("con")
    ('cat _ dog', '_', '_con')
    """
    name = _UNSAFE.sub("_", label)[:120].encode()[:240].decode(errors="ignore").rstrip(". ") or "_"
    return f"_{name}" if _DEVICES.fullmatch(name) else name


def _place(source: Path, folder: Path, link: bool) -> bool:
    number, target = 1, folder / source.name
    while os.path.lexists(target):
        if _same(source, target):
            return False
        number += 1
        target = folder / f"{source.stem} ({number}){source.suffix}"
    if link:
        target.symlink_to(source.resolve())
    else:
        # complete or not at all: a copy that was interrupted must not look like the image
        temporary = target.with_name(f".{target.name[:200]}.tmp")
        shutil.copy2(source, temporary)
        os.replace(temporary, target)
    return True


def _same(source: Path, target: Path) -> bool:
    try:
        return source.samefile(target) or filecmp.cmp(source, target, shallow=False)
    except OSError:
        return False
