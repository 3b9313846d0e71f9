from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cnaps.data.collection import write_collection
from cnaps.training.config import PretrainConfig, TrainConfig
from cnaps.training.distributed import World
from cnaps.training.episodic import EpisodicJob
from cnaps.training.settings import build
from cnaps.training.start import build_model, pretrain, train

from ..models import SMALL_BACKBONE

ALPHABETS = ("Greek", "Hebrew", "Latin", "Korean", "Futurama")  # the last one is held out


@pytest.fixture(scope="module")
def drawings(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Five alphabets of Omniglot and forty categories of Quick Draw at 32 pixels, part of the classes held out."""
    folder = tmp_path_factory.mktemp("drawings")
    with zipfile.ZipFile(shared / "datasets" / "omniglot-images_background.zip") as archive:
        files = [n for n in archive.namelist() if n.endswith(".png") and n.split("/")[1] in ALPHABETS]
        classes = sorted({n.rsplit("/", 1)[0] for n in files})
        letters = ((classes.index(n.rsplit("/", 1)[0]), n, archive.read(n)) for n in sorted(files))
        held_out = [i for i, name in enumerate(classes) if name.split("/")[1] == ALPHABETS[-1]]
        rest = [i for i in range(len(classes)) if i not in held_out]
        splits = {"train": rest, "valid": held_out}
        write_collection(
            folder / "omniglot", name="omniglot", classes=classes, examples=letters, size=32, splits=splits
        )
    with zipfile.ZipFile(shared / "datasets" / "quickdraw.zip") as archive:
        names = sorted(n for n in archive.namelist() if n.endswith(".npy"))[::8][:40]

        def sketches() -> Iterator[tuple[int, str, Image.Image]]:
            for index, name in enumerate(names):
                rows = np.load(io.BytesIO(archive.read(name)), allow_pickle=False)[:40]
                for i, row in enumerate(rows):
                    yield index, f"{name}/{i}", Image.fromarray(255 - row.reshape(28, 28))

        splits = {"train": list(range(30)), "valid": list(range(30, 40))}
        write_collection(
            folder / "quickdraw", name="quickdraw", classes=names, examples=sketches(), size=32, splits=splits
        )
    return [folder / "omniglot", folder / "quickdraw"]


def test_training_on_two_real_sets_clearly_improves_unseen_classes(drawings: list[Path], tmp_path: Path) -> None:
    paths = [str(path) for path in drawings]
    first_stage = PretrainConfig(
        data=tuple(paths),
        backbone=SMALL_BACKBONE,
        epochs=5,
        drop_every=3,
        batch=32,
        learning_rate=0.05,
        crop=0.2,
        jitter=0.0,
        flip=False,
        validate_every=5,
        tensorboard=False,
    )
    pretrain(first_stage, tmp_path / "theta", device="cpu")
    config = build(
        TrainConfig,
        {
            "data": {"train": paths, "valid": paths},
            "model": {"backbone": SMALL_BACKBONE, "embedding_size": 16},
            "init": {"backbone": str(tmp_path / "theta")},
            "tasks": {"total": 480, "per_step": 4, "ways": 5, "shots": 5, "targets": 5},
            "optimiser": {"learning_rate": 2e-3, "clip": 1.0, "schedule": {"kind": "cosine", "warmup": 5}},
            "validation": {"every": 10_000, "tasks_per_set": 40},
            "checkpoint_every": 1000,
            "tensorboard": False,
        },
    )
    untrained = EpisodicJob(build_model(config), config, World(device="cpu")).validate(lambda: False)
    assert untrained is not None
    state, _ = train(config, tmp_path / "phi", device="cpu")
    for name, before in untrained.items():
        assert state.best[name] > before + 0.1, f"{name}: {before:.3f} before, {state.best[name]:.3f} after"
