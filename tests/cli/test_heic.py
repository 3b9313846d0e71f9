"""Photographs of telephones are read; what ends like an image and cannot be read is named."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cnaps.errors import DataError
from cnaps.images.decoding import load_image


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    pillow_heif = pytest.importorskip("pillow_heif")
    pixels = np.zeros((48, 64, 3), np.uint8)
    pixels[:, :32] = (250, 10, 10)
    path = tmp_path / "IMG_0001.HEIC"
    pillow_heif.from_pillow(Image.fromarray(pixels)).save(path, quality=95)
    return path


def test_a_heic_photograph_is_read(photo: Path) -> None:
    image = load_image(photo)
    assert image.size == (64, 48)
    pixels = np.asarray(image)
    assert pixels[20, 5, 0] > 200 > 60 > pixels[20, 60].max()
    assert load_image(photo.read_bytes()).size == (64, 48)


def test_without_the_package_the_hint_names_it(photo: Path, examples, model_folder, run, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    from cnaps.images import decoding

    decoding.read_heic.cache_clear()
    with pytest.raises(DataError, match=r"IMG_0001\.HEIC.*-m pip install pillow-heif"):
        load_image(photo)
    photo.rename(examples / "digit 0" / photo.name)
    code, _, errors = run("fit", examples, photo.parent / "task", "--model", model_folder)
    assert code == 3
    assert "IMG_0001.HEIC" in errors
    monkeypatch.undo()
    decoding.read_heic.cache_clear()


@pytest.mark.parametrize("name", ["a.dng", "a.CR2", "a.jxl", "a.psd", "a.svg", "a.heic", "a.jpg"])
def test_an_image_that_cannot_be_read_is_named(name: str, examples: Path, tmp_path, model_folder, run) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / name).write_bytes(b"no such thing")
    (tmp_path / "photos" / "fine.png").write_bytes(next(examples.rglob("*.png")).read_bytes())
    code, _, errors = run("classify", examples, tmp_path / "photos", "--model", model_folder)
    assert (code, f"photos/{name}" in errors) == (3, True)
    (examples / "digit 0" / name).write_bytes(b"no such thing")
    for line in (("fit", examples, tmp_path / "task"), ("classify", examples, tmp_path / "photos" / "fine.png")):
        code, _, errors = run(*line, "--model", model_folder)
        assert (code, f"digit 0/{name}" in errors) == (3, True)
    code, _, errors = run("data", "prepare", "folder", examples, tmp_path / "set", "--splits", "none")
    assert (code, name in errors) == (0, True)
