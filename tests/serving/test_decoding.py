"""Files that mean harm, or just are broken."""

from __future__ import annotations

import io
import os
import signal
import struct
import zlib
from collections.abc import Iterator

import numpy as np
import pytest
from PIL import Image

from cnaps.errors import DataError
from cnaps.images.inputs import read_pixels
from cnaps.serving.decoding import MAX_BYTES, Decoder


@pytest.fixture(scope="module")
def decoder() -> Iterator[Decoder]:
    found = Decoder(32, workers=1)
    yield found
    found.close()


def encoded(width: int, height: int, kind: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 255, (height, width, 3), np.uint8)
    Image.fromarray(pixels).save(buffer, kind)
    return buffer.getvalue()


def bomb() -> bytes:
    """A small PNG that says it has 30,000 x 30,000 pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 30_000, 30_000, 8, 2, 0, 0, 0)
    data = chunk(b"IDAT", zlib.compress(b"\0" * 1000))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + data + chunk(b"IEND", b"")


def test_pixels_are_those_that_the_classifier_reads(decoder: Decoder) -> None:
    data = encoded(300, 200, "JPEG")
    found = decoder.decode(data)
    np.testing.assert_array_equal(found.pixels, read_pixels(data, 32))
    assert max(Image.open(io.BytesIO(found.thumbnail)).size) <= 320


@pytest.mark.parametrize(("data", "words"), [
    (b"<svg onload='alert(1)'/>", "no image"),
    (encoded(64, 64)[:200], "cannot be read"),
    (bomb(), "limit"),
    (encoded(2, 2), "too small"),
    (b"\0" * (MAX_BYTES + 1), "limit"),
])  # fmt: skip
def test_a_bad_file_is_refused_with_the_reason(decoder: Decoder, data: bytes, words: str) -> None:
    with pytest.raises(DataError, match=words):
        decoder.decode(data)


def test_a_decoder_that_dies_is_replaced(decoder: Decoder) -> None:
    worker = decoder._idle.get()
    worker._process.kill()
    worker._process.join()
    decoder._idle.put(worker)
    with pytest.raises(DataError, match="broke down"):
        decoder.decode(encoded(20, 20))
    assert decoder.decode(encoded(20, 20)).pixels.shape == (32, 32, 3)


def test_a_decoder_that_hangs_is_replaced() -> None:
    slow = Decoder(32, workers=1)
    slow.decode(encoded(20, 20))
    worker = slow._idle.get()
    os.kill(worker._process.pid or 0, signal.SIGSTOP)
    slow._idle.put(worker)
    slow._seconds = 0.2
    with pytest.raises(DataError, match="seconds"):
        slow.decode(encoded(20, 20))
    slow._seconds = 60
    assert slow.decode(encoded(20, 20)).pixels.shape == (32, 32, 3)
    slow.close()
