"""A project on disk: a folder with `project.json`, the images as they came, and a cache that can be remade.

Every change is written whole before it is acknowledged, so a project survives being killed at any moment. Images
are named by the hash of their content; nothing a client says becomes part of a path.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import threading
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, TypeAlias

import numpy as np
from PIL import Image

from cnaps.errors import CnapsError, DataError, InputError
from cnaps.files import atomic_path, lock_folder, write_json
from cnaps.serving.decoding import Decoder
from cnaps.studio.description import (
    FOLDERS,
    FORMAT,
    ID,
    MAX_CLASSES,
    MAX_IMAGES,
    POOL,
    TEST,
    VERSION,
    class_name,
    file_name,
    parse,
    read_entry,
)

_UNDO = 100
_BAD_ZIP = (zipfile.BadZipFile, KeyError, RuntimeError, NotImplementedError, EOFError, zlib.error)

Entry: TypeAlias = dict[str, str]  # name, place; never changed, only replaced
Upload: TypeAlias = tuple[str, bytes]  # a file's name and content


@dataclass(frozen=True)
class Plan:
    """What there is to learn: images of each class by its name, the trays, and what an imported task knows."""

    classes: dict[str, list[str]]  # those with images
    test: list[str]
    pool: list[str]
    task: Path | None
    learned: dict[str, int]  # the row of each class in the task

    @property
    def names(self) -> list[str]:
        """Classes that can be recognised, sorted."""
        return sorted({*self.classes, *self.learned})


class Project:
    """Classes, images and where each image belongs: a class, the test tray or the unlabelled tray."""

    def __init__(self, folder: str | Path, decoder: Decoder) -> None:
        self.folder = Path(folder)
        self.decoder = decoder
        self.lock = threading.RLock()
        self.listeners: list[Callable[[], None]] = []
        self.name = self.folder.absolute().name
        self.classes: dict[str, str] = {}  # names by id
        self.images: dict[str, Entry] = {}
        self.task = ""  # the id of an imported task file
        self.learned: dict[str, tuple[int, int]] = {}  # by class: its row in the task, its number of examples
        self._past: list[Any] = []
        self._group, self._depth = "", 0
        self._held = lock_folder(self.folder, f"{self.folder} is open in another studio: close that one first")
        try:
            if (self.folder / "project.json").exists():
                self._load()
            self._tidy()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let others open the folder."""
        self._held.close()

    # changes

    def add_class(self, name: str) -> str:
        """A new class, or the one of that name; its id."""
        with self._change():
            found = self.find_class(name)
            if found:
                return found
            if len(self.classes) >= MAX_CLASSES:
                raise InputError(f"a project holds at most {MAX_CLASSES} classes")
            key = f"c{max((int(key[1:]) for key in self.classes), default=0) + 1}"
            self.classes[key] = class_name(name)
            return key

    def find_class(self, name: str) -> str | None:
        """The id of a class, whatever the case of its name."""
        wanted = " ".join(name.split()).casefold()
        return next((key for key, known in self.classes.items() if known.casefold() == wanted), None)

    def rename_class(self, key: str, name: str) -> None:
        """Give a class another name."""
        with self._change():
            self._check_place(key, self.classes)
            if self.find_class(name) not in (None, key):
                raise InputError(f"there is a class named {name!r} already")
            self.classes[key] = class_name(name)

    def remove_class(self, key: str) -> None:
        """Remove a class; its images become unlabelled."""
        with self._change():
            self._check_place(key, self.classes)
            del self.classes[key]
            self.learned.pop(key, None)
            self._place([i for i, entry in self.images.items() if entry["place"] == key], POOL)

    def rename(self, name: str) -> None:
        """Give the project another name."""
        with self._change():
            self.name = class_name(name)

    def move(self, images: Iterable[str], place: str) -> None:
        """Put images into a class or a tray."""
        with self._change():
            self._check_place(place)
            self._place([i for i in images if i in self.images], place)

    def remove(self, images: Iterable[str]) -> None:
        """Take images out; their files go when the project is next opened, until then it can be undone."""
        with self._change():
            for key in images:
                self.images.pop(key, None)

    def undo(self) -> bool:
        """Take the last change back."""
        with self.lock:
            if not self._past:
                return False
            self._restore(self._past.pop())
            self._group = ""
            self._save()
            return True

    @property
    def can_undo(self) -> bool:
        """Whether there is a change to take back."""
        return bool(self._past)

    def add(self, uploads: Iterable[Upload], place: str, group: str = "") -> dict[str, list[Any]]:
        """Put new images into a place; with FOLDERS, each into the class that its folder names.

        Additions in a row with the same `group` are undone together. Returns what became of the images: ids
        `added`, names `known` already (moved where that makes a difference), and `refused` with reasons.
        """
        kept: list[tuple[str, str]] = []
        report: dict[str, list[Any]] = {"added": [], "known": [], "refused": []}
        for name, data in uploads:
            try:
                kept.append((self._keep(data), name))
            except CnapsError as error:
                report["refused"].append({"name": file_name(name), "reason": str(error)})
        with self._change(group):
            self._check_place(place, (*self.classes, TEST, POOL, FOLDERS))
            if len(self.images) + len(kept) > MAX_IMAGES:
                raise InputError(f"a project holds at most {MAX_IMAGES:,} images")
            for key, name in kept:
                folder = PurePosixPath(name).parent.name or "unnamed"
                target = self.add_class(folder) if place == FOLDERS else place
                known = self.images.get(key)
                if known is None:
                    report["added"].append(key)
                    self.images[key] = {"name": file_name(name), "place": target}
                else:
                    report["known"].append(known["name"])
                    if target in self.classes:  # a label says more than a tray
                        self.images[key] = {**known, "place": target}
        return report

    # reading

    def plan(self) -> Plan:
        """What there is to learn at this moment."""
        with self.lock:
            by_place: dict[str, list[str]] = {}
            for key, entry in self.images.items():
                by_place.setdefault(entry["place"], []).append(key)
            classes = {name: by_place[key] for key, name in self.classes.items() if key in by_place}
            learned = {self.classes[key]: row for key, (row, _) in self.learned.items()}
            task = self._task_file(self.task) if learned else None
            return Plan(classes, by_place.get(TEST, []), by_place.get(POOL, []), task, learned)

    def pixels(self, key: str) -> np.ndarray:
        """An image as the model reads it, uint8 (S, S, 3)."""
        return np.asarray(Image.open(self._cached(key, f"-{self.decoder.size}.png"), formats=("PNG",)))

    def thumbnail(self, key: str) -> bytes:
        """A small picture of an image."""
        if key not in self.images:
            raise DataError("there is no such image")
        return self._cached(key, ".thumb").read_bytes()

    def describe(self) -> dict[str, Any]:
        """What `project.json` holds."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "name": self.name,
            "task": self.task,
            "classes": [
                {"id": key, "name": name, "learned": self.learned.get(key)} for key, name in self.classes.items()
            ],
            "images": [{"id": key, **entry} for key, entry in self.images.items()],
        }

    # files in and out

    def import_task(self, data: bytes, learned: Mapping[str, tuple[int, int]]) -> None:
        """Start from a task learned elsewhere; `learned` says by name which row of it each class is."""
        with self._change():
            if self.learned:
                raise InputError("this project starts from an imported task already: begin a new one for another")
            self.task = _hash(data)
            with atomic_path(self._task_file(self.task)) as temporary:
                temporary.write_bytes(data)
            self.learned = {self.add_class(name): place for name, place in learned.items()}

    def write_zip(self, target: Path) -> None:
        """The whole project in one file, images as they came."""
        with self.lock:
            about, keys = self.describe(), list(self.images)
        with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as archive:
            archive.writestr("project.json", json.dumps(about, indent=2, ensure_ascii=False))
            for key in keys:
                archive.write(self._original(key), f"images/{key}")
            if about["task"]:
                archive.write(self._task_file(about["task"]), "task")

    def read_zip(self, data: bytes, count_classes: Callable[[bytes], int]) -> dict[str, list[Any]]:
        """Merge a project's zip file into this one: classes by name, images by content.

        `count_classes` says how many classes a task file has, or raises.
        """
        try:
            archive = zipfile.ZipFile(io.BytesIO(data))
            about = parse(read_entry(archive, "project.json", 20_000_000))
            learned = {entry["name"]: entry["learned"] for entry in about["classes"] if entry["learned"]}
            task = read_entry(archive, "task", 25_000_000) if learned else b""
        except _BAD_ZIP as error:
            raise DataError(f"this is no project of the studio: {error}") from error
        where: dict[str, list[Upload]] = {}
        for entry in about["images"]:
            try:
                content = read_entry(archive, f"images/{entry['id']}", 25_000_000)
            except _BAD_ZIP:
                content = b""  # refused as empty, by name
            where.setdefault(entry["place"], []).append((entry["name"], content))
        if learned:
            if max(row for row, _ in learned.values()) >= count_classes(task):
                raise DataError("its task file does not fit")
            self.import_task(task, learned)
        places = {entry["id"]: self.add_class(entry["name"]) for entry in about["classes"]}
        total: dict[str, list[Any]] = {"added": [], "known": [], "refused": []}
        for place, uploads in where.items():
            for kind, found in self.add(uploads, places.get(place, place)).items():
                total[kind] += found
        return total

    # inside

    def _place(self, images: Iterable[str], place: str) -> None:
        for key in images:
            self.images[key] = {**self.images.pop(key), "place": place}  # moved to the end: the latest comes last

    def _check_place(self, place: str, places: Iterable[str] | None = None) -> None:
        if place not in (places if places is not None else (*self.classes, TEST, POOL)):
            raise InputError("there is no such class any more")

    @contextlib.contextmanager
    def _change(self, group: str = "") -> Iterator[None]:
        """What happens within is one change: saved and undone as a whole, and if it fails, it never was."""
        with self.lock:
            before, self._depth = self._snapshot(), self._depth + 1
            try:
                yield
                if self._depth == 1 and before != self._snapshot():
                    if not group or group != self._group:
                        self._past = [*self._past[1 - _UNDO :], before]
                    self._group = group
                    self._save()
            except BaseException:
                self._restore(before)
                raise
            finally:
                self._depth -= 1

    def _snapshot(self) -> tuple[Any, ...]:
        return self.name, dict(self.classes), list(self.images.items()), self.task, dict(self.learned)

    def _restore(self, snapshot: tuple[Any, ...]) -> None:
        self.name, self.classes, images, self.task, self.learned = snapshot
        self.images = dict(images)

    def _save(self) -> None:
        write_json(self.folder / "project.json", self.describe())
        for listener in self.listeners:
            listener()

    def _load(self) -> None:
        path = self.folder / "project.json"
        try:
            about = parse(path.read_bytes())
        except (OSError, DataError) as error:
            raise DataError(f"{path} cannot be read as a project: {error}") from error
        self.name = about["name"]
        self.classes = {entry["id"]: entry["name"] for entry in about["classes"]}
        self.task = about["task"]
        if self.task and self._task_file(self.task).is_file():
            self.learned = {entry["id"]: entry["learned"] for entry in about["classes"] if entry["learned"]}
        self.images = {
            entry["id"]: {"name": entry["name"], "place": entry["place"]}
            for entry in about["images"]
            if self._original(entry["id"]).is_file()
        }

    def _tidy(self) -> None:
        """Remove what no project refers to: images taken out, or never acknowledged before a crash."""
        known = {self.task, *self.images}
        for folder in ("images", "cache", "tasks"):
            for path in (self.folder / folder).glob("*"):
                unknown = ID.fullmatch(path.name[:32]) and path.name[:32] not in known
                if unknown or path.name.endswith(".tmp"):
                    path.unlink()

    def _keep(self, data: bytes) -> str:
        if not data:
            raise DataError("the file is empty")
        key = _hash(data)
        self._cached(key, ".thumb", data)
        if not self._original(key).exists():
            with atomic_path(self._original(key)) as temporary:
                temporary.write_bytes(data)
        return key

    def _cached(self, key: str, ending: str, data: bytes | None = None) -> Path:
        """A file of the cache, made from the image if it is not there."""
        pixels, thumbnail = (self.folder / "cache" / f"{key}{e}" for e in (f"-{self.decoder.size}.png", ".thumb"))
        if not (pixels.exists() and thumbnail.exists()):
            decoded = self.decoder.decode(self._original(key).read_bytes() if data is None else data)
            with atomic_path(thumbnail) as temporary:
                temporary.write_bytes(decoded.thumbnail)
            with atomic_path(pixels) as temporary:
                Image.fromarray(decoded.pixels).save(temporary, "PNG", compress_level=1)
        return self.folder / "cache" / f"{key}{ending}"

    def _original(self, key: str) -> Path:
        return self.folder / "images" / key

    def _task_file(self, key: str) -> Path:
        return self.folder / "tasks" / key


def _hash(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()
