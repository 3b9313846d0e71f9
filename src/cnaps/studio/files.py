"""The files of a project: images as they came, pictures of them that can be remade, imported tasks, the trash.

Files are named by the hash of their content; nothing that a client says becomes part of a path.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from pathlib import Path

import numpy as np
from PIL import Image

from cnaps.errors import DataError, explained
from cnaps.files import atomic_path, content_id
from cnaps.images.sizes import Look
from cnaps.serving.decoding import Decoder

_DAY = 86_400.0  # seconds that garbage is kept
# a file of the project's own, whole or half-written, by the id that it begins with
_OWN = re.compile(r"([0-9a-f]{32})(?:\.thumb|-[0-9]+\.png)?|\.([0-9a-f]{32}).*\.[a-z0-9_]{8,12}\.tmp")


class ProjectFiles:
    """What lies in the folders `images`, `cache`, `tasks` and `trash` of a project."""

    def __init__(self, folder: Path, decoder: Decoder) -> None:
        self.folder, self.decoder = folder, decoder
        self.written: set[str] = set()  # ids of every file that the project has ever referred to
        self._looks: dict[str, Look | None] = {}

    def original(self, key: str) -> Path:
        """The file of an image, as it came."""
        return self.folder / "images" / key

    def task(self, key: str) -> Path:
        """The file of an imported task."""
        return self.folder / "tasks" / key

    def keep_image(self, data: bytes) -> str:
        """Write an image, if it can be read; its id."""
        if not data:
            raise DataError("the file is empty")
        key = content_id(data)
        self._cached(key, ".thumb", self.decoder.size, data)
        if not self.original(key).exists():
            self._keep(key, self.original(key), data)
        return key

    def keep_task(self, data: bytes) -> str:
        """Write a task file; its id."""
        key = content_id(data)
        self._keep(key, self.task(key), data)
        return key

    def _keep(self, key: str, path: Path, data: bytes) -> None:
        self.written.add(key)
        with atomic_path(path) as temporary:
            temporary.write_bytes(data)

    def pixels(self, key: str, size: int | None = None) -> np.ndarray:
        """An image as the model reads it at a size, uint8 (size, size, 3)."""
        size = size or self.decoder.size
        return np.asarray(Image.open(self._cached(key, f"-{size}.png", size), formats=("PNG",)))

    def look(self, key: str) -> Look | None:
        """What an image looks like, for the choice of a size."""
        if key not in self._looks:
            self._looks[key] = self.decoder.look(self._content(key))
        return self._looks[key]

    def read_at(self, size: int) -> None:
        """From now on images are read at this size; what was kept of them at others is deleted."""
        self.decoder.size = size
        for path in (self.folder / "cache").glob("*.png"):
            if _OWN.fullmatch(path.name) and not path.name.endswith(f"-{size}.png"):
                path.unlink(missing_ok=True)

    def thumbnail(self, key: str) -> bytes:
        """A small picture of an image."""
        return self._cached(key, ".thumb", self.decoder.size).read_bytes()

    def tidy(self, known: set[str], garbage: set[str]) -> set[str]:
        """Move garbage to the project's own trash, and delete what has lain there for a day.

        Garbage is what the project lists as taken out, and files of its own that were half-written when it was
        killed. Whatever else is in these folders is not the studio's to touch. Returns the garbage that is left.
        """
        garbage, left = set(garbage), set()
        trash = self.folder / "trash"
        for path in [
            path for name in ("images", "cache", "tasks", "trash") for path in (self.folder / name).glob("*")
        ]:
            found = _OWN.fullmatch(path.name)
            if not found or not path.is_file():
                continue
            key, half = found[1] or found[2], bool(found[2])
            with contextlib.suppress(OSError):  # a project that can be read only is opened all the same
                if path.parent == trash:
                    if key in garbage and path.stat().st_mtime < time.time() - _DAY:
                        path.unlink()
                elif half or (key in garbage and key not in known):
                    trash.mkdir(exist_ok=True)
                    os.utime(path)  # its day begins
                    os.replace(path, trash / path.name)
                    garbage.add(key)
                    left.add(key)
            if path.exists():
                left.add(key)
        return garbage & left

    def _content(self, key: str) -> bytes:
        with explained(DataError, "an image cannot be read", OSError):
            return self.original(key).read_bytes()

    def _cached(self, key: str, ending: str, size: int, data: bytes | None = None) -> Path:
        """A file of the cache, made from the image if it is not there; its pixels at a size come with it."""
        wanted = self.folder / "cache" / f"{key}{ending}"
        if not wanted.exists():
            pixels, thumbnail = (self.folder / "cache" / f"{key}{e}" for e in (f"-{size}.png", ".thumb"))
            decoded = self.decoder.decode(self._content(key) if data is None else data, size)
            with atomic_path(thumbnail) as temporary:
                temporary.write_bytes(decoded.thumbnail)
            with atomic_path(pixels) as temporary:
                Image.fromarray(decoded.pixels).save(temporary, "PNG", compress_level=1)
        return wanted
