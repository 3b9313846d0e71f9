"""Readers on the real files of published data sets, where those are at hand."""

from __future__ import annotations

import gzip
import io
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest

from cnaps.data.collection import Collection
from cnaps.data.prepare import prepare
from cnaps.errors import DataError

from .conftest import Command, sizes, write_tar, write_zip


def test_omniglot_is_read_as_published(shared: Path, tmp_path: Path, command: Command) -> None:
    for part in ("images_background", "images_evaluation"):
        with zipfile.ZipFile(shared / "datasets" / f"omniglot-{part}.zip") as archive:
            names = [name for name in archive.namelist() if name.endswith("_01.png")]
            write_zip(tmp_path / f"{part}.zip", {name: archive.read(name) for name in names})
    assert command("data", "prepare", "omniglot", tmp_path, tmp_path / "c", "--size", 28, "--workers", 1)[0] == 0
    collection = Collection.open(tmp_path / "c")
    assert len(collection.classes) == 1623
    assert set(collection.counts.tolist()) == {1}
    assert sizes(collection) == {"train": 883, "valid": 81, "test": 659}
    assert collection.hierarchy is not None
    assert collection.hierarchy["kind"] == "alphabets"
    assert len(collection.hierarchy["groups"]) == 50
    tagalog = collection.hierarchy["groups"]["Tagalog"]
    assert all(collection.classes[index].startswith("Tagalog/") for index in tagalog)
    assert collection.keys([0]) == ["Alphabet_of_the_Magi/character01/0709_01.png"]
    assert collection.read(range(0, 1600, 50)).float().mean() < 60, "strokes should be white on black"


@pytest.mark.slow
def test_all_of_omniglot_quick_draw_and_mnist_is_read(shared: Path, tmp_path: Path, command: Command) -> None:
    datasets = shared / "datasets"
    for name, source, classes, images in [
        ("omniglot", datasets, 1623, 32_460),
        ("quickdraw", datasets / "quickdraw.zip", 345, 34_500),
        ("mnist", datasets, 10, 70_000),
    ]:
        assert command("data", "prepare", name, source, tmp_path / name, "--size", 28)[0] == 0
        collection = Collection.open(tmp_path / name)
        assert (len(collection.classes), len(collection), collection.broken) == (classes, images, [])


def test_quick_draw_is_read_as_published(shared: Path, tmp_path: Path, command: Command) -> None:
    drawings: dict[str, np.ndarray] = {}
    with zipfile.ZipFile(shared / "datasets" / "quickdraw.zip") as archive:
        for name in archive.namelist():
            drawings[name] = np.load(io.BytesIO(archive.read(name)))[:3]
    for name, rows in drawings.items():
        np.save(tmp_path / name, rows)
    assert command("data", "prepare", "quickdraw", tmp_path, tmp_path / "c", "--size", 28, "--workers", 1)[0] == 0
    collection = Collection.open(tmp_path / "c")
    assert sizes(collection) == {"train": 241, "valid": 52, "test": 52}
    cat = collection.classes.index("cat")
    assert collection.keys(collection.rows(cat)) == ["cat/0", "cat/1", "cat/2"]
    stored = collection.read(collection.rows(cat))[:, 0].numpy().reshape(3, 784)
    assert np.array_equal(stored, drawings["cat.npy"])


def idx(path: Path, array: np.ndarray) -> None:
    header = (0x800 + array.ndim).to_bytes(4, "big") + b"".join(side.to_bytes(4, "big") for side in array.shape)
    with gzip.open(path, "wb") as file:
        file.write(header + array.tobytes())


def test_mnist_is_read_as_published(shared: Path, tmp_path: Path, command: Command) -> None:
    kept = {"train": 300, "t10k": 100}
    digits, labels = {}, {}
    for part, count in kept.items():
        with gzip.open(shared / "datasets" / f"mnist-{part}-images-idx3-ubyte.gz") as file:
            digits[part] = np.frombuffer(file.read(16 + 784 * count), np.uint8, offset=16).reshape(count, 28, 28)
        with gzip.open(shared / "datasets" / f"mnist-{part}-labels-idx1-ubyte.gz") as file:
            labels[part] = np.frombuffer(file.read(8 + count), np.uint8, offset=8)
        idx(tmp_path / f"{part}-images-idx3-ubyte.gz", digits[part])
        idx(tmp_path / f"{part}-labels-idx1-ubyte.gz", labels[part])
    assert command("data", "prepare", "mnist", tmp_path, tmp_path / "c")[0] == 0
    collection = Collection.open(tmp_path / "c")
    assert collection.classes == list("0123456789")
    assert sizes(collection) == {"test": 10}
    assert len(collection) == 400
    for row, key in enumerate(collection.keys(range(400))):
        part, number = key.split("/")
        assert collection.class_of([row])[0] == labels[part][int(number)]
    row = list(collection.keys(range(400))).index("t10k/42")
    assert np.array_equal(collection.read([row], size=28)[0, 0].numpy(), digits["t10k"][42])
    idx(tmp_path / "t10k-labels-idx1-ubyte.gz", labels["t10k"][:50])
    with pytest.raises(DataError, match="100 images but 50 labels"):
        prepare("mnist", tmp_path, tmp_path / "d")
    (tmp_path / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(DataError, match="t10k-labels"):
        prepare("mnist", tmp_path, tmp_path / "d")


# Real images in class folders, with the published class splits.


@pytest.mark.parametrize(
    ("name", "file", "classes", "splits"),
    [
        ("cu_birds", "cub-birds.tar", 200, {"train": 140, "valid": 30, "test": 30}),
        ("vgg_flower", "vgg-flower.tar", 102, {"train": 71, "valid": 15, "test": 16}),
        ("traffic_sign", "traffic-sign.tar", 43, {"test": 43}),
        ("cifar10", "cifar10.tar", 10, {"test": 10}),
    ],
)
def test_class_folders_of_a_published_set_get_its_split(
    name: str, file: str, classes: int, splits: dict[str, int], shared: Path, tmp_path: Path
) -> None:
    seen: dict[str, int] = {}
    files: dict[str, bytes] = {}
    with tarfile.open(shared / "datasets" / file) as archive:
        for member in archive:
            folder = member.name.split("/")[0]
            if member.isreg() and seen.setdefault(folder, 0) < 1:
                seen[folder] += 1
                content = archive.extractfile(member)
                assert content is not None
                files[member.name] = content.read()
    source = write_tar(tmp_path / "a.tar", files)
    collection = prepare(name, source, tmp_path / name, size=16, workers=1).collection
    assert len(collection.classes) == classes
    assert sizes(collection) == splits
    assert collection.name == name


def test_a_part_of_a_data_set_has_no_published_split(shared: Path, tmp_path: Path, command: Command) -> None:
    code, _, err = command("data", "prepare", "dtd", shared / "datasets" / "dtd.tar", tmp_path / "c")
    assert code == 2
    assert "47 classes" in err
    assert not (tmp_path / "c").exists()
