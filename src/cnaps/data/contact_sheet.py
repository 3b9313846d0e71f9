"""Pictures of many images: some of each class of a collection, or any with a caption each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from cnaps.data.collection import Collection
from cnaps.images.decoding import write_png

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
        draw.text((_GAP, top + 8), _fit(draw, collection.classes[index], font), "black", font=font)
        note = f"{len(rows)} images" + (f", {split_of[index]}" if index in split_of else "")
        draw.text((_GAP, top + 28), note, "grey", font=font)
        for column, picture in enumerate(collection.read(picked, _CELL).permute(0, 2, 3, 1).numpy()):
            sheet.paste(Image.fromarray(picture), (_LABEL + column * pitch, top))
    return sheet


def write_contact_sheet(collection: Collection, path: str | Path) -> None:
    """Write :func:`contact_sheet` as PNG."""
    write_png(path, contact_sheet(collection))


def captioned_sheet(pictures: Sequence[np.ndarray], captions: Sequence[str], columns: int = 5) -> Image.Image:
    """Pictures uint8 (S, S, 3) in rows, lines of text below each.

    >>> captioned_sheet([np.zeros((64, 64, 3), np.uint8)] * 7, ["a\\nb"] * 7).size
    (804, 432)
    """
    cell, text = 156, 54
    columns = min(columns, len(pictures))
    lines = -(-len(pictures) // columns)
    sheet = Image.new("RGB", (columns * (cell + _GAP) + _GAP, lines * (cell + text + _GAP) + _GAP), "white")
    draw = ImageDraw.Draw(sheet)
    font = ImageFont.load_default(12)
    for i, (picture, caption) in enumerate(zip(pictures, captions, strict=True)):
        left, top = _GAP + i % columns * (cell + _GAP), _GAP + i // columns * (cell + text + _GAP)
        sheet.paste(Image.fromarray(picture).resize((cell, cell)), (left, top))
        fitting = [_fit(draw, line, font, cell) for line in caption.splitlines()]
        draw.text((left, top + cell + 2), "\n".join(fitting), "black", font=font)
    return sheet


def _fit(
    draw: ImageDraw.ImageDraw,
    text: str,
    font: ImageFont.FreeTypeFont | ImageFont.ImageFont,
    width: int = _LABEL - 3 * _GAP,
) -> str:
    if draw.textlength(text, font=font) <= width:
        return text
    while draw.textlength(text + "...", font=font) > width:
        text = text[:-1]
    return text + "..."
