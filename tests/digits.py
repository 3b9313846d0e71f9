"""Digits as arrays and as folders, a small model that is quick, and the one that ships."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits

from cnaps import CNAPs, FewShotClassifier, ModelConfig

from .models import SMALL_BACKBONE, random_film

Digits = tuple[np.ndarray, np.ndarray]
SMALL = ModelConfig(backbone=SMALL_BACKBONE, head="cosine", set_encoder_norm="none", image_size=32)


@pytest.fixture(scope="session")
def make_small() -> Callable[..., CNAPs]:
    """A small model with random weights and FiLM that is far from the identity, so that it shows."""

    def make(seed: int = 0, **changes: Any) -> CNAPs:
        torch.manual_seed(seed)
        model = CNAPs(ModelConfig(**{**SMALL.__dict__, **changes}))
        random_film(model)
        return model

    return make


@pytest.fixture(scope="session")
def small(make_small: Callable[..., CNAPs]) -> CNAPs:
    return make_small()


@pytest.fixture(scope="session")
def small_folder(small: CNAPs, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "small"
    small.save(folder)
    return folder


@pytest.fixture(scope="session")
def huge_png() -> bytes:
    """A file that claims 30,000 x 30,000 pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 30_000, 30_000, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


@pytest.fixture(scope="session")
def digits() -> Digits:
    """Images uint8 (1797, 8, 8) and labels, in an order without a pattern."""
    data = load_digits()
    order = np.random.default_rng(1).permutation(len(data.target))
    return (data.images * 255 / 16).astype(np.uint8)[order], data.target[order]


@pytest.fixture(scope="session")
def context(digits: Digits) -> Digits:
    """Five examples of each digit."""
    images, labels = digits
    chosen = np.concatenate([np.flatnonzero(labels == digit)[:5] for digit in range(10)])
    return images[chosen], labels[chosen]


@pytest.fixture(scope="session")
def unseen(digits: Digits) -> Digits:
    images, labels = digits
    chosen = np.concatenate([np.flatnonzero(labels == digit)[5:17] for digit in range(10)])
    return images[chosen], labels[chosen]


@pytest.fixture(scope="session")
def default(context: Digits) -> FewShotClassifier:
    """The model that ships, having learned digits."""
    return FewShotClassifier().fit(*context)


@pytest.fixture
def folders(tmp_path: Path, context: Digits, unseen: Digits) -> tuple[Path, Path]:
    """Examples with a folder for each of three digits, and images beside each other."""
    examples, images = tmp_path / "examples", tmp_path / "images"
    images.mkdir()
    for i, (pixels, label) in enumerate(zip(*context, strict=True)):
        if label < 3:
            (examples / f"digit {label}").mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(examples / f"digit {label}" / f"{i}.png")
    for i, (pixels, label) in enumerate(zip(*unseen, strict=True)):
        if label < 3 and i % 4 == 0:
            Image.fromarray(pixels).save(images / f"{label}-{i}.png")
    return examples, images
