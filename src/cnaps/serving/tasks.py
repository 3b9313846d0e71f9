"""The task files of a folder by name, each read when it is first asked for, and again after it was replaced."""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from pathlib import Path

from cnaps.errors import CheckpointError, CnapsError, InputError, explained
from cnaps.runtime.task import FittedTask
from cnaps.runtime.taskfile import read_task, versions_in

ENDINGS = (".safetensors", ".task")
_KEPT = 32  # tasks in memory: each holds the weights of its network with FiLM folded in


class TaskFolder:
    """Any number of threads and processes may read one folder: nothing is written to it."""

    def __init__(self, folder: str | Path, model: str | None = None) -> None:
        self.folder, self.model = Path(folder), model
        if not self.folder.is_dir():
            raise InputError(f"there is no folder {folder}")
        self._lock = threading.Lock()
        self._known: OrderedDict[str, tuple[tuple[int, ...], FittedTask | CnapsError]] = OrderedDict()

    def files(self) -> dict[str, Path]:
        """The task files there are now; a name from outside is looked up here and never becomes part of a path."""
        with explained(CnapsError, "the folder of tasks cannot be read"):
            found = sorted(p for p in self.folder.iterdir() if p.suffix in ENDINGS and p.name[0] != ".")
        return {path.name: path for path in found if path.is_file()}

    def versions(self) -> dict[str, dict[str, str]]:
        """Task, model and fingerprint by the name of the file, of those that can be read."""
        found = {}
        for name, path in self.files().items():
            with contextlib.suppress(CheckpointError):
                found[name] = versions_in(path)
        return found

    def find(self, name: str) -> FittedTask:
        """The task as its file is now, with or without the ending of its name.

        KeyError where there is none, CheckpointError where it is damaged.
        """
        files = self.files()
        path = next((files[each] for each in (name, f"{name}.task", f"{name}.safetensors") if each in files), None)
        if path is None:
            raise KeyError(name)
        name = path.name
        with self._lock:
            # before reading: a file that is replaced meanwhile then differs from its stamp, and is read again
            stamp = _stamp(path)
            if name not in self._known or self._known[name][0] != stamp:
                self._known[name] = stamp, self._read(path)
            self._known.move_to_end(name)
            while len(self._known) > _KEPT:
                self._known.popitem(last=False)
            found = self._known[name][1]
        if isinstance(found, CnapsError):
            raise found
        return found

    def _read(self, path: Path) -> FittedTask | CnapsError:
        try:
            return read_task(path, self.model)
        except CnapsError as error:  # kept like a task, so that a damaged file is not read for every request
            return CheckpointError(str(error).replace(str(path), path.name))


def _stamp(path: Path) -> tuple[int, ...]:
    try:
        about = path.stat()
    except OSError:  # it has just been deleted
        raise KeyError(path.name) from None
    return about.st_mtime_ns, about.st_size, about.st_ino
