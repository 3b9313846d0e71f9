"""Any image file becomes upright 8-bit RGB."""

from __future__ import annotations

import contextlib
import io
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from cnaps.errors import DataError
from cnaps.images.decoding import decode, encode, load_image, to_array

from ..data.conftest import encoded, picture


def half_and_half() -> Image.Image:
    """Red on the left, blue on the right, 32 x 16."""
    image = Image.new("RGB", (32, 16), "red")
    image.paste("blue", (16, 0, 32, 16))
    return image


@pytest.mark.parametrize(
    ("orientation", "size", "corner"),
    [
        (1, (32, 16), (255, 0, 0)),
        (3, (32, 16), (0, 0, 255)),
        (6, (16, 32), (255, 0, 0)),
        (8, (16, 32), (0, 0, 255)),
    ],
)
def test_exif_orientation_is_applied(orientation: int, size: tuple[int, int], corner: tuple[int, ...]) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    image = load_image(encoded(half_and_half(), "PNG", exif=exif))
    assert image.size == size
    assert image.getpixel((2, 2)) == corner


def test_grey_becomes_three_equal_channels() -> None:
    pixels = np.asarray(load_image(encoded(Image.new("L", (5, 4), 77), "PNG")))
    assert pixels.shape == (4, 5, 3)
    assert (pixels == 77).all()


def test_one_bit_drawings_become_black_and_white() -> None:
    drawing = Image.new("1", (4, 4), 1)
    drawing.putpixel((0, 0), 0)
    pixels = np.asarray(load_image(encoded(drawing, "PNG")))
    assert pixels[0, 0].tolist() == [0, 0, 0]
    assert pixels[1, 1].tolist() == [255, 255, 255]


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_transparency_is_laid_over_white(mode: str) -> None:
    image = Image.new(mode, (4, 4), (0, 0, 0, 0) if mode == "RGBA" else (0, 0))
    assert (np.asarray(load_image(encoded(image, "PNG"))) == 255).all()


def test_a_transparent_palette_entry_is_laid_over_white() -> None:
    image = Image.new("P", (4, 4), 0)
    image.putpalette([10, 20, 30, 200, 100, 50])
    image.putpixel((3, 3), 1)
    pixels = np.asarray(load_image(encoded(image, "PNG", transparency=0)))
    assert pixels[0, 0].tolist() == [255, 255, 255]
    assert pixels[3, 3].tolist() == [200, 100, 50]


def test_half_transparent_red_becomes_pink() -> None:
    pixels = np.asarray(load_image(encoded(Image.new("RGBA", (2, 2), (255, 0, 0, 128)), "PNG")))
    assert np.abs(pixels[0, 0].astype(int) - [255, 127, 127]).max() <= 1


def test_a_palette_is_resolved() -> None:
    pixels = np.asarray(load_image(encoded(half_and_half().convert("P", palette=Image.Palette.ADAPTIVE), "GIF")))
    assert np.abs(pixels[0, 0].astype(int) - [255, 0, 0]).max() <= 8


def test_cmyk_is_converted() -> None:
    pixels = np.asarray(load_image(encoded(Image.new("CMYK", (16, 16), (0, 255, 255, 0)), "JPEG")))
    assert pixels[8, 8, 0] > 200
    assert pixels[8, 8, 1] < 60


def test_sixteen_bit_grey_is_scaled_not_clipped() -> None:
    deep = np.full((4, 4), 128 * 256, np.uint16)
    assert np.asarray(load_image(encoded(Image.fromarray(deep), "PNG")))[0, 0].tolist() == [128, 128, 128]
    assert np.asarray(load_image(encoded(Image.fromarray(deep), "TIFF")))[0, 0].tolist() == [128, 128, 128]


def test_of_an_animation_the_first_frame_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "a.gif"
    Image.new("RGB", (8, 8), "red").save(path, save_all=True, append_images=[Image.new("RGB", (8, 8), "blue")])
    assert np.asarray(load_image(path))[0, 0].tolist() == [255, 0, 0]


