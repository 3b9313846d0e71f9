"""Images from outside are decoded in processes of their own.

Whatever a file does to a decoder, be it a crash, a hang or a flood of memory, ends that process and not the
server; the file is refused and a fresh process takes over.
"""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import queue
import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from PIL import Image

from cnaps.errors import DataError
from cnaps.images.decoding import load_image, to_array
from cnaps.images.inputs import MIN_SIDE, look_at
from cnaps.images.sizes import Look

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

T = TypeVar("T")
MAX_BYTES = 20_000_000
MAX_PIXELS = 60_000_000
_THUMBNAIL = 320
_SECONDS = 20.0
_MEMORY = 4_000_000_000  # bytes of address space


@dataclass(frozen=True)
class Decoded:
    """An image as the model reads it, uint8 (S, S, 3), and a small picture of it for people (JPEG or PNG)."""

    pixels: np.ndarray
    thumbnail: bytes


class Decoder:
    """A few decoding processes; `decode` may be called from any thread."""

    def __init__(self, size: int, workers: int = 2) -> None:
        self.size, self._seconds = size, _SECONDS
        self._idle: queue.Queue[_Worker] = queue.Queue()
        for _ in range(workers):
            self._idle.put(_Worker())
        self._workers = workers

    def decode(self, data: bytes, size: int | None = None) -> Decoded:
        """Decode the content of an image file, at another size if one is given, or raise DataError."""
        return self._ask(_decode, data, size or self.size)

    def pixels(self, data: bytes, size: int | None = None) -> np.ndarray:
        """The same without a picture for people."""
        return self._ask(_pixels, data, size or self.size)

    def look(self, data: bytes) -> Look | None:
        """What an image file looks like, for the choice of a size."""
        return self._ask(look_at, data)

    def _ask(self, work: Callable[..., T], data: bytes, *more: int) -> T:
        if len(data) > MAX_BYTES:
            raise DataError(f"the file has {len(data) / 1e6:.0f} MB; the limit is {MAX_BYTES // 1_000_000} MB")
        worker = self._idle.get()
        try:
            answer: T | str = worker.ask((work, data, *more), self._seconds)
        except (EOFError, OSError, TimeoutError) as error:
            worker.end()
            worker = _Worker()
            slow = f"decoding it took more than {self._seconds:g} seconds"
            broken = "its decoder broke down over it"
            raise DataError(slow if isinstance(error, TimeoutError) else broken) from error
        finally:
            self._idle.put(worker)
        if isinstance(answer, str):
            raise DataError(answer)
        return answer

    def close(self) -> None:
        """End the processes."""
        for _ in range(self._workers):
            self._idle.get().end()


class _Worker:
    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")  # nothing of the server is inherited
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()
        self._ready = False

    def ask(self, question: tuple[Any, ...], seconds: float) -> Any:
        if not self._ready:  # the time that a process takes to start is not the file's fault
            self._ready = self._pipe.recv()
        self._pipe.send(question)
        if not self._pipe.poll(seconds):
            raise TimeoutError
        return self._pipe.recv()

    def end(self) -> None:
        self._process.kill()
        self._process.join()
        self._pipe.close()


def _serve(pipe: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(ImportError):  # there is no such module on Windows
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    with contextlib.suppress(EOFError, OSError):  # the server is gone
        pipe.send(True)
        while True:
            work, data, *more = pipe.recv()
            try:
                pipe.send(work(data, *more))
            except DataError as error:
                pipe.send(str(error).removeprefix("the image "))


def _open(data: bytes, size: int) -> Image.Image:
    image = load_image(data, max_pixels=MAX_PIXELS, at_least=2 * size)
    if min(image.size) < MIN_SIDE:
        raise DataError(f"has {image.width} x {image.height} pixels: too small to show anything")
    return image


def _pixels(data: bytes, size: int) -> np.ndarray:
    return np.ascontiguousarray(to_array(_open(data, size), size))


def _decode(data: bytes, size: int) -> Decoded:
    image = _open(data, size)
    pixels = np.ascontiguousarray(to_array(image, size))
    image.thumbnail((_THUMBNAIL, _THUMBNAIL))
    buffer = io.BytesIO()
    image.save(buffer, "PNG" if max(image.size) <= 64 else "JPEG", quality=88)
    return Decoded(pixels, buffer.getvalue())
