"""A project on disk: a folder with `project.json`, the images as they came, and a cache that can be remade.

Every change is written whole before it is acknowledged, so a project survives being killed at any moment. Images
are named by the hash of their content; nothing a client says becomes part of a path.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import threading
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from PIL import Image

from cnaps.errors import CnapsError, DataError, InputError
from cnaps.files import atomic_path, write_json
from cnaps.studio.decoding import Decoded, Decoder

FORMAT, VERSION = "cnaps-project", 1
TEST, POOL = "test", "pool"  # places beside the classes
MAX_CLASSES, MAX_IMAGES = 200, 5_000
_NAME = 60  # characters of a class name
_UNDO = 100
_ID = re.compile(r"[0-9a-f]{32}")

Entry: TypeAlias = dict[str, str]  # name, place; never changed, only replaced
Upload: TypeAlias = tuple[str, bytes]  # a file's name and content


class Project:
    """Classes, images and where each image belongs: a class, the test tray or the unlabelled tray."""

    def __init__(self, folder: str | Path, decoder: Decoder) -> None:
        self.folder = Path(folder)
        self.decoder = decoder
        self.lock = threading.RLock()
        self.listeners: list[Callable[[], None]] = []
        self.name, self.classes, self.images = self.folder.absolute().name, dict[str, str](), dict[str, Entry]()
        self._past: list[tuple[str, dict[str, str], dict[str, Entry]]] = []
        self._group = ""
        self._unlock = _lock(self.folder)
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
            clean = _class_name(name)
            self._commit(lambda: self.classes.update({key: clean}))

    def remove_class(self, key: str) -> None:
        """Remove a class; its images become unlabelled."""
        with self.lock:
            self._check_place(key, classes_only=True)

            def change() -> None:
                del self.classes[key]
                self._place([i for i, entry in self.images.items() if entry["place"] == key], POOL)

            self._commit(change)

    def rename(self, name: str) -> None:
        """Give the project another name."""
        with self.lock:
            clean = _class_name(name)
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
            self.name, self.classes, self.images = self._past.pop()
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
                report["refused"].append({"name": _file_name(name), "reason": str(error)})
        with self.lock:
            if len(self.images) + len(added) > MAX_IMAGES:
                raise InputError(f"a project holds at most {MAX_IMAGES:,} images")
            if added:
                self._commit(lambda: self._enter(added, report), group)
        return report

    # reading

    def plan(self) -> tuple[dict[str, list[str]], list[str], list[str]]:
        """Images of each class by its name (those that have any), of the test tray, of the unlabelled tray."""
        with self.lock:
            by_place: dict[str, list[str]] = {}
            for key, entry in self.images.items():
                by_place.setdefault(entry["place"], []).append(key)
            classes = {name: by_place[key] for key, name in self.classes.items() if key in by_place}
            return classes, by_place.get(TEST, []), by_place.get(POOL, [])

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
            "classes": [{"id": key, "name": name} for key, name in self.classes.items()],
            "images": [{"id": key, **entry} for key, entry in self.images.items()],
        }

    # zip files

    def write_zip(self, target: Path) -> None:
        """The whole project in one file, images as they came."""
        with self.lock:
            about, keys = self.describe(), list(self.images)
        with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as archive:
            archive.writestr("project.json", json.dumps(about, indent=2, ensure_ascii=False))
            for key in keys:
                archive.write(self._original(key), f"images/{key}")

    def read_zip(self, data: bytes) -> dict[str, Any]:
        """Merge a project's zip file into this one: classes by name, images by content."""
        try:
            archive = zipfile.ZipFile(io.BytesIO(data))
            about = _parse(_read_entry(archive, "project.json", 20_000_000))
        except (zipfile.BadZipFile, KeyError, RuntimeError, NotImplementedError) as error:
            raise DataError(f"this is no project of the studio: {error}") from error
        names = {entry["id"]: entry["name"] for entry in about["classes"]}
        where: dict[str, list[Upload]] = {}
        for entry in about["images"]:
            try:
                data = _read_entry(archive, f"images/{entry['id']}", 25_000_000)
            except (KeyError, zipfile.BadZipFile, RuntimeError, NotImplementedError):
                data = b""
            where.setdefault(entry["place"], []).append((entry["name"], data))
        total: dict[str, Any] = {"added": [], "known": [], "refused": []}
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
        self.classes[f"c{number}"] = _class_name(name)
        return f"c{number}"

    def _enter(self, added: list[tuple[str, str, Any]], report: dict[str, Any]) -> None:
        for key, name, wanted in added:
            place = wanted
            if callable(wanted):
                class_name = wanted(name)
                place = self.find_class(class_name) or self._new_class(class_name)
            known = self.images.get(key)
            if known is None:
                self.images[key] = {"name": _file_name(name), "place": place}
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
        before = (self.name, dict(self.classes), dict(self.images))
        try:
            result = change()
            if before != (self.name, self.classes, self.images) or list(before[2]) != list(self.images):
                if not group or group != self._group:
                    self._past = [*self._past[1 - _UNDO :], before]
                self._group = group
                self._save()
            return result
        except BaseException:
            self.name, self.classes, self.images = before
            raise

    def _save(self) -> None:
        write_json(self.folder / "project.json", self.describe())
        for listener in self.listeners:
            listener()

    def _load(self) -> None:
        path = self.folder / "project.json"
        try:
            about = _parse(path.read_bytes())
        except (OSError, DataError) as error:
            raise DataError(f"{path} cannot be read as a project: {error}") from error
        self.name = about["name"]
        self.classes = {entry["id"]: entry["name"] for entry in about["classes"]}
        self.images = {
            entry["id"]: {"name": entry["name"], "place": entry["place"]}
            for entry in about["images"]
            if self._original(entry["id"]).is_file()
        }

    def _tidy(self) -> None:
        """Remove what no project refers to: images taken out, or never acknowledged before a crash."""
        for folder in ("images", "cache"):
            for path in (self.folder / folder).glob("*"):
                if path.name.endswith(".tmp") or (
                    _ID.fullmatch(path.name[:32]) and path.name[:32] not in self.images
                ):
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

    def _cached(self, key: str) -> Path:
        return self.folder / "cache" / f"{key}-{self.decoder.size}.png"


