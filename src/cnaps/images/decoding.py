"""Any image file becomes an upright 8-bit RGB picture, or an error that names the file."""

from __future__ import annotations

import hashlib
import io
import os
from functools import cache
from pathlib import Path
from typing import TypeAlias

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError
from PIL.PngImagePlugin import PngInfo

from cnaps.errors import DataError, MissingPackageError
from cnaps.files import atomic_path

ImageLike: TypeAlias = str | Path | bytes | Image.Image | np.ndarray

# Raster formats only: Pillow would hand EPS files to an interpreter, and others are nobody's photos.
FORMATS = ("JPEG", "PNG", "GIF", "BMP", "TIFF", "WEBP", "PPM", "JPEG2000", "AVIF", "ICO", "TGA", "PCX")
SUFFIXES = frozenset({
    ".jpg", ".jpeg", ".jpe", ".jfif", ".mpo", ".png", ".apng", ".gif", ".bmp", ".dib", ".tif", ".tiff", ".webp",
    ".ppm", ".pgm", ".pbm", ".pnm", ".jp2", ".j2k", ".avif", ".ico", ".tga", ".pcx", ".heic", ".heif", ".hif",
    # not read, but nobody's photographs are passed over without a word
    ".dng", ".cr2", ".cr3", ".nef", ".arw", ".orf", ".rw2", ".raf", ".jxl", ".psd", ".svg",
})  # fmt: skip
_HEIC = (b"heic", b"heix", b"hevc", b"mif1", b"msf1")  # as such files name themselves
_LOSSLESS_SIDE = 32  # below this JPEG's 8x8 blocks are visible and save next to nothing


def load_image(source: ImageLike, *, max_pixels: int = 100_000_000, at_least: int | None = None) -> Image.Image:
    """Read an image as RGB, the way a person sees it.

    EXIF orientation is applied, transparency is laid over white, palettes and CMYK are converted, 16-bit is
    scaled to 8, and of an animation the first frame is taken. More than ``max_pixels`` are refused before
    anything is decoded. ``at_least`` allows a JPEG to be decoded at a fraction of its size, with no side below
    that many pixels, which takes a fraction of the time.

    >>> load_image(np.zeros((4, 6), np.uint8)).size
    (6, 4)
    """
    name = str(source) if isinstance(source, str | Path) else "the image"
    try:
        if isinstance(source, str | Path) and os.path.exists(source) and not os.path.isfile(source):
            raise DataError(f"{name} is no regular file")  # to open a pipe is to wait for whoever writes to it
        image = _open(source)
        if image.width * image.height > max_pixels:
            raise DataError(f"{name} has {image.width} x {image.height} pixels; the limit is {max_pixels:,}")
        if at_least is not None:
            image.draft(None, (at_least, at_least))
        image.load()
        return _to_rgb(ImageOps.exif_transpose(image))
    except DataError:
        raise
    except FileNotFoundError as error:
        raise DataError(f"{name} does not exist") from error
    except Exception as error:  # decoders of damaged files raise almost anything
        raise DataError(f"{name} cannot be read as an image: {_reason(error)}") from error


def is_image(name: str | Path) -> bool:
    """Whether the name ends like that of an image."""
    return Path(name).suffix.lower() in SUFFIXES


def to_array(image: Image.Image, size: int) -> np.ndarray:
    """Resize to a square without keeping the aspect, as the published code does: uint8 (size, size, 3).

    Rows first, then columns: in one step the order, and with it the rounding, depends on the version of Pillow.
    """
    for shape in ((size, image.height), (size, size)):
        if image.size != shape:
            image = image.resize(shape, Image.Resampling.BILINEAR)
    return np.asarray(image)


