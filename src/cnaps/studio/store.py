"""A project: classes, images and where each belongs, as `project.json` holds it.

Every change is written whole before it is acknowledged, so a project survives being killed at any moment.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, TypeAlias

from cnaps.errors import DataError, InputError, explained
from cnaps.files import lock_folder, write_text
from cnaps.serving.decoding import Decoder
from cnaps.serving.safety import shown
from cnaps.studio.description import (
    FOLDERS,
    FORMAT,
    HELD,
    MAX_CLASSES,
    MAX_IMAGES,
    POOL,
    TEST,
    VERSION,
    class_name,
    encode,
    fold,
    held_out,
    parse,
)
from cnaps.studio.files import ProjectFiles

_UNDO = 100
_NOTHING = {".lock", ".DS_Store", "Thumbs.db", "desktop.ini"}  # a folder with only these is empty

Entry: TypeAlias = dict[str, Any]  # name, place, `right` if its label was confirmed; never changed, only replaced
Upload: TypeAlias = tuple[str, bytes]  # a file's name and content
Report: TypeAlias = dict[str, list[Any]]  # what became of images


@dataclass(frozen=True)
class Contents:
    """What there is to learn: images of each class by its name, the trays, and what an imported task knows."""

    classes: dict[str, list[str]]  # those with images
    held: dict[str, list[str]]  # by class as well: what is never learned from
    test: list[str]
    pool: list[str]
    task: Path | None
    learned: dict[str, int]  # the row of each class in the task

    @property
    def names(self) -> list[str]:
        """Classes that can be recognised, sorted."""
        return sorted({*self.classes, *self.learned})


class Project:
    """Classes, images and where each image belongs: a class, what is held out of it, or one of two trays."""

    def __init__(self, folder: str | Path, decoder: Decoder) -> None:
        self.folder = Path(folder)
        self.files = ProjectFiles(self.folder, decoder)
        self.lock = threading.RLock()
        self.listeners: list[Callable[[], None]] = []
        self.name = self.folder.absolute().name
        self.classes: dict[str, str] = {}  # names by id
        self.images: dict[str, Entry] = {}
        self.task = ""  # the id of an imported task file
        self.learned: dict[str, tuple[int, int]] = {}  # by class: its row in the task, its number of examples
        self._past: list[Any] = []
        self._group, self._depth = "", 0
        self._missing: dict[str, Entry] = {}  # images whose files are not there; they may come back
        self._garbage: set[str] = set()  # of every file that it has ever referred to, what was taken out
        new = not (self.folder / "project.json").exists()
        if new and not is_empty(self.folder):
            raise InputError(
                f"{self.folder} is not empty and no project of the studio (it has no project.json): "
                "give a new or an empty folder, or one of class folders to import"
            )
        self._held = lock_folder(self.folder, f"{self.folder} is open in another studio: close that one first")
        try:
            if new:
                self._save()  # from here on the folder is a project
            else:
                self._load()
                self._garbage = self.files.tidy(self._known(), self._garbage)
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
        wanted = fold(class_name(name))
        return next((key for key, known in self.classes.items() if fold(known) == wanted), None)

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
            gone = (key, held_out(key))
            self._place([i for i, entry in self.images.items() if entry["place"] in gone], POOL)

    def rename(self, name: str) -> None:
        """Give the project another name."""
        with self._change():
            self.name = class_name(name)

    def move(self, images: Iterable[str], place: str) -> None:
        """Put images into a class or a tray."""
        with self._change():
            self._check_place(place)
            self._place([i for i in images if i in self.images], place)

    def confirm(self, images: Iterable[str]) -> None:
        """Remember that the labels of images are right, for as long as they stay where they are."""
        with self._change():
            for key in images:
                if key in self.images:
                    self.images[key] = {**self.images[key], "right": True}

    def hold_out(self, share: float) -> int:
        """Hold a share of the examples of each class out for the test, the same ones every time; how many."""
        with self._change():
            total = 0
            for key in self.classes:
                own = sorted(i for i, entry in self.images.items() if entry["place"] == key)
                some = own[: int(share * len(own))]
                self._place(some, held_out(key))
                total += len(some)
            return total

    def remove(self, images: Iterable[str]) -> None:
        """Take images out; until the project is next opened that can be undone, then they lie in the trash."""
        with self._change():
            for key in images:
                self.images.pop(key, None)

    def undo(self) -> bool:
        """Take the last change back."""
        with self.lock:
            if not self._past:
                return False
            before = self._snapshot()
            self._restore(self._past[-1])
            try:
                self._save()
            except BaseException:
                self._follow_disk(before)
                raise
            self._past.pop()
            self._group = ""
            return True

    @property
    def can_undo(self) -> bool:
        """Whether there is a change to take back."""
        return bool(self._past)

    def add(self, uploads: Iterable[Upload], place: str, group: str = "") -> Report:
        """Put new images into a place; with FOLDERS or HELD, each into the class that its folder names.

        Additions in a row with the same `group` are undone together. Returns what became of the images: ids
        `added`, names `known` already, of those the ones `moved` from another place, and `refused` with reasons.
        """
        kept, report = self._keep_all((name, data, place) for name, data in uploads)
        with self._change(group):
            self._check_place(place, (*self._places(), FOLDERS, HELD))
            if place == FOLDERS:
                folders = [PurePosixPath(name).parent.name or "unnamed" for _, name, _ in kept]
                kept = [(key, name, self.add_class(f)) for (key, name, _), f in zip(kept, folders, strict=True)]
            elif place == HELD:
                kept = self._by_class(kept, report)
            self._put(kept, report)
        return report

    def merge(self, about: Mapping[str, Any], task: bytes, uploads: Iterable[tuple[str, bytes, str]]) -> Report:
        """Add another project, as one change: its checked description, its task file, and images with places.

        Returns what became of the images, as `add` does.
        """
        kept, report = self._keep_all(uploads)
        with self._change():
            places = {entry["id"]: self.add_class(entry["name"]) for entry in about["classes"]}
            places |= {held_out(theirs): held_out(ours) for theirs, ours in places.items()}
            if task:
                self.import_task(task, {e["name"]: e["learned"] for e in about["classes"] if e["learned"]})
            self._put([(key, name, places.get(place, place)) for key, name, place in kept], report)
            right = [(e["id"], places.get(e["place"])) for e in about["images"] if e.get("right")]
            self.confirm(key for key, place in right if self.images.get(key, {}).get("place") == place)
        return report

    # reading

    def contents(self) -> Contents:
        """What there is to learn at this moment."""
        with self.lock:
            by_place: dict[str, list[str]] = {}
            for key, entry in self.images.items():
                by_place.setdefault(entry["place"], []).append(key)
            classes, held = (
                {name: by_place[of(key)] for key, name in self.classes.items() if of(key) in by_place}
                for of in (str, held_out)
            )
            learned = {self.classes[key]: row for key, (row, _) in self.learned.items()}
            task = self.files.task(self.task) if learned else None
            return Contents(classes, held, by_place.get(TEST, []), by_place.get(POOL, []), task, learned)

    def thumbnail(self, key: str) -> bytes:
        """A small picture of an image."""
        if key not in self.images:
            raise DataError("there is no such image")
        return self.files.thumbnail(key)

    def describe(self) -> dict[str, Any]:
        """What `project.json` holds."""
        with self.lock:
            classes = [{"id": i, "name": name, "learned": self.learned.get(i)} for i, name in self.classes.items()]
            images = [{"id": key, **entry} for key, entry in self.images.items()]
            entries = (*self.images.values(), *self._missing.values())
            version = VERSION if any(entry["place"].startswith("h") for entry in entries) else 1
            about = {"format": FORMAT, "version": version, "name": self.name, "task": self.task}
            return {**about, "classes": classes, "images": images}

    # files in and out

    def import_task(self, data: bytes, learned: Mapping[str, tuple[int, int]]) -> None:
        """Start from a task learned elsewhere; `learned` says by name which row of it each class is."""
        with self._change():
            if self.learned:
                raise InputError("this project starts from an imported task already: begin a new one for another")
            self.task = self.files.keep_task(data)
            self.learned = {self.add_class(name): place for name, place in learned.items()}

    # inside

    def _keep_all(self, uploads: Iterable[tuple[str, bytes, str]]) -> tuple[list[tuple[str, str, str]], Report]:
        """Write images to the disk, not yet a part of the project: ids, names and places, and those refused."""
        kept: list[tuple[str, str, str]] = []
        report: Report = {"added": [], "known": [], "moved": [], "refused": []}
        for name, data, place in uploads:
            try:
                kept.append((self.files.keep_image(data), name, place))
            except DataError as error:
                report["refused"].append({"name": shown(name), "reason": str(error)})
        return kept, report

    def _put(self, kept: Iterable[tuple[str, str, str]], report: Report) -> None:
        for key, name, place in kept:
            known = self.images.get(key)
            if known is None:
                report["added"].append(key)
                self._missing.pop(key, None)
                self.images[key] = {"name": shown(name), "place": place}
            else:
                report["known"].append(known["name"])
                if place not in (TEST, POOL, known["place"]):  # a label says more than a tray
                    report["moved"].append({"name": known["name"], "from": known["place"], "to": place})
                    self._place([key], place)
        if len({*self.images, *self._missing}) > MAX_IMAGES:
            raise InputError(f"a project holds at most {MAX_IMAGES:,} images")

    def _place(self, images: Iterable[str], place: str) -> None:
        for key in images:
            # moved to the end: the latest comes last; nobody has confirmed the new label
            self.images[key] = {"name": self.images.pop(key)["name"], "place": place}

    def _check_place(self, place: str, places: Iterable[str] | None = None) -> None:
        if place not in (places if places is not None else self._places()):
            raise InputError("there is no such class any more")

    def _places(self) -> list[str]:
        return [*self.classes, *map(held_out, self.classes), TEST, POOL]

    def _by_class(self, kept: list[tuple[str, str, str]], report: Report) -> list[tuple[str, str, str]]:
        """Images for the test, by the folder that each lies in; a class that is not there cannot be asked for."""
        found = []
        for key, name, _ in kept:
            folder = PurePosixPath(name).parent.name
            with contextlib.suppress(InputError):  # a folder that can be no class
                if known := self.find_class(folder):
                    found.append((key, name, held_out(known)))
                    continue
            named = f"no class is named {shown(folder)!r}"
            reason = named if folder else "it lies in no folder named like a class"
            report["refused"].append({"name": shown(name), "reason": reason})
        return found

    @contextlib.contextmanager
    def _change(self, group: str = "") -> Iterator[None]:
        """What happens within is one change: saved and undone as a whole, and if it fails, it never was."""
        with self.lock:
            before, self._depth = self._snapshot(), self._depth + 1
            try:
                yield
                if self._depth == 1 and before != self._snapshot():
                    self._save()
            except BaseException:
                self._follow_disk(before)
                raise
            finally:
                self._depth -= 1
                if self._depth == 0 and before != self._snapshot():
                    if not group or group != self._group:
                        self._past = [*self._past[1 - _UNDO :], before]
                    self._group = group

    def _follow_disk(self, before: tuple[Any, ...]) -> None:
        """After a failure, be what is on the disk: that may be new already when the disk fails to promise it."""
        try:
            saved = (self.folder / "project.json").read_text(encoding="utf-8") == self._text()
        except (OSError, ValueError):
            saved = False
        if not saved:
            self._restore(before)

    def _snapshot(self) -> tuple[Any, ...]:
        return self.name, dict(self.classes), list(self.images.items()), self.task, dict(self.learned)

    def _restore(self, snapshot: tuple[Any, ...]) -> None:
        self.name, self.classes, images, self.task, self.learned = snapshot
        self.images = dict(images)

    def _save(self) -> None:
        known = self._known()
        self._garbage |= self.files.written - known
        self.files.written |= known
        write_text(self.folder / "project.json", self._text())
        for listener in self.listeners:
            listener()

    def _text(self) -> str:
        away = [
            {"id": key, **entry, "place": entry["place"] if entry["place"] in self._places() else POOL}
            for key, entry in self._missing.items()
            if key not in self.images
        ]
        about = self.describe()
        return encode({**about, "images": about["images"] + away, "garbage": sorted(self._garbage)})

    def _load(self) -> None:
        path = self.folder / "project.json"
        with explained(DataError, f"{path} cannot be read as a project", OSError, DataError):
            about = parse(path.read_bytes())
        self.name = about["name"]
        self.classes = {entry["id"]: entry["name"] for entry in about["classes"]}
        self.task = about["task"]
        self.learned = {e["id"]: e["learned"] for e in about["classes"] if e["learned"]} if self.task else {}
        for entry in about["images"]:
            there = self.files.original(entry["id"]).is_file()
            (self.images if there else self._missing)[entry["id"]] = {
                k: entry[k] for k in ("name", "place", "right") if k in entry
            }
        self._garbage = set(about["garbage"])
        self.files.written = self._known() | self._garbage

    def _known(self) -> set[str]:
        return {*self.images, *self._missing, *([self.task] if self.task else [])}


def is_empty(folder: Path) -> bool:
    """Whether a project may begin in a folder: it does not exist, or holds nothing of anybody's."""
    try:
        return all(path.name in _NOTHING or path.name.startswith(".project.json.") for path in folder.iterdir())
    except FileNotFoundError:
        return True
    except OSError as error:
        raise InputError(f"{folder} cannot be opened as a folder: {error.strerror or error}") from error
