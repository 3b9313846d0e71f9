"""Pictures and archives that the tests of data make for themselves, and the real command."""

from __future__ import annotations

import io
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cnaps.cli import main
from cnaps.data.collection import Collection

Command = Callable[..., tuple[int, str, str]]


def picture(red: int = 0, green: int = 0, blue: int = 0, size: tuple[int, int] = (40, 30)) -> Image.Image:
    """A picture of nearly one colour, so that its class can be told from its mean."""
    width, height = size
    ramp = np.linspace(-10, 10, width)[None, :, None] * np.ones((height, 1, 3))
    return Image.fromarray(np.clip(np.array([red, green, blue]) + ramp, 0, 255).astype(np.uint8))


def encoded(image: Image.Image, kind: str = "JPEG", **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def write_files(root: Path, files: Mapping[str, bytes]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return root


def write_tar(path: Path, files: Mapping[str, bytes], mode: str = "w") -> Path:
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def write_zip(path: Path, files: Mapping[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def colours(collection: Collection, class_index: int) -> np.ndarray:
    """The mean colour of each image of a class: (N, 3)."""
    return collection.read(list(collection.rows(class_index))).float().mean(dim=(2, 3)).numpy()


def shade(index: int) -> tuple[int, int, int]:
    """A colour that tells classes apart, away from black and white."""
    return 20 + index * 53 % 211, 20 + index * 97 % 211, 20 + index * 31 % 211


def shaded(index: int, kind: str = "JPEG", size: tuple[int, int] = (16, 12)) -> bytes:
    return encoded(picture(*shade(index), size=size), kind)


def assert_shades(collection: Collection, expected: dict[str, int], tolerance: float = 12) -> None:
    """The images of each class have the colour that the test gave it."""
    for name, index in expected.items():
        found = colours(collection, collection.classes.index(name))
        assert np.abs(found - shade(index)).max() < tolerance, name


def sizes(collection: Collection) -> dict[str, int]:
    return {split: len(classes) for split, classes in collection.splits.items()}


def three_classes(per_class: int = 3) -> dict[str, bytes]:
    """Class folders named by what is in them."""
    shades = {"red": (200, 20, 20), "green": (20, 200, 20), "blue": (20, 20, 200)}
    return {
        f"{name}/{index}.jpg": encoded(picture(*shade, size=(40 + index, 30)))
        for name, shade in shades.items()
        for index in range(per_class)
    }


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    """Run ``cnaps`` with arguments in this process: the exit code and what was printed."""

    def run(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as end:
            main([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        return int(end.value.code or 0), printed.out, printed.err

    return run
