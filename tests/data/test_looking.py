"""The commands that look at data: show, list, doctor."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from cnaps.data.collection import write_collection

from .conftest import Command, picture, three_classes, write_files, write_zip


def test_show_tells_about_a_collection_and_draws_it(tmp_path: Path, command: Command) -> None:
    command(
        "data",
        "prepare",
        "folder",
        write_files(tmp_path / "in", three_classes()),
        tmp_path / "c",
        "--splits",
        "test",
    )
    code, out, _ = command("data", "show", tmp_path / "c")
    assert code == 0
    assert "3 classes, 9 images of 84 pixels" in out
    assert "images a class   3 to 3" in out
    assert "test             3 classes, 9 images" in out
    sheet = Image.open(tmp_path / "c.png")
    assert sheet.height == 3 * 68 + 4
    shades = [np.asarray(sheet)[4 + line * 68 + 30, 190 + 30] for line in range(3)]
    assert [shade.argmax() for shade in shades] == [2, 1, 0]  # blue, green, red
    command("data", "show", tmp_path / "c", "--sheet", tmp_path / "elsewhere.png")
    assert (tmp_path / "elsewhere.png").exists()


def test_show_copes_with_long_and_foreign_names(tmp_path: Path, command: Command) -> None:
    classes = ["日本語", "a name " * 40, "🦜"]
    examples = [(index, str(index), picture(9)) for index in range(3)]
    write_collection(tmp_path / "c", name="c", classes=classes, examples=examples, size=8)
    assert command("data", "show", tmp_path / "c")[0] == 0


def test_list_shows_the_collections_of_a_folder(tmp_path: Path, command: Command) -> None:
    for name in ("birds", "boats"):
        write_collection(tmp_path / name, name=name, classes=["a"], examples=[(0, "a", picture(9))], size=8)
    _, out, _ = command("data", "list", tmp_path)
    assert [line.split()[0] for line in out.splitlines()] == ["birds", "boats"]


def test_doctor_tells_what_is_ready_and_what_is_missing(tmp_path: Path, command: Command) -> None:
    write_collection(tmp_path / "mnist", name="mnist", classes=["1"], examples=[(0, "a", picture(9))], size=8)
    write_collection(
        tmp_path / "birds-84", name="cu_birds", classes=["1"], examples=[(0, "a", picture(9))], size=8
    )
    write_files(tmp_path / "dtd", {"collection.json": b"{"})
    write_zip(tmp_path / "images_background.zip", {"a": b""})
    write_zip(tmp_path / "train2017.zip", {"a": b""})
    write_zip(tmp_path / "annotations_trainval2017.zip", {"a": b""})
    code, out, _ = command("data", "doctor", tmp_path)
    assert code == 0
    states = {line.split()[1]: line.split()[0] for line in out.splitlines() if not line.startswith(" ")}
    assert states["mnist"] == states["cu_birds"] == "ready"
    assert states["dtd"] == "damaged"
    assert states["mscoco"] == "downloaded"
    assert states["omniglot"] == states["ilsvrc_2012"] == states["fungi"] == "missing"
    assert "images_evaluation.zip  <-  https://" in out
    assert "images_background.zip  <-" not in out
    assert f"cnaps data prepare mscoco {tmp_path} {tmp_path / 'mscoco'}" in out
    assert "2 of 13 data sets are ready" in out
    assert sum(len(line.split()) > 1 and line.split()[1] in states for line in out.splitlines()) >= 13


def test_doctor_knows_unpacked_downloads(tmp_path: Path, command: Command) -> None:
    write_files(tmp_path / "ilsvrc_2012", {"n01440764/a.JPEG": b"", "wordnet.is_a.txt": b"", "words.txt": b""})
    write_files(tmp_path, {"CUB_200_2011/images/x/y.jpg": b"", "GTSRB/Readme.txt": b""})
    _, out, _ = command("data", "doctor", tmp_path)
    states = {line.split()[1]: line.split()[0] for line in out.splitlines() if not line.startswith(" ")}
    assert [states[name] for name in ("ilsvrc_2012", "cu_birds", "traffic_sign")] == ["downloaded"] * 3
