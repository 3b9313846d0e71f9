"""At which size a task's images are read: as large as helps, and no larger."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image

SIZES = (96, 128, 160, 192, 224)  # of which one is chosen
COLOURLESS = 128  # drawings, characters, prints: strokes are seen well at this size
SMALL = 160  # for pictures of fewer pixels than PHOTOGRAPH a side: enlarging them further shows nothing new
PHOTOGRAPH = 48
LARGE = 224


@dataclass(frozen=True)
class Look:
    """What the choice depends on: the side of a square with as many pixels, and whether there is no colour."""

    side: float
    colourless: bool

    @classmethod
    def at(cls, image: Image.Image) -> Look:
        """Of an image as it was opened; only a JPEG's own means are used to decode it faster.

        >>> Look.at(Image.new("L", (40, 10)))
        Look(side=20.0, colourless=True)
        """
        side = float(image.width * image.height) ** 0.5
        if image.mode in ("1", "L", "LA", "I", "I;16", "F"):
            return cls(side, True)
        small = np.asarray(image.convert("RGB").resize((32, 32), Image.Resampling.NEAREST)).astype(np.int16)
        return cls(side, bool((small.max(2) - small.min(2)).max() < 16))


def auto_size(looks: Iterable[Look]) -> int:
    """The size for a task with such examples; the same for any order of them.

    >>> auto_size([Look(300, False)] * 5), auto_size([Look(32, False)] * 5), auto_size([Look(28, True)] * 5)
    (224, 160, 128)
    """
    found: Sequence[Look] = list(looks)
    if not found:
        return LARGE
    if sum(look.colourless for look in found) > len(found) / 2:
        return COLOURLESS
    return SMALL if float(np.median([look.side for look in found])) < PHOTOGRAPH else LARGE
