"""A project on disk: a folder with `project.json`, the images as they came, and a cache that can be remade.

Every change is written whole before it is acknowledged, so a project survives being killed at any moment. Images
are named by the hash of their content; nothing a client says becomes part of a path.
"""

from __future__ import annotations

import hashlib
import io
import json
import threading
import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from PIL import Image

from cnaps.errors import CnapsError, DataError, InputError
from cnaps.files import atomic_path, write_json
from cnaps.studio.decoding import Decoded, Decoder
from cnaps.studio.description import (
    FORMAT,
    ID,
    MAX_CLASSES,
    MAX_IMAGES,
    POOL,
    TEST,
    VERSION,
    class_name,
    file_name,
    lock_folder,
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
        self._group = ""
        self._unlock = lock_folder(self.folder)
        if (self.folder / "project.json").exists():
            self._load()
        self._tidy()

    def close(self) -> None:
        """Let others open the folder."""
        self._unlock()

    # changes

    def add_class(self, name: str) -> str:
        """A new class, or the one of that name; its id."""
        with self.lock:
            found = self.find_class(name)
            return found or self._commit(lambda: self._new_class(name))

    def find_class(self, name: str) -> str | None:
        """The id of a class, whatever the case of its name."""
        wanted = " ".join(name.split()).casefold()
        return next((key for key, known in self.classes.items() if known.casefold() == wanted), None)

    def rename_class(self, key: str, name: str) -> None:
        """Give a class another name."""
        with self.lock:
            self._check_place(key, classes_only=True)
            if self.find_class(name) not in (None, key):
                raise InputError(f"there is a class named {name!r} already")
            clean = class_name(name)
            self._commit(lambda: self.classes.update({key: clean}))

    def remove_class(self, key: str) -> None:
        """Remove a class; its images become unlabelled."""
        with self.lock:
            self._check_place(key, classes_only=True)

            def change() -> None:
                del self.classes[key]
                self.learned.pop(key, None)
                self._place([i for i, entry in self.images.items() if entry["place"] == key], POOL)

            self._commit(change)

    def rename(self, name: str) -> None:
        """Give the project another name."""
        with self.lock:
            clean = class_name(name)
            self._commit(lambda: setattr(self, "name", clean))

    def move(self, images: Iterable[str], place: str) -> None:
        """Put images into a class or a tray."""
        with self.lock:
            self._check_place(place)
            known = [i for i in images if i in self.images]
            self._commit(lambda: self._place(known, place))

    def remove(self, images: Iterable[str]) -> None:
        """Take images out; their files go when the project is next opened, until then it can be undone."""
        with self.lock:
            gone = set(images)
            self._commit(lambda: setattr(self, "images", {i: e for i, e in self.images.items() if i not in gone}))

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

    def add(self, uploads: Iterable[Upload], place: str | Callable[[str], str], group: str = "") -> dict[str, Any]:
        """Put new images into a place, or each into the class that `place` names for it.

        Additions in a row with the same `group` are undone together. Returns what became of the images: ids
        `added`, names `known` already (moved where that makes a difference), and `refused` with reasons.
        """
        if isinstance(place, str):
            self._check_place(place)
        added: list[tuple[str, str, str | Callable[[str], str]]] = []
        report: dict[str, Any] = {"added": [], "known": [], "refused": []}
        for name, data in uploads:
            try:
                added.append((self._keep(data), name, place))
            except CnapsError as error:
                report["refused"].append({"name": file_name(name), "reason": str(error)})
        with self.lock:
            if len(self.images) + len(added) > MAX_IMAGES:
                raise InputError(f"a project holds at most {MAX_IMAGES:,} images")
            if added:
                self._commit(lambda: self._enter(added, report), group)
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
        path = self._cached(key)
        if not path.exists():
            self._cache(key, self.decoder.decode(self._original(key).read_bytes()))
        return np.asarray(Image.open(path, formats=("PNG",)))

    def thumbnail(self, key: str) -> bytes:
        """A small picture of an image."""
        if key not in self.images:
            raise DataError("there is no such image")
        path = self.folder / "cache" / f"{key}.thumb"
        if not path.exists():
            self._cache(key, self.decoder.decode(self._original(key).read_bytes()))
        return path.read_bytes()

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
        with self.lock:
            if self.learned:
                raise InputError(
                    "this project starts from an imported task already: begin a new project for another"
                )
            key = hashlib.blake2b(data, digest_size=16).hexdigest()
            with atomic_path(self._task_file(key)) as temporary:
                temporary.write_bytes(data)

            def change() -> None:
                self.task = key
                for name, place in learned.items():
                    self.learned[self.find_class(name) or self._new_class(name)] = place

            self._commit(change)

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

    def read_zip(self, data: bytes, count_classes: Callable[[bytes], int]) -> dict[str, Any]:
        """Merge a project's zip file into this one: classes by name, images by content.

        `count_classes` says how many classes a task file has, or raises.
        """
        total: dict[str, Any] = {"added": [], "known": [], "refused": []}
        try:
            archive = zipfile.ZipFile(io.BytesIO(data))
            about = parse(read_entry(archive, "project.json", 20_000_000))
            learned = {entry["name"]: entry["learned"] for entry in about["classes"] if entry["learned"]}
            task = read_entry(archive, "task", 25_000_000) if learned else b""
        except _BAD_ZIP as error:
            raise DataError(f"this is no project of the studio: {error}") from error
        names = {entry["id"]: entry["name"] for entry in about["classes"]}
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
        for name in names.values():
            self.add_class(name)
        for place, uploads in where.items():
            target = place if place in (TEST, POOL) else self.add_class(names[place])
            for kind, found in self.add(uploads, target).items():
                total[kind] += found
        return total

    # inside

    def _new_class(self, name: str) -> str:
        if len(self.classes) >= MAX_CLASSES:
            raise InputError(f"a project holds at most {MAX_CLASSES} classes")
        number = max((int(key[1:]) for key in self.classes), default=0) + 1
        self.classes[f"c{number}"] = class_name(name)
        return f"c{number}"

    def _enter(self, added: list[tuple[str, str, Any]], report: dict[str, Any]) -> None:
        for key, name, wanted in added:
            place = wanted
            if callable(wanted):
                folder = wanted(name)
                place = self.find_class(folder) or self._new_class(folder)
            known = self.images.get(key)
            if known is None:
                self.images[key] = {"name": file_name(name), "place": place}
                report["added"].append(key)
            else:
                report["known"].append(known["name"])
                if place in self.classes:  # a label says more than a tray
                    self.images[key] = {**known, "place": place}

    def _place(self, images: Iterable[str], place: str) -> None:
        for key in images:
            self.images[key] = {**self.images.pop(key), "place": place}  # moved to the end: the latest comes last

    def _check_place(self, place: str, classes_only: bool = False) -> None:
        if place not in self.classes and (classes_only or place not in (TEST, POOL)):
            raise InputError("there is no such class any more")

    def _commit(self, change: Callable[[], Any], group: str = "") -> Any:
        before = self._snapshot()
        try:
            result = change()
            if before != self._snapshot() or list(before[2]) != list(self.images):
                if not group or group != self._group:
                    self._past = [*self._past[1 - _UNDO :], before]
                self._group = group
                self._save()
            return result
        except BaseException:
            self._restore(before)
            raise

    def _snapshot(self) -> tuple[str, dict[str, str], dict[str, Entry], str, dict[str, tuple[int, int]]]:
        return self.name, dict(self.classes), dict(self.images), self.task, dict(self.learned)

    def _restore(self, snapshot: Any) -> None:
        self.name, self.classes, self.images, self.task, self.learned = snapshot

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
        key = hashlib.blake2b(data, digest_size=16).hexdigest()
        if not self._cached(key).exists():
            self._cache(key, self.decoder.decode(data))
        if not self._original(key).exists():
            with atomic_path(self._original(key)) as temporary:
                temporary.write_bytes(data)
        return key

    def _cache(self, key: str, decoded: Decoded) -> None:
        with atomic_path(self.folder / "cache" / f"{key}.thumb") as temporary:
            temporary.write_bytes(decoded.thumbnail)
        with atomic_path(self._cached(key)) as temporary:
            Image.fromarray(decoded.pixels).save(temporary, "PNG", compress_level=1)

    def _original(self, key: str) -> Path:
        return self.folder / "images" / key

    def _task_file(self, key: str) -> Path:
        return self.folder / "tasks" / key

    def _cached(self, key: str) -> Path:
        return self.folder / "cache" / f"{key}-{self.decoder.size}.png"
