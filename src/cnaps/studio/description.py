"""What `project.json` may say: everything that comes from a file or a client is checked here."""

from __future__ import annotations

import json
import re
import unicodedata
from typing import Any

from cnaps import values
from cnaps.errors import CnapsError, DataError, InputError
from cnaps.files import content_id, parse_json
from cnaps.serving.safety import shown

FORMAT, VERSION = "cnaps-project", 2  # 2: with images held out; without any a project still says 1
TEST, POOL = "test", "pool"  # places beside the classes
FOLDERS, HELD = "folders", "held"  # the class that the folder of a file names; the same, held out for the test
MAX_CLASSES, MAX_IMAGES = 200, 5_000
MAX_TASK = 100_000_000  # bytes of a task file
MAX_DESCRIPTION = 50_000_000  # bytes of a description: that of the largest project has a tenth of it
_ID = re.compile(r"[0-9a-f]{32}")
_CLASS = re.compile(r"c[0-9]{1,6}")
_MOST = 10**9  # of any number
_NAME = 120  # characters of a class name: as many as the folders that are made of it have


def encode(about: dict[str, Any]) -> str:
    """A description as the text of a file, with a digest of its content."""
    return json.dumps({**about, "digest": _digest(about)}, indent=2, ensure_ascii=False) + "\n"


def parse(text: bytes) -> dict[str, Any]:
    """A project description from outside, with everything in it checked; images have the `path` in a zip file."""
    try:
        about = parse_json(text.decode("utf-8"))
        if about.get("format") != FORMAT:
            raise DataError("it does not say that it is a project of the studio")
        if values.count(about["version"], "the version", 0, _MOST) > VERSION:
            raise DataError("it was written by a newer version of cnaps: upgrade to read it")
        if "digest" in about and about.pop("digest") != _digest(about):  # descriptions of version 0.1 have none
            raise DataError(
                "it does not fit its digest, so it is damaged; if you changed it yourself, take its `digest` out"
            )
        return _checked(about)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise error if isinstance(error, CnapsError) else DataError("its description is damaged") from error


def _checked(about: dict[str, Any]) -> dict[str, Any]:
    task, garbage = about.get("task", ""), about.get("garbage", [])
    taken: dict[str, int] = {}
    classes = [
        {
            "id": values.text(entry["id"], "an id"),
            "name": numbered(class_name(values.text(entry["name"], "a name")), taken),
            "learned": _learned(entry.get("learned")),
        }
        for entry in about["classes"]
    ]
    images: list[dict[str, Any]] = [
        {
            "id": values.text(entry["id"], "an id"),
            "name": shown(values.text(entry["name"], "a name")),
            "place": values.text(entry["place"], "a place"),
            **({"right": True} if entry.get("right") is True else {}),
            "path": values.text(entry.get("path", f"images/{entry['id']}"), "a path"),
        }
        for entry in about["images"]
    ]
    places = {str(entry["id"]) for entry in classes}
    known = {TEST, POOL, *places, *map(held_out, places)}
    rows = [entry["learned"][0] for entry in classes if entry["learned"]]
    sound = (
        (task == "" or _ID.fullmatch(task))
        and all(_ID.fullmatch(key) for key in garbage)
        and len(classes) <= MAX_CLASSES
        and len(images) <= MAX_IMAGES
        and all(_CLASS.fullmatch(key) for key in places)
        and all(_ID.fullmatch(entry["id"]) and entry["place"] in known for entry in images)
        and len(places) == len(classes)
        and len({entry["id"] for entry in images}) == len({entry["path"] for entry in images}) == len(images)
        and len(set(rows)) == len(rows)
    )
    if not sound:
        raise ValueError("its parts do not fit together")
    name = class_name(values.text(about["name"], "the name"))
    return {"name": name, "task": task, "classes": classes, "images": images, "garbage": garbage}


def held_out(key: str) -> str:
    """The place of the images of a class that are held out: they test what was learned and are never learned from.

    >>> held_out("c3")
    'h3'
    """
    return f"h{key[1:]}"


def _digest(about: dict[str, Any]) -> str:
    text = json.dumps({key: value for key, value in about.items() if key != "digest"}, sort_keys=True)
    return content_id(text.encode())


def _learned(value: Any) -> tuple[int, int] | None:
    """The row of a class in a task file, and its number of examples there."""
    if value is None:
        return None
    row, count = value
    return values.count(row, "a row", 0, _MOST), values.count(count, "the number of examples", 0, _MOST)


def class_name(name: str) -> str:
    """A name as people type it, made printable and of one line."""
    clean = " ".join("".join(c for c in str(name) if c.isprintable() or c.isspace()).split())[:_NAME].strip()
    if not clean:
        raise InputError("a name needs at least one letter")
    return clean


def fold(name: str) -> str:
    """What two names have in common that people, or a file system, take for one."""
    return unicodedata.normalize("NFC", name).casefold()


def numbered(name: str, taken: dict[str, int], ending: str = "") -> str:
    """The name, or the name with a number, so that it differs from all those before it; `taken` remembers them."""
    found = name
    while fold(found + ending) in taken:
        taken[fold(name + ending)] += 1
        number = f" ({taken[fold(name + ending)]})"
        found = name[: _NAME - len(number)].rstrip() + number
    taken[fold(found + ending)] = 1
    return found + ending
