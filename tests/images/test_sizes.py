"""At which size a task's images are read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cnaps.data.collection import write_collection
from cnaps.images.sizes import Look, auto_size


def photograph(side: int, seed: int = 0) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (side, side, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def drawing(side: int) -> Image.Image:
    pixels = np.full((side, side), 255, np.uint8)
    pixels[side // 3 : side // 2] = 0
    return Image.fromarray(pixels)


@pytest.mark.parametrize(("side", "size"), [(28, 128), (32, 128), (64, 160), (112, 224), (600, 224)])
def test_photographs_are_enlarged_as_far_as_it_helps(side: int, size: int) -> None:
    assert auto_size([Look.at(photograph(side, seed)) for seed in range(3)]) == size


@pytest.mark.parametrize("side", [28, 105, 400])
def test_drawings_need_no_more_than_their_strokes(side: int) -> None:
    assert auto_size([Look.at(drawing(side))] * 3) == 96
    assert auto_size([Look.at(drawing(side).convert("RGB"))] * 3) == 96


def test_a_grey_photograph_is_no_drawing() -> None:
    assert not Look.at(photograph(200).convert("L")).ink


def test_the_size_does_not_depend_on_the_order_and_most_examples_decide() -> None:
    mixed = [Look.at(drawing(28)), *[Look.at(photograph(300, seed)) for seed in range(2)]]
    assert auto_size(mixed) == auto_size(mixed[::-1]) == 224


def test_a_collection_knows_how_its_images_look(tmp_path: Path) -> None:
    examples = [(0, "drawn", drawing(40)), (0, "taken", photograph(40))]
    collection = write_collection(tmp_path / "c", name="c", classes=["a"], examples=examples, size=64)
    assert [(look.side, look.ink) for look in collection.looks([0, 1])] == [(40, True), (40, False)]