def test_arrays_are_taken_as_they_come() -> None:
    assert np.asarray(load_image(np.full((3, 3), 9, np.uint8)))[0, 0].tolist() == [9, 9, 9]
    assert np.asarray(load_image(np.full((3, 3, 1), 9, np.uint8)))[0, 0].tolist() == [9, 9, 9]
    assert np.asarray(load_image(np.full((3, 3, 3), 0.5, np.float32)))[0, 0].tolist() == [128, 128, 128]
    assert np.asarray(load_image(np.ones((3, 3), bool)))[0, 0].tolist() == [255, 255, 255]
    assert np.asarray(load_image(np.full((3, 3), 65535, np.uint16)))[0, 0].tolist() == [255, 255, 255]
    with pytest.raises(DataError, match="shape"):
        load_image(np.zeros((3, 3, 2), np.uint8))


def bomb(width: int, height: int) -> bytes:
    """A valid PNG header that promises enormous pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")


@pytest.mark.parametrize("side", [11_000, 60_000])
def test_a_decompression_bomb_is_refused_before_it_is_decoded(side: int) -> None:
    with pytest.raises(DataError, match="pixels"):
        load_image(bomb(side, side))


def test_the_limit_of_pixels_can_be_chosen() -> None:
    content = encoded(picture(size=(20, 20)))
    assert load_image(content, max_pixels=400).size == (20, 20)
    with pytest.raises(DataError, match="limit is 399"):
        load_image(content, max_pixels=399)


def test_errors_name_the_file(tmp_path: Path) -> None:
    (tmp_path / "notes.jpg").write_text("no image at all")
    with pytest.raises(DataError, match=r"notes\.jpg.*no image of a known format"):
        load_image(tmp_path / "notes.jpg")
    with pytest.raises(DataError, match=r"gone\.jpg does not exist"):
        load_image(tmp_path / "gone.jpg")
    with pytest.raises(DataError, match=tmp_path.name):
        load_image(tmp_path)
    (tmp_path / "cut.jpg").write_bytes(encoded(picture())[:200])
    with pytest.raises(DataError, match=r"cut\.jpg"):
        load_image(tmp_path / "cut.jpg")


def test_postscript_is_never_run() -> None:
    with pytest.raises(DataError, match="known format"):
        load_image(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\n")


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.integers(0, 255), st.sampled_from(["JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF"]))
def test_a_damaged_file_is_read_or_refused_but_never_crashes(place: int, value: int, kind: str) -> None:
    content = bytearray(encoded(picture(10, 200, 90), kind))
    content[place % len(content)] = value
    with contextlib.suppress(DataError):
        assert load_image(bytes(content)).mode == "RGB"


def test_resizing_does_not_keep_the_aspect() -> None:
    pixels = to_array(half_and_half(), 8)
    assert pixels.shape == (8, 8, 3)
    assert pixels[4, 0].tolist() == [255, 0, 0]
    assert pixels[4, 7].tolist() == [0, 0, 255]


def test_encoding_shrinks_but_never_enlarges() -> None:
    for given_size, stored in [((100, 50), (32, 32)), ((100, 20), (32, 20)), ((8, 8), (8, 8))]:
        content, _ = encode(picture(200, 10, 10, size=given_size), 32)
        assert Image.open(io.BytesIO(content)).size == stored


def test_drawings_and_tiny_pictures_are_stored_without_loss() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (28, 28, 3), dtype=np.uint8)
    assert (decode(encode(Image.fromarray(noise), 84)[0], 28) == noise).all()
    grey = np.repeat(np.random.default_rng(0).integers(0, 256, (60, 60, 1), dtype=np.uint8), 3, axis=2)
    assert (decode(encode(Image.fromarray(grey), 84)[0], 60) == grey).all()


def test_photographs_are_stored_almost_without_loss(shared: Path) -> None:
    import tarfile

    with tarfile.open(shared / "datasets" / "cub-birds.tar") as archive:
        member = next(member for member in archive if member.isreg())
        file = archive.extractfile(member)
        assert file is not None
        image = load_image(file.read())
    wanted = to_array(image, 84).astype(float)
    stored = decode(encode(image, 84)[0], 84).astype(float)
    assert np.abs(stored - wanted).mean() < 2
