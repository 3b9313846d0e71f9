"""Input is checked first, and the error says what to do."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from cnaps.errors import InputError


def check_images(images: Tensor, what: str, min_size: int) -> None:
    """Float images (N, 3, H, W), finite, large enough for the backbone."""
    if not isinstance(images, Tensor):
        raise InputError(f"{what} must be a torch.Tensor (N, 3, H, W), not {type(images).__name__}")
    if images.ndim != 4:
        hint = "; for one image add a dimension: image[None]" if images.ndim == 3 else ""
        raise InputError(f"{what} must have shape (N, 3, H, W), not {tuple(images.shape)}{hint}")
    if len(images) == 0:
        raise InputError(f"{what} are empty: give at least one image")
    if images.shape[1] != 3:
        raise InputError(
            f"{what} must have 3 channels in dimension 1, not {images.shape[1]}: shape {tuple(images.shape)}"
        )
    if not images.is_floating_point():
        raise InputError(
            f"{what} must be float, not {images.dtype}: use model.preprocess(pixels) for pixels of 0..255"
        )
    if min(images.shape[2:]) < min_size:
        raise InputError(
            f"{what} of {images.shape[3]}x{images.shape[2]} pixels are too small: this backbone needs "
            f"{min_size}x{min_size} or more"
        )
    if not torch.isfinite(images.sum()) and not torch.isfinite(images).all():  # the sum is the cheap first look
        bad = int((~torch.isfinite(images.flatten(1)).all(1)).nonzero()[0])
        raise InputError(f"{what} hold NaN or infinity, first in image {bad}")


def check_labels(labels: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Any integer labels (N,): the sorted classes (C,) and the class index of each (N,)."""
    if not isinstance(labels, Tensor):
        raise InputError(f"labels must be a torch.Tensor of integers, not {type(labels).__name__}")
    if labels.ndim != 1 or len(labels) != count:
        raise InputError(f"labels must have shape ({count},), one for each image, not {tuple(labels.shape)}")
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise InputError(f"labels must be integers, not {labels.dtype}")
    classes, index = torch.unique(labels.cpu(), return_inverse=True)
    return classes, index


def first_of(names: Sequence[str], most: int) -> str:
    """The first names, and how many more there are.

    >>> first_of(["a", "b", "c"], 2)
    'a, b and 1 more'
    """
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more}"
