"""A write that fails at any call, for any reason, leaves the old state or the new one, and no third."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cnaps import files
from cnaps.errors import CnapsError
from cnaps.files import atomic_folder, write_json


def save_file(place: Path, content: str) -> None:
    write_json(place / "a.json", {"format": "cnaps-x", "content": content})


def save_folder(place: Path, content: str) -> None:
    with atomic_folder(place / "a", ("a.json", "b.txt")) as folder:
        write_json(folder / "a.json", {"format": "cnaps-x", "content": content})
        (folder / "b.txt").write_text(content)


def save_folder_in_two_steps(place: Path, content: str) -> None:
    """As where two folders cannot be exchanged at once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "_exchange", lambda *_: False)
        save_folder(place, content)


def state(place: Path) -> dict[str, bytes]:
    """What is there for anybody to read: what is hidden is a leaving of a write that failed."""
    inside = (path for path in place.rglob("*") if path.is_file())
    found = {str(path.relative_to(place)): path.read_bytes() for path in inside}
    return {name: content for name, content in found.items() if not name.startswith(".")}


CALLS = ("open", "write", "fsync", "replace", "close", "chmod", "mkdir", "stat")


class Failing:
    """The n-th call into the operating system fails, counted over all functions that writing uses."""

    def __init__(self, number: int, code: int) -> None:
        self.left, self.code, self.failed = number, code, ""

    def wrap(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            self.left -= 1
            if self.left == 0:
                self.failed = name
                raise OSError(self.code, os.strerror(self.code))
            return function(*arguments, **options)

        return call


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("save", [save_file, save_folder, save_folder_in_two_steps])
def test_each_call_fails_in_turn(save: Callable[[Path, str], None], code: int, tmp_path: Path) -> None:
    import io
    import pathlib

    save(tmp_path, "new")
    new = state(tmp_path)
    failed: set[str] = set()
    for number in range(1, 200):
        save(tmp_path, "old")
        old = state(tmp_path)
        failing = Failing(number, code)
        with pytest.MonkeyPatch.context() as patch:
            for name in CALLS:
                if name != "write":
                    patch.setattr(os, name, failing.wrap(name, getattr(os, name)))
            patch.setattr(pathlib.Path, "write_text", failing.wrap("write", pathlib.Path.write_text))
            patch.setattr(io, "open", failing.wrap("open", io.open))
            told = ""
            try:
                save(tmp_path, "new")
            except CnapsError as error:
                told = str(error)
        found = state(tmp_path)
        assert not told or "cannot write" in told
        assert found in (old, new), f"{failing.failed}, call {number}"
        assert told or found == new, f"{failing.failed}, call {number}: nobody was told"
        if not failing.failed:
            break
        failed.add(failing.failed)
    else:
        raise AssertionError("there is no end to it")
    assert {"open", "write", "fsync", "replace", "chmod"} <= failed
