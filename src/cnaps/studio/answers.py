"""Any number of images, classified by what the studio has learned: dropped, or a folder of this machine.

They are no part of the project: nothing of them is kept but the answers, until the next ones are asked for.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
import zipfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import IO, Any

import numpy as np

from cnaps.errors import CnapsError, InputError, explained
from cnaps.images.finding import find_images, true_labels
from cnaps.runtime.accuracy import Accuracy, share_of
from cnaps.runtime.novelty import NONE
from cnaps.runtime.report import write_report
from cnaps.runtime.results import Result, Skipped, results_csv
from cnaps.runtime.sorting import check_sorted, folder_name, sort_into
from cnaps.runtime.task import FittedTask
from cnaps.serving.decoding import Decoder
from cnaps.serving.safety import shown
from cnaps.studio.archive import safe_name

MAX_FILES, MAX_BYTES = 20_000, 4_000_000_000  # dropped onto the page
_SHOWN = 400  # rows that the page gets, the least certain first


class Answers:
    """The images of one question, and the answers as they come."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._scratch: Path | None = None  # of dropped images
        self._bytes = 0
        self._reset()

    def _reset(self) -> None:
        self.phase, self.message, self.folder = "empty", "", ""
        self.files: list[Path] = []
        self.results: list[tuple[int, Result]] = []  # in the order of `files`, with the place of each in it
        self.skipped: list[Skipped] = []
        self._stopping = False

    def clear(self) -> None:
        """Stop, and forget everything; dropped images are deleted."""
        self._stopping = True
        if self._thread is not None:
            self._thread.join()
        with self._lock:
            self._thread = None
            if self._scratch is not None:
                shutil.rmtree(self._scratch, ignore_errors=True)
            self._scratch, self._bytes = None, 0
            self._reset()

    def drop(self, uploads: Sequence[tuple[str, bytes]]) -> None:
        """Further images of the next question; the first ones end the question before."""
        if self.phase != "dropping":
            self.clear()
        with self._lock:
            if self._scratch is None:
                self._scratch = Path(tempfile.mkdtemp(prefix="cnaps-"))
            self.phase, self.folder = "dropping", ""
            for name, data in uploads:
                self._bytes += len(data)
                if len(self.files) >= MAX_FILES or self._bytes > MAX_BYTES:
                    raise InputError(f"at most {MAX_FILES:,} images and {MAX_BYTES // 10**9} GB at once")
                parts = [safe_name(shown(part)) for part in PurePosixPath(name.replace("\\", "/")).parts[-3:]]
                # a folder for each, so that none takes the place of another of the same name
                path = self._scratch / str(len(self.files)) / Path(*parts or ["image"])
                with explained(CnapsError, "an image cannot be kept"):
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(data)
                self.files.append(path)

    def open_folder(self, folder: str) -> None:
        """The images of a folder of this machine."""
        path = _whole_path(folder)
        if not path.exists():
            raise InputError(f"there is no folder {path}: give its whole path, as a file manager shows it")
        files = find_images([str(path)])
        self.clear()
        self.files, self.folder = files, str(path)

    def start(self, fitted: FittedTask | None) -> None:
        """Classify them in the background."""
        if fitted is None:
            raise InputError("nothing has been learned yet: give examples of at least two classes")
        if not self.files:
            raise InputError("there are no images: drop some, or name a folder")
        self.phase = "running"
        self._thread = threading.Thread(target=self._run, args=(fitted,), name="answers", daemon=True)
        self._thread.start()

    def _run(self, fitted: FittedTask) -> None:
        try:
            truth = self._truth(fitted)
            for where, features, probabilities in fitted.embed(self.files, self._skip, self._decode):
                if self._stopping:
                    return
                novelty = fitted.novelty(features).tolist()
                for index, each, new in zip(where, probabilities, novelty, strict=True):
                    path = self.files[index]
                    known = new, fitted.threshold, truth.get(path)
                    self.results.append((index, Result.of(path, fitted.names, each, 3, *known)))
            self.phase = "done"
        except Exception as error:  # the page must hear of it, whatever it was
            self.phase, self.message = "failed", str(error) or repr(error)

    def _decode(self, path: Path, size: int) -> np.ndarray:
        if self._stopping:
            raise CnapsError("it is not asked for any more")
        try:
            return self._decoder.pixels(path.read_bytes(), size)
        except OSError as error:
            raise CnapsError(error.strerror or str(error)) from error

    def _skip(self, index: int, error: CnapsError) -> None:
        self.skipped.append(Skipped(self.name(index), str(error)))

    def _truth(self, fitted: FittedTask) -> dict[Path, str]:
        """The classes of images in folders that are named like one: a test set that was held out."""
        sources = [self.folder] if self.folder else [str(self._scratch)]
        return true_labels(sources, self.files, [*map(str, fitted.names), NONE])

    # what is there

    def name(self, index: int) -> str:
        """An image as the person knows it."""
        path = self.files[index]
        if self.folder == str(path):
            return path.name
        if self.folder:  # a list of files may name any place
            return str(path.relative_to(self.folder) if path.is_relative_to(self.folder) else path)
        return str(Path(*path.relative_to(self._scratch or path).parts[1:]))

    def describe(self) -> dict[str, Any]:
        """What the page shows."""
        results = list(self.results)
        accuracy = Accuracy.of((r.truth, r.label) for _, r in results if r.truth is not None)
        ordered = sorted(results, key=lambda each: (not each[1].mistaken, each[1].probability))
        return {
            "phase": self.phase,
            "message": self.message,
            "folder": self.folder,
            "total": len(self.files),
            "done": len(results) + len(self.skipped),
            "counts": Counter(result.label for _, result in results).most_common(),
            "rows": [self._row(index, result) for index, result in ordered[:_SHOWN]],
            "skipped": [{"name": item.path, "reason": item.reason} for item in self.skipped[:50]],
            "skipped_total": len(self.skipped),
            "accuracy": _accuracy(accuracy),
        }

    def _row(self, index: int, result: Result) -> dict[str, Any]:
        best, p = result.ranking[0]
        return {
            "index": index,
            "name": self.name(index),
            "label": result.label,
            "best": best,
            "probability": round(min(p, 0.9999), 4),
            "truth": result.truth,
            "none": result.stranger,
        }

    def thumbnail(self, index: int) -> bytes:
        """A small picture of an image."""
        if not 0 <= index < len(self.files):
            raise InputError("there is no such image")
        with explained(InputError, f"{self.name(index)} is gone"):
            return self._decoder.decode(self.files[index].read_bytes()).thumbnail

    # what can be taken away

    def csv(self) -> str:
        """The table."""
        return results_csv([replace(result, path=self.name(index)) for index, result in self.results])

    def report(self, path: Path) -> None:
        """The page; images of a folder of this machine are linked from it."""
        results = [result for _, result in self.results]
        title = f"{len(results):,} images, classified"
        write_report(path, results, self.skipped, [], title=title, links=bool(self.folder))

    def write_zip(self, file: IO[bytes]) -> None:
        """The images in a folder for each class, as a zip file."""
        taken: set[str] = set()
        with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
            for index, result in self.results:
                source, number = self.files[index], 1
                inside = f"{folder_name(result.label)}/{source.name}"
                while inside in taken:
                    number += 1
                    inside = f"{folder_name(result.label)}/{source.stem} ({number}){source.suffix}"
                taken.add(inside)
                archive.write(source, inside)

    def sort_into(self, folder: str) -> int:
        """Copy the images into a folder of this machine, a sub-folder for each class; how many were new."""
        path = _whole_path(folder)
        check_sorted(path, [Path(self.folder)] if self.folder else [])
        return sort_into(path, [result for _, result in self.results])


def _whole_path(text: str) -> Path:
    """A path as people paste it."""
    try:
        path = Path(text.strip().strip('"')).expanduser()
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        pass
    except (OSError, ValueError, RuntimeError) as error:  # too long, with a NUL in it, of a user who is not there
        raise InputError(f"this is no path of a folder: {error}") from error
    if not path.is_absolute():
        raise InputError(f"there is no folder {text}: give its whole path, as a file manager shows it")
    return path


def _accuracy(accuracy: Accuracy) -> dict[str, Any] | None:
    if not accuracy.total:
        return None
    names = accuracy.names
    matrix = [[accuracy.counts[truth, answer] for answer in names] for truth in names]
    return {**share_of(accuracy.correct, accuracy.total), "names": names, "matrix": matrix}
