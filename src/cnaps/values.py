"""What a file may say: every number, name and list is checked before it is believed.

A digest shows damage, not nonsense: whoever writes a file writes its digest. Each function raises a ValueError
whose text says what is wrong; the reader of the file says which file it is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

MAX_NAME = 1000  # characters
LARGEST = 1e9  # of what is learned: beyond it products leave the range of floats


def count(value: Any, what: str, least: int = 0, most: int = 2**48) -> int:
    """A whole number in a range.

    >>> count(3, "images")
    3
    """
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise ValueError(f"{what} is {_short(value)}, not a whole number of {least} to {most}")
    return value


def number(value: Any, what: str, least: float = -LARGEST, most: float = LARGEST) -> float:
    """A finite number in a range."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not least <= value <= most:
        raise ValueError(f"{what} is {_short(value)}, not a number of {least:g} to {most:g}")
    return float(value)


def name(value: Any, what: str) -> str:
    """Text of a sane length that can be written to any file.

    >>> name("oak", "a class")
    'oak'
    """
    if not isinstance(value, str) or not 0 < len(value) <= MAX_NAME or "\0" in value or not _encodable(value):
        raise ValueError(f"{what} is {_short(value)}, not a name of at most {MAX_NAME} characters")
    return value


def text(value: Any, what: str) -> str:
    """Any text that can be encoded."""
    if not isinstance(value, str) or not _encodable(value):
        raise ValueError(f"{what} is {_short(value)}, not text")
    return value


def items(value: Any, what: str) -> list[Any]:
    """A list."""
    if not isinstance(value, list):
        raise ValueError(f"{what} is {_short(value)}, not a list")
    return value


def table(value: Any, what: str) -> dict[str, Any]:
    """A JSON object."""
    if not isinstance(value, dict):
        raise ValueError(f"{what} is {_short(value)}, not a table")
    return value


def class_names(value: Any) -> list[str] | list[int]:
    """Class names in order, none twice: all text, all whole numbers, or false and true."""
    names = items(value, "the list of classes")
    if not names:
        raise ValueError("there are no classes")
    if all(isinstance(each, str) for each in names):
        for each in names:
            name(each, "a class")
    elif not all(isinstance(each, bool) for each in names):
        for each in names:
            count(each, "a class", -(2**63), 2**63 - 1)
    if names != sorted(set(names)):
        raise ValueError("class names are repeated or out of order")
    return names


def indices(value: Any, what: str, size: int) -> list[int]:
    """Places in a list of `size`, none twice."""
    found = [count(each, what, 0, size - 1) for each in items(value, what)]
    if len(set(found)) < len(found):
        raise ValueError(f"{what} names something twice")
    return found


def model_notes(value: Any) -> dict[str, Any]:
    """Notes of a model are anybody's, but for those that this program reads."""
    known = table(value, "notes")
    calibration = items(known.get("calibration", [0, 0, 0]), "calibration")
    for each in calibration:
        number(each, "calibration", -20, 20)
    if len(calibration) != 3:
        raise ValueError("calibration is not three numbers")
    for size in items(known.get("image_sizes", []), "image_sizes"):
        count(size, "image_sizes", 1, 4096)
    for title, source in table(known.get("trained_on", {}), "trained_on").items():
        table(source, name(title, "trained_on"))
    return known


def check_numbers(tensors: Mapping[str, np.ndarray], whole: Iterable[str] = ()) -> None:
    """Every number finite and of a sane size; those named in `whole` are counts.

    >>> check_numbers({"means": np.ones(3), "counts": np.ones(3)}, whole=["counts"])
    """
    for title, values in tensors.items():
        if values.dtype.kind not in "iuf" or values.dtype.itemsize > 8:
            raise ValueError(f"{title} holds {values.dtype} instead of numbers")
        if values.size == 0:
            continue
        low, high = float(values.min()), float(values.max())
        if not (math.isfinite(low) and math.isfinite(high)):
            raise ValueError(f"{title} holds NaN or infinity")
        if max(-low, high) > LARGEST:
            raise ValueError(f"{title} holds a number as large as {max(-low, high):.3g}")
        if title in whole and (low < 0 or (values != np.round(values)).any()):
            raise ValueError(f"{title} must be whole numbers from 0")


def _encodable(value: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in value)


def _short(value: Any) -> str:
    if isinstance(value, list | dict):
        return f"a {type(value).__name__} of {len(value)}"
    if isinstance(value, int) and abs(value) > 2**64:
        return "an enormous number"
    found = repr(value)
    return found if len(found) <= 80 else found[:80] + "..."
