"""`cnaps check` says of everything that is kept on disk whether it is whole."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from cnaps.data.collection import Collection, write_collection
from cnaps.training.run import checkpoints, latest_checkpoint

from ..compatibility import make


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    shutil.copytree(make.STORED, tmp_path / "stored")
    images, labels = make.digits()
    rows = [(int(labels[i]), str(i), images[i]) for i in range(30)]
    write_collection(tmp_path / "stored/set", name="set", classes=list("012345"), examples=rows, size=8)
    return tmp_path / "stored"


THINGS = {
    "model": ["config.json", "model.safetensors"],
    "collection": ["collection.json", "images.arrow"],
    "set": ["collection.json", "images.arrow"],
    "run": ["checkpoints/step-00000001.safetensors", "config.json", "environment.json"],
    "project": ["project.json", "images/*"],
    "task-2.safetensors": [""],
}


@pytest.mark.parametrize("name", THINGS)
def test_what_is_whole_is_said_to_be_so(name: str, stored: Path, run) -> None:
    code, output, errors = run("check", stored / name)
    assert (code, "whole" in output, errors) == (0, True, "")


@pytest.mark.parametrize(("name", "part"), [(name, part) for name, parts in THINGS.items() for part in parts])
def test_what_is_damaged_is_named(name: str, part: str, stored: Path, run) -> None:
    path = next((stored / name).glob(part)) if part else stored / name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x41
    path.write_bytes(data[:-3] if part.endswith("config.json") or "environment" in part else data)
    code, output, errors = run("check", stored / name)
    assert (code, "damaged" in output) == (1, True)
    assert path.name in errors or path.parent.name in errors


def test_a_changed_picture_of_a_collection_is_noticed(stored: Path, run) -> None:
    path = stored / "set/images.arrow"
    data = bytearray(path.read_bytes())
    at = data.find(b"IDAT") + 8
    data[at] ^= 1
    path.write_bytes(data)
    Collection.open(stored / "set")  # costs nothing, so it sees nothing
    code, _, errors = run("check", stored / "set")
    assert (code, "does not fit its digest" in errors) == (1, True)


def test_a_collection_whose_description_was_changed_is_refused(stored: Path) -> None:
    path = stored / "set/collection.json"
    held = json.loads(path.read_text())
    path.write_text(json.dumps(held | {"licence": "none"}))
    with pytest.raises(ValueError, match="does not fit its digest"):
        Collection.open(stored / "set")


def test_nothing_of_ours_is_said_to_be_so(tmp_path: Path, run) -> None:
    for path in (tmp_path, tmp_path / "none"):
        code, _, errors = run("check", path)
        assert (code, errors.count("\n")) == (2, 1)


def test_a_damaged_newest_checkpoint_falls_back_to_the_one_before(stored: Path, capsys) -> None:
    (first,) = checkpoints(stored / "run")
    newest = first.with_name("step-00000002.safetensors")
    newest.write_bytes(first.read_bytes()[:-1])
    found = latest_checkpoint(stored / "run")
    assert found is not None
    assert found[1]["step"] == 1
    said = capsys.readouterr().err
    assert newest.name in said
    assert "the one before it is taken" in said
