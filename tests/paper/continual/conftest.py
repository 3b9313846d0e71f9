"""Digits as a stream of classes, and a small model with random weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor

from cnaps import CNAPs, ModelConfig
from cnaps.data.collection import Collection, write_collection
from cnaps.nn.backbones import register_backbone

from ...models import random_film, small_backbone

register_backbone("small-for-streams", lambda: small_backbone(8, 16, 160))


@pytest.fixture(scope="session")
def make_model() -> Callable[..., CNAPs]:
    """A small model whose FiLM is far from the identity."""

    def make(head: str = "ridge") -> CNAPs:
        torch.manual_seed(0)
        config = ModelConfig(
            backbone="small-for-streams", head=head, features="all", set_encoder_norm="none", image_size=32
        )
        model = CNAPs(config)
        random_film(model)
        return model

    return make


@pytest.fixture(scope="session")
def digits() -> tuple[Tensor, Tensor]:
    """Pixels uint8 (1797, 3, 8, 8) and labels, in an order without a pattern."""
    data = load_digits()
    order = np.random.default_rng(0).permutation(len(data.target))
    pixels = torch.from_numpy((data.images * 255 / 16).astype(np.uint8))[order]
    return pixels[:, None].repeat(1, 3, 1, 1), torch.from_numpy(data.target)[order].long()


@pytest.fixture(scope="session")
def collection(digits: tuple[Tensor, Tensor], tmp_path_factory: pytest.TempPathFactory) -> Collection:
    """Sixty of each digit."""
    pixels, labels = digits
    examples = [
        (digit, f"{digit}/{i}", image.permute(1, 2, 0).numpy())
        for digit in range(10)
        for i, image in enumerate(pixels[labels == digit][:60])
    ]
    folder: Path = tmp_path_factory.mktemp("collections") / "digits"
    return write_collection(folder, name="digits", classes=list("0123456789"), examples=examples, size=16)
