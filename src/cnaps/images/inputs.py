"""Images as people have them: paths, Pillow images, arrays, tensors, or a mixture, made into batches of pixels.

Decoding runs ahead in background threads, a bounded number of images at a time, so memory stays flat however
many images there are.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from array_api_compat import is_torch_array
from PIL import Image

from cnaps.errors import CnapsError, DataError, InputError
from cnaps.images.decoding import FORMATS, load_image, to_array
from cnaps.images.sizes import Look
from cnaps.parallel import cpu_count, read_ahead

ImageInput: TypeAlias = Any  # str, os.PathLike, bytes, Image.Image, np.ndarray or torch.Tensor
Images: TypeAlias = Iterable[ImageInput]
OnError: TypeAlias = Callable[[int, CnapsError], None]

MIN_SIDE = 4  # pixels: below it there is nothing to see
BATCH = 32
_AHEAD = 4  # batches in flight


def read_pixels(source: ImageInput, size: int) -> np.ndarray:
    """One image of any kind as uint8 (size, size, 3).

    >>> read_pixels(np.ones((20, 30, 3)), 8).shape
    (8, 8, 3)
    """
    source = _opened(source)
    if isinstance(source, np.ndarray):
        _check_values(source)
    elif isinstance(source, os.PathLike):
        source = Path(source)
    elif not isinstance(source, str | bytes | Image.Image):
        raise InputError(f"an image is a path, a Pillow image, an array or a tensor, not {type(source).__name__}")
    encoded = isinstance(source, str | Path | bytes)
    # a JPEG may be decoded at no less than twice the size: the final resize then hides the difference
    image = load_image(source, at_least=2 * size if encoded else None)
    if min(image.size) < MIN_SIDE:
        name = str(source) if isinstance(source, str | Path) else "the image"
        raise DataError(
            f"{name} has {image.width} x {image.height} pixels: too small to show anything "
            f"(at least {MIN_SIDE} x {MIN_SIDE})"
        )
    return to_array(image, size)


def look_at(source: ImageInput) -> Look | None:
    """How large an image is and whether it is ink on a ground; None for one that cannot be read.

    >>> look_at(np.zeros((20, 30, 3), np.uint8))
    Look(side=24.49489742783178, ink=True)
    """
    try:
        source = _opened(source)
        if isinstance(source, str | os.PathLike | bytes):
            file: Any = source if isinstance(source, bytes) else Path(source)
            with Image.open(io.BytesIO(file) if isinstance(file, bytes) else file, formats=FORMATS) as header:
                side = float(header.width * header.height) ** 0.5
            return replace(Look.at(load_image(file, at_least=64)), side=side)
        return Look.at(load_image(source))
    except (CnapsError, OSError, ValueError):
        return None


def as_images(images: Images) -> Iterable[ImageInput]:
    """One image after the other: arrays and tensors are taken apart along their first dimension."""
    if isinstance(images, str | bytes | os.PathLike | Image.Image):
        raise InputError(f"several images are expected; put the one {type(images).__name__} in a list: [image]")
    if is_torch_array(images) and images.ndim != 4:
        raise InputError(f"a tensor of images has the shape (N, 3, H, W), not {tuple(images.shape)}")
    if isinstance(images, np.ndarray) and images.dtype.kind not in "OUST":
        single = images.ndim == 2 or (images.ndim == 3 and images.shape[2] in (3, 4))
        if images.ndim not in (3, 4) or single:
            hint = "; put one image in a list: [image]" if single else ""
            raise InputError(
                f"an array of images has the shape (N, H, W) or (N, H, W, 3), not {images.shape}{hint}"
            )
    if not isinstance(images, Iterable):
        raise InputError(f"images are a list, an array or a tensor, not {type(images).__name__}")
    return images


def stream(
    images: Images,
    size: int,
    *,
    batch_size: int = BATCH,
    on_error: OnError | None = None,
    read: Callable[[ImageInput, int], np.ndarray] = read_pixels,
) -> Iterator[tuple[list[int], np.ndarray]]:
    """Batches of positions and pixels, uint8 (n, 3, size, size), in the order given.

    A broken image is handed to `on_error` with its position and left out; without `on_error` it is raised. `read`
    makes pixels of one of them, uint8 (size, size, 3).

    >>> [(where, tuple(pixels.shape)) for where, pixels in stream(np.zeros((5, 9, 9)), 16, batch_size=4)]
    [([0, 1, 2, 3], (4, 3, 16, 16)), ([4], (1, 3, 16, 16))]
    """

    def attempt(source: ImageInput) -> np.ndarray | CnapsError:
        try:
            return read(source, size)
        except CnapsError as error:
            return error

    where: list[int] = []
    batch: list[np.ndarray] = []
    ahead = read_ahead(attempt, as_images(images), threads=cpu_count(), depth=_AHEAD * batch_size - 1)
    for index, found in enumerate(ahead):
        if not isinstance(found, CnapsError):
            where.append(index)
            batch.append(found)
        elif on_error is None:
            raise type(found)(f"image {index}: {found}") from found
        else:
            on_error(index, found)
        if len(batch) == batch_size:
            yield where, _stack(batch)
            where, batch = [], []
    if batch:
        yield where, _stack(batch)


def _stack(arrays: list[np.ndarray]) -> np.ndarray:
    return np.stack(arrays).transpose(0, 3, 1, 2)  # (n, 3, S, S), channels last in memory


def _opened(source: ImageInput) -> ImageInput:
    """A tensor as an array, and what a table of images holds, `{"bytes": ..., "path": ...}`, as one of the two."""
    if is_torch_array(source):
        return _tensor_as_array(source)
    if isinstance(source, Mapping) and source.keys() == {"bytes", "path"}:
        return source["path"] if source["bytes"] is None else source["bytes"]
    return source


def _tensor_as_array(tensor: Any) -> np.ndarray:
    array: np.ndarray = tensor.detach().cpu().numpy()
    channels_first = array.ndim == 3 and array.shape[0] in (1, 3, 4) and array.shape[2] not in (3, 4)
    return array.transpose(1, 2, 0) if channels_first else array


def _check_values(array: np.ndarray) -> None:
    """Numbers whose meaning can be told without guessing; whatever else they are, it is said."""
    if array.dtype.kind not in "buif":
        raise InputError(f"an image array holds numbers, not {array.dtype}")
    if array.ndim == 3 and array.shape[0] in (1, 3) and array.shape[2] not in (1, 3, 4):
        raise InputError(f"an image array has its channels last, not {array.shape}: use array.transpose(1, 2, 0)")
    if array.dtype.kind in "bu" or array.size == 0:
        return
    low, high = float(array.min()), float(array.max())
    if array.dtype.kind == "i" and low < 0:
        raise InputError(f"pixels are 0..255; these go down to {low:g}")
    if array.dtype.kind == "f" and not (low >= -0.01 and high <= 1.01):  # NaN fails as well
        raise InputError(
            f"float images have values of 0..1; these go from {low:g} to {high:g}: "
            "divide by their largest possible value, or give uint8 pixels of 0..255"
        )
