"""A task as a picture: a band for each class, its context on the left and its targets on the right."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, ImageDraw, ImageFont

if TYPE_CHECKING:
    import torch

    from cnaps.episodes.task import Task

CELL, GAP, PAD, LABEL = 48, 2, 12, 150  # pixels: an image, between images, around blocks, for the class name
CONTEXT_COLUMNS, TARGET_COLUMNS = 12, 5
INK, PAPER, BANDS = "#1b1f24", "#ffffff", ("#ffffff", "#f1f4f8")


def draw_task(task: Task) -> Image.Image:
    """Draw every image of a task, with the names of its classes."""
    font = _font(12)
    context = _by_class(task.context_images, task.context_labels, len(task.class_names))
    targets = _by_class(task.target_images, task.target_labels, len(task.class_names))
    lines = [
        max(-(-len(some) // CONTEXT_COLUMNS), -(-len(others) // TARGET_COLUMNS), 1)
        for some, others in zip(context, targets, strict=True)
    ]
    step = CELL + GAP
    left = PAD + LABEL
    right = left + CONTEXT_COLUMNS * step + PAD
    head = 2 * PAD + 32
    heights = [count * step + PAD for count in lines]
    picture = Image.new("RGB", (right + TARGET_COLUMNS * step + PAD, head + sum(heights) + PAD), PAPER)
    pen = ImageDraw.Draw(picture)
    title = f"{task.collection}, task {task.index}: {len(task.class_names)} ways"
    pen.text((PAD, PAD), title, fill=INK, font=_font(15))
    pen.text((left, PAD + 24), f"context: {len(task.context_labels)} images", fill=INK, font=font)
    pen.text((right, PAD + 24), f"targets: {len(task.target_labels)}", fill=INK, font=font)
    top = head
    for label, name in enumerate(task.class_names):
        pen.rectangle((0, top, picture.width, top + heights[label] - 1), fill=BANDS[label % 2])
        words = textwrap.wrap(name.replace("_", " "), 21)[: lines[label] * step // 15]
        pen.multiline_text((PAD, top + PAD // 2), "\n".join(words), fill=INK, font=font)
        for images, start, columns in ((context, left, CONTEXT_COLUMNS), (targets, right, TARGET_COLUMNS)):
            for i, image in enumerate(images[label]):
                small = Image.fromarray(image).resize((CELL, CELL), Image.Resampling.BILINEAR)
                picture.paste(small, (start + i % columns * step, top + PAD // 2 + i // columns * step))
        top += heights[label]
    return picture


def _by_class(images: torch.Tensor, labels: torch.Tensor, ways: int) -> list[np.ndarray]:
    pixels = images.permute(0, 2, 3, 1).numpy()  # (N, S, S, 3)
    return [np.ascontiguousarray(pixels[(labels == label).numpy()]) for label in range(ways)]


def _font(size: int) -> ImageFont.FreeTypeFont:
    """The font that matplotlib brings along: it has more scripts than Pillow's own."""
    import matplotlib

    return ImageFont.truetype(str(Path(matplotlib.get_data_path()) / "fonts/ttf/DejaVuSans.ttf"), size)
