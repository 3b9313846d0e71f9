"""A small model, folders of digits, and the program called in this process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from cnaps import CNAPs
from cnaps.cli import main
from cnaps.runtime.engine import open_engine
from cnaps.runtime.task import Examples, FittedTask

from ..compatibility import make

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="session")
def model() -> CNAPs:
    return make.make_model()


@pytest.fixture(scope="session")
def model_folder(model: CNAPs, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "small"
    model.save(folder)
    return folder


@pytest.fixture(scope="session")
def task(model: CNAPs) -> FittedTask:
    images, labels = make.digits()
    return FittedTask.learn(
        open_engine(model), Examples.read(images[:10], [f"digit {d}" for d in labels[:10]], 32)
    )


@pytest.fixture
def examples(tmp_path: Path) -> Path:
    """A folder for each of two digits, five images each."""
    folder = tmp_path / "examples"
    images, labels = make.digits()
    for i in range(10):
        place = folder / f"digit {labels[i]}"
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(images[i]).save(place / f"{i}.png")
    return folder


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command: exit code, standard output, standard error."""

    def call(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        return int(ended.value.code or 0), *capsys.readouterr()

    return call
