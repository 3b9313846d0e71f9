"""A disk that fails at every call of the write path in turn: the old state or the new one, never a third."""

from __future__ import annotations

import builtins
import errno
import hashlib
import io
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cnaps.errors import CnapsError
from cnaps.studio.archive import read_zip
from cnaps.studio.store import Project

from .test_archive import Lenient, exported

CALLS = ("open", "fsync", "replace", "rename", "mkdir", "utime", "unlink")  # of os


class Disk:
    """Counts the calls that write, and lets one of them fail."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.left, self.code, self.armed = -1, 0, False
        for name in CALLS:
            patch.setattr(os, name, self._failing(name, getattr(os, name)))
        opened = self._opening(io.open)
        patch.setattr(io, "open", opened)
        patch.setattr(builtins, "open", opened)

    def arm(self, number: int, code: int) -> None:
        self.left, self.code, self.armed = number, code, True

    def call(self) -> None:
        if self.armed:
            self.left -= 1
            if self.left == 0:
                raise OSError(self.code, os.strerror(self.code))

    def _failing(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            self.call()
            return None if name == "fsync" else function(*arguments, **options)

        return call

    def _opening(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(file: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
            opened = function(file, mode, *arguments, **options)
            if self.armed and set(mode) & set("wx+"):
                self.call()
                opened = Written(opened, self)
            return opened

        return call


class Written:
    """A file whose writes and flushes may fail; half of what was to be written is, as on a full disk."""

    def __init__(self, file: Any, disk: Disk) -> None:
        self._file, self._disk = file, disk

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> Written:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def write(self, data: Any) -> int:
        try:
            self._disk.call()
        except OSError:
            self._file.write(data[: len(data) // 2])
            raise
        return int(self._file.write(data))

    def flush(self) -> None:
        self._disk.call()
        self._file.flush()

    def close(self) -> None:
        self._file.close()
        self._disk.call()


def begin(folder: Path) -> Project:
    return Project(folder, Lenient())  # type: ignore[arg-type]


def seen(project: Project) -> str:
    return json.dumps(project.describe())


def on_disk(folder: Path) -> str:
    """The state of a project by its files alone, each of which is whole."""
    about = json.loads((folder / "project.json").read_bytes())
    assert about.pop("digest")
    about.pop("garbage")
    for image in about["images"]:
        data = (folder / "images" / image["id"]).read_bytes()
        assert hashlib.blake2b(data, digest_size=16).hexdigest() == image["id"]
    if about["task"]:
        assert (folder / "tasks" / about["task"]).read_bytes() == b"task"
    return json.dumps(about)


def a_zip(tmp_path: Path) -> bytes:
    other = begin(tmp_path / "other")
    other.add([("e.png", b"5"), ("f.png", b"6")], other.add_class("birds"))
    other.close()
    return exported(other).getvalue()


OPERATIONS: dict[str, Callable[[Project, bytes], object]] = {
    "add": lambda project, data: project.add([("c.png", b"3"), ("d.png", b"4")], "c1"),
    "add folders": lambda project, data: project.add([("x/c.png", b"3"), ("y/d.png", b"4")], "folders"),
    "add class": lambda project, data: project.add_class("dogs"),
    "rename": lambda project, data: project.rename("other"),
    "move": lambda project, data: project.move(list(project.images), "pool"),
    "remove": lambda project, data: project.remove(list(project.images)[:1]),
    "remove class": lambda project, data: project.remove_class("c1"),
    "undo": lambda project, data: (project.rename("first"), project.undo()),
    "import task": lambda project, data: project.import_task(b"task", {"fish": (0, 3)}),
    "import project": lambda project, data: read_zip(project, io.BytesIO(data), lambda task: 0),
    "open": lambda project, data: (project.close(), begin(project.folder).close()),
}


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO], ids=["ENOSPC", "EIO"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_a_failing_disk_leaves_the_old_state_or_the_new(
    name: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    operation, data = OPERATIONS[name], a_zip(tmp_path)
    whole = begin(tmp_path / "whole")
    whole.add([("a.png", b"1"), ("b.png", b"2")], whole.add_class("cats"))
    (taken_out,) = whole.add([("gone.png", b"7")], "test")["added"]
    whole.remove([taken_out])
    whole.close()
    disk, allowed, failures = Disk(monkeypatch), set[str](), 0
    for number in range(1000):  # the first time nothing fails
        folder = tmp_path / "now"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(tmp_path / "whole", folder)
        project = begin(folder)
        if number == 0:
            allowed.add(seen(project))
            project.listeners.append(lambda: allowed.add(seen(project)))  # noqa: B023
        disk.arm(number, code)
        try:
            operation(project, data)
        except CnapsError as error:
            assert os.strerror(code) in str(error)  # noqa: PT017
            failures += 1
        disk.armed = False
        assert seen(project) in allowed
        project.close()
        assert on_disk(folder) in allowed
        assert seen(project) == on_disk(folder)
        again = begin(folder)
        assert seen(again) == on_disk(folder)
        again.close()
        if number and disk.left > 0:
            break
    assert number < 999
    assert failures > 5 or name == "open"