def encode(image: Image.Image, size: int) -> tuple[bytes, bytes]:
    """Shrink both sides to at most ``size`` and encode: the file's bytes and a digest of its pixels.

    Nothing is enlarged: a 28 pixel drawing is stored as it is, and enlarged once when it is read. Greys (all
    drawings) and tiny pictures stay lossless, photographs become JPEG. The digest is taken before encoding,
    so that it does not depend on the build of the encoder.
    """
    fitted = (min(image.width, size), min(image.height, size))
    if fitted != image.size:
        image = image.resize(fitted, Image.Resampling.BILINEAR)
    pixels = np.asarray(image)  # (H, W, 3)
    digest = hashlib.blake2b(repr(pixels.shape).encode() + pixels.tobytes(), digest_size=16).digest()
    buffer = io.BytesIO()
    if (pixels == pixels[:, :, :1]).all():
        Image.fromarray(np.ascontiguousarray(pixels[:, :, 0])).save(buffer, "PNG")
    elif max(fitted) <= _LOSSLESS_SIDE:
        image.save(buffer, "PNG")
    else:
        image.save(buffer, "JPEG", quality=95, subsampling=0)
    return buffer.getvalue(), digest


def decode(encoded: bytes, size: int) -> np.ndarray:
    """The inverse of :func:`encode`, as a square: uint8 (size, size, 3)."""
    image: Image.Image = Image.open(io.BytesIO(encoded), formats=("JPEG", "PNG"))
    pixels = to_array(image, size)
    return pixels if pixels.ndim == 3 else np.repeat(pixels[:, :, None], 3, axis=2)


def write_png(path: str | Path, image: Image.Image) -> None:
    """Write a picture that says who wrote it, whole or not at all."""
    about = PngInfo()
    about.add_text("Software", "cnaps")
    with atomic_path(path) as temporary:
        image.save(temporary, "PNG", pnginfo=about)


def _open(source: ImageLike) -> Image.Image:
    if isinstance(source, Image.Image):
        return source
    if isinstance(source, np.ndarray):
        return _from_array(source)
    try:
        return Image.open(io.BytesIO(source) if isinstance(source, bytes) else source, formats=FORMATS)
    except UnidentifiedImageError:
        start = source[:32] if isinstance(source, bytes) else _start(source)
        if start[4:8] != b"ftyp" or not any(brand in start for brand in _HEIC):
            raise
    if not read_heic():
        raise MissingPackageError("reading HEIC photographs", "pillow-heif")
    return Image.open(io.BytesIO(source) if isinstance(source, bytes) else source, formats=("HEIF",))


@cache
def read_heic() -> bool:
    """Teach Pillow to read HEIC, what telephones photograph in; whether the package for it is there."""
    try:
        import pillow_heif
    except ImportError:
        return False
    pillow_heif.register_heif_opener()
    return True


def _start(path: str | Path) -> bytes:
    with open(path, "rb") as file:
        return file.read(32)


def _from_array(array: np.ndarray) -> Image.Image:
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    if array.ndim not in (2, 3) or 0 in array.shape or (array.ndim == 3 and array.shape[2] not in (3, 4)):
        raise DataError(
            f"an image array has the shape (H, W), (H, W, 1), (H, W, 3) or (H, W, 4), not {array.shape}"
        )
    return Image.fromarray(_to_bytes(array))


def _to_bytes(values: np.ndarray) -> np.ndarray:
    """Any numbers as 0..255: booleans and fractions are stretched, 16-bit scaled, the rest clipped."""
    if values.dtype == np.uint8:
        return values
    if values.dtype == bool:
        return values.astype(np.uint8) * 255
    if np.issubdtype(values.dtype, np.floating):
        values = np.nan_to_num(values)
        return np.clip(np.rint(values * 255 if values.max() <= 1 else values), 0, 255).astype(np.uint8)
    if values.dtype == np.uint16 or values.max() > 255:
        values = values.astype(np.int64) >> max(8, int(values.max()).bit_length() - 8)
    return np.clip(values, 0, 255).astype(np.uint8)


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode == "RGB" and "transparency" not in image.info:
        return image
    if image.mode == "F" or image.mode.startswith("I"):
        image = Image.fromarray(_to_bytes(np.asarray(image)))
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image.convert("RGB")


def _reason(error: Exception) -> str:
    if str(error).startswith("cannot identify"):
        return "it is no image of a known format"
    return str(error) or type(error).__name__