def _parse(text: bytes) -> dict[str, Any]:
    """A project description from outside, with everything in it checked."""
    try:
        about = json.loads(text)
        if about.get("format") != FORMAT:
            raise DataError("it does not say that it is a project of the studio")
        if about["version"] > VERSION:
            raise DataError("it was written by a newer version of cnaps: upgrade to read it")
        classes = [{"id": entry["id"], "name": _class_name(entry["name"])} for entry in about["classes"]]
        places = {entry["id"] for entry in classes} | {TEST, POOL}
        images = [
            {"id": entry["id"], "name": _file_name(entry["name"]), "place": entry["place"]}
            for entry in about["images"]
        ]
        sound = (
            len(classes) <= MAX_CLASSES
            and len(images) <= MAX_IMAGES
            and all(re.fullmatch(r"c[0-9]{1,6}", entry["id"]) for entry in classes)
            and all(_ID.fullmatch(entry["id"]) and entry["place"] in places for entry in images)
        )
        if not sound:
            raise DataError("its description is damaged")
        return {"name": _class_name(about["name"]), "classes": classes, "images": images}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise error if isinstance(error, CnapsError) else DataError("its description is damaged") from error


def _read_entry(archive: zipfile.ZipFile, name: str, limit: int) -> bytes:
    with archive.open(name) as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise DataError(f"{name} in the zip file is too large")
    return data


def _class_name(name: str) -> str:
    clean = " ".join("".join(c for c in str(name) if c.isprintable() or c.isspace()).split())[:_NAME].strip()
    if not clean:
        raise InputError("a name needs at least one letter")
    return clean


def _file_name(name: str) -> str:
    """For showing only."""
    last = re.split(r"[/\\]", str(name))[-1]
    return "".join(c for c in last if c.isprintable())[-120:] or "image"


def _lock(folder: Path) -> Callable[[], None]:
    """Keep a second studio out of the folder; the lock goes with the process, however it ends."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / ".lock").open("w")
    except OSError as error:
        raise CnapsError(f"cannot use {folder} as a project: {error.strerror or error}") from error
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except ImportError:
        pass
    except OSError as error:
        file.close()
        raise CnapsError(f"{folder} is open in another studio: close that one first") from error
    return file.close
