"""A picture of a collection: some images of each class."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from cnaps.data.collection import Collection
from cnaps.images.decoding import write_png
from cnaps.images.sheet import fitting

_CELL, _GAP, _LABEL = 64, 4, 190


def contact_sheet(collection: Collection, *, classes: int = 24, images: int = 10) -> Image.Image:
    """A row a class, spread evenly over all classes; names at the left, with the class's split."""
    shown = np.unique(np.linspace(0, len(collection.classes) - 1, classes).round().astype(int)).tolist()
    split_of = {index: split for split, found in collection.splits.items() for index in found}
    pitch = _CELL + _GAP
    sheet = Image.new("RGB", (_LABEL + images * pitch + _GAP, len(shown) * pitch + _GAP), "white")
    draw = ImageDraw.Draw(sheet)
    font = ImageFont.load_default(12)
    for line, index in enumerate(shown):
        top = _GAP + line * pitch
        rows = list(collection.rows(index))
        picked = [rows[at] for at in np.unique(np.linspace(0, len(rows) - 1, images).round().astype(int))]
        draw.text(
            (_GAP, top + 8), fitting(draw, collection.classes[index], font, _LABEL - 3 * _GAP), "black", font=font
        )
        note = f"{len(rows)} images" + (f", {split_of[index]}" if index in split_of else "")
        draw.text((_GAP, top + 28), note, "grey", font=font)
        for column, picture in enumerate(collection.read(picked, _CELL).permute(0, 2, 3, 1).numpy()):
            sheet.paste(Image.fromarray(picture), (_LABEL + column * pitch, top))
    return sheet


def write_contact_sheet(collection: Collection, path: str | Path) -> None:
    """Write :func:`contact_sheet` as PNG."""
    write_png(path, contact_sheet(collection))
