"""What `project.json` may say: everything that comes from a file or a client is checked here."""

from __future__ import annotations

import json
import re
import zipfile
from typing import Any

from cnaps.errors import CnapsError, DataError, InputError

FORMAT, VERSION = "cnaps-project", 1
TEST, POOL = "test", "pool"  # places beside the classes
FOLDERS = "folders"  # the class that the folder of a file names
MAX_CLASSES, MAX_IMAGES = 200, 5_000
ID = re.compile(r"[0-9a-f]{32}")
_NAME = 60  # characters of a class name


def parse(text: bytes) -> dict[str, Any]:
    """A project description from outside, with everything in it checked."""
    try:
        about = json.loads(text)
        if about.get("format") != FORMAT:
            raise DataError("it does not say that it is a project of the studio")
        if about["version"] > VERSION:
            raise DataError("it was written by a newer version of cnaps: upgrade to read it")
        task = about.get("task", "")
        classes = [
            {"id": entry["id"], "name": class_name(entry["name"]), "learned": _pair(entry.get("learned"))}
            for entry in about["classes"]
        ]
        places = {entry["id"] for entry in classes} | {TEST, POOL}
        images = [
            {"id": entry["id"], "name": file_name(entry["name"]), "place": entry["place"]}
            for entry in about["images"]
        ]
        garbage = about.get("garbage", [])
        sound = (
            (task == "" or ID.fullmatch(task))
            and all(ID.fullmatch(key) for key in garbage)
            and len(classes) <= MAX_CLASSES
            and len(images) <= MAX_IMAGES
            and all(re.fullmatch(r"c[0-9]{1,6}", entry["id"]) for entry in classes)
            and all(ID.fullmatch(entry["id"]) and entry["place"] in places for entry in images)
        )
        if not sound:
            raise DataError("its description is damaged")
        return {
            "name": class_name(about["name"]),
            "task": task,
            "classes": classes,
            "images": images,
            "garbage": garbage,
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise error if isinstance(error, CnapsError) else DataError("its description is damaged") from error


def read_entry(archive: zipfile.ZipFile, name: str, limit: int) -> bytes:
    """A member of a zip file, unless it unpacks to more than `limit` bytes."""
    with archive.open(name) as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise DataError(f"{name} in the zip file is too large")
    return data


def _pair(value: Any) -> tuple[int, int] | None:
    return None if value is None else (int(value[0]), int(value[1]))


def class_name(name: str) -> str:
    """A name as people type it, made printable and of one line."""
    clean = " ".join("".join(c for c in str(name) if c.isprintable() or c.isspace()).split())[:_NAME].strip()
    if not clean:
        raise InputError("a name needs at least one letter")
    return clean


def file_name(name: str) -> str:
    """For showing only."""
    last = re.split(r"[/\\]", str(name))[-1]
    return "".join(c for c in last if c.isprintable())[-120:] or "image"
