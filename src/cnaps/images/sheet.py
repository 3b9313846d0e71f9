"""A picture of many pictures, with a caption each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw, ImageFont

_GAP = 4


def captioned_sheet(pictures: Sequence[np.ndarray], captions: Sequence[str]) -> Image.Image:
    """Pictures uint8 (S, S, 3) in rows, lines of text below each.

    >>> captioned_sheet([np.zeros((64, 64, 3), np.uint8)] * 7, ["a\\nb"] * 7).size
    (804, 432)
    """
    cell, text = 156, 54
    columns = min(5, len(pictures))
    lines = -(-len(pictures) // columns)
    sheet = Image.new("RGB", (columns * (cell + _GAP) + _GAP, lines * (cell + text + _GAP) + _GAP), "white")
    draw = ImageDraw.Draw(sheet)
    font = ImageFont.load_default(12)
    for i, (picture, caption) in enumerate(zip(pictures, captions, strict=True)):
        left, top = _GAP + i % columns * (cell + _GAP), _GAP + i // columns * (cell + text + _GAP)
        sheet.paste(Image.fromarray(picture).resize((cell, cell)), (left, top))
        cut = [fitting(draw, line, font, cell) for line in caption.splitlines()]
        draw.text((left, top + cell + 2), "\n".join(cut), "black", font=font)
    return sheet


def fitting(
    draw: ImageDraw.ImageDraw,
    text: str,
    font: ImageFont.FreeTypeFont | ImageFont.ImageFont,
    width: int,
) -> str:
    """A line of text, cut where it is wider than so many pixels."""
    if draw.textlength(text, font=font) <= width:
        return text
    while draw.textlength(text + "...", font=font) > width:
        text = text[:-1]
    return text + "..."
