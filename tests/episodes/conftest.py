"""Small collections in which an image's pixels say which image it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from cnaps.data.collection import Collection, write_collection
from cnaps.data.splits import alphabets


def pixels(class_index: int, i: int) -> np.ndarray:
    """The colour of image ``i`` of a class; 8 pixels square, so that it is stored without loss."""
    return np.full((8, 8, 3), (class_index % 256, i % 256, 17 * (class_index // 256) + i // 256), np.uint8)


@pytest.fixture(scope="session")
def colour() -> Callable[[int, int], np.ndarray]:
    return pixels


@pytest.fixture(scope="session")
def make(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Collection]:
    def build(
        name: str,
        counts: Sequence[int],
        classes: Sequence[str] | None = None,
        splits: dict[str, list[int]] | None = None,
        hierarchy: dict[str, Any] | None = None,
    ) -> Collection:
        return write_collection(
            tmp_path_factory.mktemp("collections") / name,
            name=name,
            classes=classes or [f"class {index:03d}" for index in range(len(counts))],
            examples=((c, f"{c}/{i}.png", pixels(c, i)) for c, count in enumerate(counts) for i in range(count)),
            size=8,
            splits=splits or {},
            hierarchy=hierarchy,
        )

    return build


@pytest.fixture(scope="session")
def uneven(make: Callable[..., Collection]) -> Collection:
    """60 classes of 7 to 184 images for training, 12 others for test."""
    counts = [7 + 3 * index for index in range(60)] + [20] * 12
    return make("uneven", counts, splits={"train": list(range(60)), "test": list(range(60, 72))})


@pytest.fixture(scope="session")
def letters(make: Callable[..., Collection]) -> Collection:
    """Alphabets of 4, 6, 11 and 55 characters, 20 drawings each."""
    sizes = {"Tiny": 4, "Small": 6, "Middle": 11, "Large": 55}
    classes = [f"{name}/character{i:02d}" for name, size in sizes.items() for i in range(size)]
    hierarchy = {"kind": "alphabets", "groups": alphabets(classes)}
    return make("letters", [20] * len(classes), classes, {"train": list(range(len(classes)))}, hierarchy)


@pytest.fixture(scope="session")
def things(make: Callable[..., Collection]) -> Collection:
    """A WordNet-like collection of 70 classes: nodes of 4, 5, 9 and 60 leaves, one of 10 for test."""
    nodes = {"n1 four": range(4), "n2 five": range(5), "n3 nine": range(9), "n4 sixty": range(60)}
    nodes |= {"n5 ten": range(60, 70)}
    hierarchy = {"kind": "wordnet", "nodes": {name: list(leaves) for name, leaves in nodes.items()}}
    return make("things", [12] * 70, None, {"train": list(range(60)), "test": list(range(60, 70))}, hierarchy)
