"""A picture of a collection: some images of each class."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from cnaps.data.collection import Collection
from cnaps.images.decoding import write_png
from cnaps.images.sheet import fitting

_CLASSES, _IMAGES = 24, 10  # at most
_CELL, _GAP, _LABEL = 64, 4, 190


def write_contact_sheet(collection: Collection, path: str | Path) -> None:
    """Write a PNG: a row a class, spread evenly over all classes; names at the left, with the class's split."""
    shown = _spread(len(collection.classes), _CLASSES)
    split_of = {index: split for split, found in collection.splits.items() for index in found}
    pitch = _CELL + _GAP
    sheet = Image.new("RGB", (_LABEL + _IMAGES * pitch + _GAP, len(shown) * pitch + _GAP), "white")
    draw = ImageDraw.Draw(sheet)
    font = ImageFont.load_default(12)
    for line, index in enumerate(shown):
        top = _GAP + line * pitch
        rows = list(collection.rows(index))
        picked = [rows[at] for at in _spread(len(rows), _IMAGES)]
        name = fitting(draw, collection.classes[index], font, _LABEL - 3 * _GAP)
        draw.text((_GAP, top + 8), name, "black", font=font)
        note = f"{len(rows)} images" + (f", {split_of[index]}" if index in split_of else "")
        draw.text((_GAP, top + 28), note, "grey", font=font)
        for column, picture in enumerate(collection.read(picked, _CELL).permute(0, 2, 3, 1).numpy()):
            sheet.paste(Image.fromarray(picture), (_LABEL + column * pitch, top))
    write_png(path, sheet)


def _spread(count: int, most: int) -> list[int]:
    """At most so many of `count` places, spread evenly."""
    return np.unique(np.linspace(0, count - 1, most).round().astype(int)).tolist()
