"""Handwritten digits, a small network that learns them in seconds, and tasks of both."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from cnaps.data.collection import Collection, write_collection
from cnaps.episodes import Sampler, Task, load_task
from cnaps.nn.backbones import Backbone, create_backbone
from cnaps.nn.model import CNAPs, ModelConfig

from ..models import SMALL_BACKBONE

os.environ.setdefault("CNAPS_THREADS", "1")


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Collection:
    """The digits of scikit-learn: 5 classes to train on, 5 to test on."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    scaled = (images.reshape(-1, 8, 8) * 255 / 16).astype(np.uint8)
    order = np.argsort(labels, kind="stable")
    examples = (
        (int(labels[i]), f"{i}", np.repeat(np.kron(scaled[i], np.ones((4, 4), np.uint8))[..., None], 3, 2))
        for i in order
    )
    splits = {"train": [0, 2, 4, 6, 8], "test": [1, 3, 5, 7, 9]}
    folder = tmp_path_factory.mktemp("collections") / "digits"
    return write_collection(
        folder, name="digits", classes=[str(k) for k in range(10)], examples=examples, size=32, splits=splits
    )


@pytest.fixture(scope="session")
def backbone(digits: Collection) -> Backbone:
    """A network that has learned to tell the training digits apart, in 200 steps."""
    torch.manual_seed(3)
    made = create_backbone(SMALL_BACKBONE).train()
    last = nn.Linear(made.feature_size, 5)
    rows = torch.tensor([row for index in digits.splits["train"] for row in digits.rows(index)])
    images, labels = digits.read(rows.tolist()), torch.tensor(digits.class_of(rows.tolist()) // 2)
    optimiser = torch.optim.Adam([*made.parameters(), *last.parameters()], lr=0.01)
    for _ in range(200):
        some = torch.randint(len(rows), (48,))
        loss = nn.functional.cross_entropy(last(made(made.normalisation(images[some]))), labels[some])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    made.zero_grad()
    return made.eval().requires_grad_(False)


@pytest.fixture
def model(backbone: Backbone) -> CNAPs:
    torch.manual_seed(0)
    return CNAPs(ModelConfig(backbone=SMALL_BACKBONE, head="cosine"), backbone)


@pytest.fixture(scope="session")
def tasks(digits: Collection) -> list[Task]:
    sampler = Sampler([digits], "test", ways=5, shots=8, targets=8, seed=1)
    return [load_task(sampler.describe(i), {"digits": digits}, 32) for i in range(2)]


@pytest.fixture(scope="session")
def saved_model(backbone: Backbone, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "small"
    CNAPs(ModelConfig(backbone=SMALL_BACKBONE, head="cosine"), backbone).save(folder)
    return folder
