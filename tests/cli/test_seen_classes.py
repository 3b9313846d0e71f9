"""Classes that a model was trained on are no few-shot test, and `evaluate` says so."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from cnaps.data.collection import write_collection
from cnaps.nn.checkpoints import load_model
from cnaps.training.config import TrainConfig
from cnaps.training.settings import build
from cnaps.training.start import train

from ..compatibility import make

LINE = ["--learners", "cnaps", "--tasks", "1", "--ways", "2", "--shots", "1", "--targets", "1"]


def digits(folder: Path, name: str, split: dict[str, list[int]]) -> Path:
    images, labels = make.digits()
    rows = [(int(labels[i]), str(i), images[i]) for i in range(30)]
    classes = [f"digit {d}" for d in range(6)]
    write_collection(folder, name=name, classes=classes, examples=rows, size=8, splits=split)
    return folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a collection and a model that was trained on half of it."""
    folder = tmp_path_factory.mktemp("trained")
    data = digits(folder / "set", "digits", {"train": [0, 1, 2], "test": [3, 4, 5]})
    settings = {
        "data": {"train": [str(data)], "image_size": 32},
        "model": {"backbone": make.BACKBONE, "embedding_size": 4, "generator_width": 4},
        "init": {"backbone": "random"},
        "tasks": {"total": 1, "per_step": 1, "ways": 2, "shots": 1, "targets": 1},
        "tensorboard": False,
    }
    train(build(TrainConfig, settings), folder / "run", device="cpu")
    return folder


def test_classes_of_training_are_warned_of(trained: Path, tmp_path: Path, run) -> None:
    model, data = trained / "run/last", trained / "set"
    code, _, errors = run("evaluate", data, "--model", model, "--split", "train", "--out", tmp_path / "a", *LINE)
    assert (code, "was trained on 2 of the 2 classes" in errors) == (0, True), errors
    code, _, errors = run("evaluate", data, "--model", model, "--split", "test", "--out", tmp_path / "b", *LINE)
    assert (code, errors) == (0, "")


def test_another_name_does_not_hide_them(trained: Path, tmp_path: Path, run) -> None:
    model, data = trained / "run/last", digits(tmp_path / "other", "other", {"test": [0, 1, 2]})
    code, _, errors = run("evaluate", data, "--model", model, "--out", tmp_path / "a", *LINE)
    assert (code, "was trained on 2 of the 2 classes of other" in errors) == (0, True), errors


def test_what_is_not_known_is_said_to_be_so(trained: Path, tmp_path: Path, run) -> None:
    shutil.copytree(trained / "run/last", tmp_path / "model")
    network = load_model(tmp_path / "model")
    network.notes = {}
    network.save(tmp_path / "without")
    places = ("--model", tmp_path / "without", "--out", tmp_path / "a")
    code, _, errors = run("evaluate", trained / "set", *places, *LINE)
    assert (code, "is not noted" in errors) == (0, True)
    data = digits(tmp_path / "again", "digits", {"train": [0, 1, 5], "test": [2, 3, 4]})
    code, _, errors = run("evaluate", data, "--model", tmp_path / "model", "--out", tmp_path / "b", *LINE)
    assert (code, "is not known" in errors) == (0, True)
