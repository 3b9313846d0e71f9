"""At which size a task's images are read: as large as helps, and no larger."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from PIL import Image

INK = 96  # drawings and characters: strokes are seen well at this size
ENLARGED = (
    (48, 128),
    (96, 160),
)  # images of fewer pixels a side than the first number: more would show nothing new
SMALL, LARGE = 128, 224


@dataclass(frozen=True)
class Look:
    """What the choice depends on: the side of a square with as many pixels, and whether it is ink on a ground."""

    side: float
    ink: bool

    @classmethod
    def at(cls, image: Image.Image) -> Look:
        """Of an image as it was opened; only a JPEG's own means are used to decode it faster.

        >>> Look.at(Image.new("L", (40, 10)))
        Look(side=20.0, ink=True)
        """
        side = float(image.width * image.height) ** 0.5
        pixels = np.asarray(image.convert("RGB").resize((32, 32), Image.Resampling.NEAREST)).astype(np.int16)
        colourless = (pixels.max(2) - pixels.min(2)).max() < 16
        grey = pixels.mean(2)
        return cls(side, bool(colourless and (np.abs(grey - np.median(grey)) < 16).mean() > 0.4))


def auto_size(looks: Iterable[Look]) -> int:
    """The size for a task with such examples; the same for any order of them.

    >>> auto_size([Look(300, False)] * 5), auto_size([Look(32, False)] * 5), auto_size([Look(28, True)] * 5)
    (224, 128, 96)
    """
    found = list(looks)
    if found and sum(look.ink for look in found) > len(found) / 2:
        return INK
    side = float(np.median([look.side for look in found])) if found else LARGE
    return next((size for limit, size in ENLARGED if side < limit), LARGE)


def lora_share(size: int, large: float) -> float:
    """How much of a model's LoRA terms is used for images of this size: `large` from 224 pixels on, all up to 128.

    A backbone is at home at large sizes, and needs less of what was learned for small ones.

    >>> lora_share(96, 0.5), lora_share(176, 0.5), lora_share(300, 0.5)
    (1.0, 0.75, 0.5)
    """
    way = min(max(size - SMALL, 0) / (LARGE - SMALL), 1.0)
    return 1.0 + (large - 1.0) * way
