"""One command makes a collection of anybody's folders: odd ones, broken ones, interrupted ones."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import cnaps.data.prepare as module
from cnaps.data.collection import Collection
from cnaps.data.prepare import prepare
from cnaps.errors import DataError, InputError

from .conftest import Command, colours, encoded, picture, three_classes, write_files, write_tar, write_zip


def state(folder: Path) -> dict[str, str]:
    """Every file below a folder with the hash of its content."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.mark.parametrize("kind", ["folder", "tar", "tgz", "zip", "wrapped", "csv"])
def test_folders_archives_and_lists_give_the_same_collection(kind: str, tmp_path: Path, command: Command) -> None:
    files = three_classes()
    if kind == "csv":
        write_files(tmp_path / "source", {f"pictures/{name}": content for name, content in files.items()})
        rows = io.StringIO()
        csv.writer(rows).writerows(
            [["path", "label"], *([f"pictures/{name}", name.split("/")[0]] for name in files)]
        )
        source = tmp_path / "source" / "list.csv"
        source.write_text(rows.getvalue())
    elif kind == "zip":
        source = write_zip(tmp_path / "a.zip", files)
    elif kind in ("tar", "tgz"):
        source = write_tar(tmp_path / f"a.{kind}", files, "w:gz" if kind == "tgz" else "w")
    else:
        inside = "my photos/" if kind == "wrapped" else ""
        source = write_files(tmp_path / "source", {f"{inside}{name}": content for name, content in files.items()})
    code, out, _ = command("data", "prepare", "folder", source, tmp_path / "mine", "--size", 24)
    assert code == 0
    assert "3 classes, 9 images of 24 pixels" in out
    collection = Collection.open(tmp_path / "mine")
    assert (collection.name, collection.classes, collection.splits) == ("mine", ["blue", "green", "red"], {})
    for index, channel in enumerate([2, 1, 0]):
        assert (colours(collection, index).argmax(axis=1) == channel).all()
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".")) == []
    if kind != "csv":
        assert collection.keys([0, 8]) == ["blue/0.jpg", "red/2.jpg"]


def test_odd_folders_are_taken_as_they_are(tmp_path: Path) -> None:
    image = encoded(picture(200, 100, 50))
    files = {f"{name}/1.jpg": image for name in ["Ünïcödé", "日本語", "العربية", "🦜", "with space", "a'b\"c"]}
    files |= {"many/sub/deep/1.PNG": encoded(picture(), "PNG"), "many/2.jpg": image, "many/notes.txt": b"no image"}
    files |= {"texts only/readme.md": b"nothing here", "at the top.jpg": image, "many/.hidden.jpg": b"x"}
    write_files(tmp_path / "odd", files)
    (tmp_path / "odd" / "empty class").mkdir()
    collection = prepare("folder", tmp_path / "odd", tmp_path / "c", size=16).collection
    assert set(collection.classes) == {"Ünïcödé", "日本語", "العربية", "🦜", "with space", "a'b\"c", "many"}
    assert sorted(collection.counts.tolist()) == [1, 1, 1, 1, 1, 1, 2]
    assert not collection.broken
    assert "many/sub/deep/1.PNG" in collection.keys(range(len(collection)))


def test_a_name_that_is_no_text_is_read_all_the_same(tmp_path: Path) -> None:
    folder = os.fsencode(tmp_path / "source") + b"/caf\xe9"
    os.makedirs(folder)
    with open(folder + b"/\xff.jpg", "wb") as file:
        file.write(encoded(picture()))
    collection = prepare("folder", tmp_path / "source", tmp_path / "c").collection
    assert collection.classes == ["caf\\xe9"]


def test_folders_named_by_numbers_keep_the_order_of_numbers(tmp_path: Path) -> None:
    write_files(tmp_path / "source", {f"{number}/a.jpg": encoded(picture()) for number in (10, 9, 1, 100)})
    assert prepare("folder", tmp_path / "source", tmp_path / "c").collection.classes == ["1", "9", "10", "100"]


def test_thousands_of_classes_are_no_trouble(tmp_path: Path) -> None:
    image = encoded(picture(1, 2, 3, size=(8, 8)), "PNG")
    source = write_zip(tmp_path / "a.zip", {f"class {index:04d}/1.png": image for index in range(3000)})
    collection = prepare("folder", source, tmp_path / "c", size=8, splits="random", seed=3, workers=1).collection
    assert len(collection.classes) == 3000
    assert sum(map(len, collection.splits.values())) == 3000
    assert 1900 < len(collection.splits["train"]) < 2300


def test_a_broken_image_is_counted_and_listed(tmp_path: Path, command: Command) -> None:
    files = three_classes() | {"red/9.jpg": b"broken", "green/9.jpg": encoded(picture())[:300], "void/1.jpg": b""}
    source = write_files(tmp_path / "source", files)
    code, out, err = command("data", "prepare", "folder", source, tmp_path / "c")
    assert code == 0
    assert "9 images" in out
    assert "3 broken" in out
    assert "red/9.jpg: the image cannot be read" in err
    collection = Collection.open(tmp_path / "c")
    assert {key for key, _ in collection.broken} == {"red/9.jpg", "green/9.jpg", "void/1.jpg"}
    assert collection.classes == ["blue", "green", "red"]
    assert "void/1.jpg" in command("data", "show", tmp_path / "c")[1]


def test_strict_makes_a_broken_image_an_error(tmp_path: Path, command: Command) -> None:
    source = write_files(tmp_path / "source", three_classes() | {"red/9.jpg": b"broken"})
    code, _, err = command("data", "prepare", "folder", source, tmp_path / "c", "--strict")
    assert code == 2
    assert "1 broken images" in err
    assert "red/9.jpg" in err
    assert not (tmp_path / "c").exists()
    (source / "red" / "9.jpg").write_bytes(encoded(picture(200, 20, 20)))
    assert command("data", "prepare", "folder", source, tmp_path / "c", "--strict")[0] == 0
    assert len(Collection.open(tmp_path / "c")) == 10


def test_a_source_without_images_is_refused(tmp_path: Path) -> None:
    write_files(tmp_path / "source", {"a/notes.txt": b"x"})
    with pytest.raises(DataError, match="no images in class folders"):
        prepare("folder", tmp_path / "source", tmp_path / "c")
    write_files(tmp_path / "source", {"a/1.jpg": b"x"})
    with pytest.raises(DataError, match=r"no readable image.*a/1\.jpg"):
        prepare("folder", tmp_path / "source", tmp_path / "c")
    assert not (tmp_path / "c").exists()


def test_running_twice_changes_nothing(tmp_path: Path, command: Command) -> None:
    source = write_tar(tmp_path / "a.tgz", three_classes() | {"red/9.jpg": b"broken"}, "w:gz")
    command("data", "prepare", "folder", source, tmp_path / "out" / "c")
    before = state(tmp_path / "out")
    code, out, _ = command("data", "prepare", "folder", source, tmp_path / "out" / "c")
    assert code == 0
    assert "was there already" in out
    assert state(tmp_path / "out") == before


def test_a_collection_of_other_files_is_not_replaced_unasked(tmp_path: Path, command: Command) -> None:
    source = write_files(tmp_path / "source", three_classes())
    command("data", "prepare", "folder", source, tmp_path / "c")
    before = state(tmp_path / "c")
    write_files(source, {"red/new.jpg": encoded(picture(200, 20, 20))})
    code, _, err = command("data", "prepare", "folder", source, tmp_path / "c")
    assert code == 2
    assert "--overwrite" in err
    assert state(tmp_path / "c") == before
    assert command("data", "prepare", "folder", source, tmp_path / "c", "--overwrite")[0] == 0
    assert len(Collection.open(tmp_path / "c")) == 10


def test_a_folder_that_is_no_collection_is_never_overwritten(tmp_path: Path) -> None:
    source = write_files(tmp_path / "source", three_classes())
    other = write_files(tmp_path / "other", three_classes())
    before = state(source), state(other)
    for overwrite in (False, True):
        with pytest.raises(InputError, match="is read by this command"):
            prepare("folder", source, source, overwrite=overwrite)
        with pytest.raises(InputError, match="is not replaced"):
            prepare("folder", source, other, overwrite=overwrite)
    assert (state(source), state(other)) == before


def test_worker_processes_do_not_change_the_outcome(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SHARD_ROWS", 4)
    source = write_tar(tmp_path / "a.tar", three_classes(per_class=5) | {"red/9.jpg": b"broken"})
    alone = prepare("folder", source, tmp_path / "a", name="c", workers=1).collection
    together = prepare("folder", source, tmp_path / "b", name="c", workers=2).collection
    assert state(tmp_path / "a") == state(tmp_path / "b")
    assert len(together) == 15
    monkeypatch.setattr(module, "SHARD_ROWS", 1024)
    large = prepare("folder", source, tmp_path / "d", name="c", workers=1).collection
    assert large.fingerprint == alone.fingerprint == together.fingerprint


def test_an_interrupted_preparation_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SHARD_ROWS", 4)
    source = write_files(tmp_path / "source", three_classes(per_class=5))
    encoded_shards: list[int] = []
    original = module._Job.__call__

    def interrupted(job: module._Job, start: int) -> int:
        if len(encoded_shards) == 2:
            raise KeyboardInterrupt
        encoded_shards.append(start)
        return original(job, start)

    monkeypatch.setattr(module._Job, "__call__", interrupted)
    with pytest.raises(KeyboardInterrupt):
        prepare("folder", source, tmp_path / "c", workers=1)
    assert not (tmp_path / "c").exists()
    done = encoded_shards.copy()
    encoded_shards[:] = [-1] * 10  # never interrupted again
    collection = prepare("folder", source, tmp_path / "c", workers=1).collection
    assert not set(encoded_shards[10:]) & set(done)
    assert len(collection) == 15
    whole = prepare("folder", source, tmp_path / "other", name="c", workers=1).collection
    assert whole.fingerprint == collection.fingerprint
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c", "other", "source"]


def test_shards_of_another_preparation_are_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SHARD_ROWS", 4)
    source = write_files(tmp_path / "source", three_classes())
    monkeypatch.setattr(module, "assemble", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        prepare("folder", source, tmp_path / "c", size=8, workers=1)
    monkeypatch.undo()
    collection = prepare("folder", source, tmp_path / "c", size=16, workers=1).collection
    assert collection.size == 16
    import numpy as np
    from PIL import Image

    column, index = next(collection._cells([0], "image"))
    assert Image.open(io.BytesIO(column[index].as_py())).size == (16, 16)
    assert np.array_equal(collection.counts, [3, 3, 3])


KILLED = """
import sys
import cnaps.data.prepare as module
module.SHARD_ROWS = 32
from cnaps.cli import main
main(["data", "prepare", "folder", *sys.argv[1:], "--size", "32", "--workers", "2"])
"""


def test_a_killed_preparation_leaves_nothing_half_made_and_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = encoded(picture(200, 20, 20, size=(400, 400)))
    source = write_zip(tmp_path / "a.zip", {f"{index % 5}/{index}.jpg": image for index in range(640)})
    program = [sys.executable, "-c", KILLED, str(source), str(tmp_path / "c")]
    process = subprocess.Popen(
        program, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    scratch = tmp_path / ".c.preparing"
    while process.poll() is None and not list(scratch.glob("*.shard")):
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "c").exists()
    kept = {int(path.stem) for path in scratch.glob("*.shard")}
    assert kept
    monkeypatch.setattr(module, "SHARD_ROWS", 32)
    original, again = module._Job.__call__, set()
    monkeypatch.setattr(module._Job, "__call__", lambda job, start: again.add(start) or original(job, start))
    assert len(prepare("folder", source, tmp_path / "c", size=32, workers=1).collection) == 640
    assert not again & kept
    assert not scratch.exists()


@pytest.mark.parametrize(
    ("choice", "expected"),
    [("none", {}), ("test", {"test": [0, 1, 2]}), ("train", {"train": [0, 1, 2]})],
)
def test_splits_are_chosen(choice: str, expected: dict[str, list[int]], tmp_path: Path) -> None:
    source = write_files(tmp_path / "source", three_classes())
    assert prepare("folder", source, tmp_path / "c", splits=choice).collection.splits == expected


def test_splits_may_come_from_a_file(tmp_path: Path) -> None:
    source = write_files(tmp_path / "source", three_classes())
    path = tmp_path / "splits.json"
    path.write_text(json.dumps({"train": ["red", "blue"], "test": ["green"]}))
    made = prepare("folder", source, tmp_path / "c", splits=str(path)).collection
    assert made.splits == {"train": [0, 2], "test": [1]}
    path.write_text(json.dumps({"train": ["purple"]}))
    with pytest.raises(DataError, match="purple"):
        prepare("folder", source, tmp_path / "d", splits=str(path))
    path.write_text("[1]")
    with pytest.raises(DataError, match=r"splits\.json"):
        prepare("folder", source, tmp_path / "d", splits=str(path))


def test_random_splits_depend_on_the_seed_and_the_name_alone(tmp_path: Path) -> None:
    names = [f"class{index}" for index in range(40)]
    image = encoded(picture(size=(8, 8)), "PNG")
    write_files(tmp_path / "all", {f"{name}/1.png": image for name in names})
    write_files(tmp_path / "half", {f"{name}/1.png": image for name in names[::2]})

    def places(source: str, seed: int) -> dict[str, str]:
        dest = tmp_path / f"{source}{seed}"
        made = prepare("folder", tmp_path / source, dest, splits="random", seed=seed, size=8).collection
        return {made.classes[index]: split for split, found in made.splits.items() for index in found}

    whole, half = places("all", 0), places("half", 0)
    assert {name: whole[name] for name in half} == half
    assert places("all", 1) != whole


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["prepare", "imagenet", "x", "y"], "no reader called 'imagenet'"),
        (["prepare", "folder", "nowhere", "y"], "does not exist"),
        (["prepare", "folder", ".", "y", "--size", "3"], "between 8 and 4096"),
        (["show", "nowhere"], "not a collection"),
        (["doctor", "nowhere"], "not a folder"),
        (["list", "nowhere"], "not a folder"),
    ],
)
def test_mistakes_end_with_one_sentence(
    arguments: list[str], message: str, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, err = command("data", *arguments)
    assert code == 2
    assert message in err
    assert "Traceback" not in err


def test_an_unknown_split_is_refused(tmp_path: Path) -> None:
    source = write_files(tmp_path / "source", three_classes())
    with pytest.raises(InputError, match="not 'halves'"):
        prepare("folder", source, tmp_path / "c", splits="halves")
    with pytest.raises(DataError, match="no published rule"):
        prepare("folder", source, tmp_path / "c", splits="published")


@pytest.mark.parametrize("row", ["/etc/passwd.jpg,a", "../../up.jpg,a", "only one column.jpg", "a.jpg,"])
def test_a_list_that_leads_astray_is_refused(row: str, tmp_path: Path) -> None:
    (tmp_path / "list.csv").write_text(f"{row}\n")
    with pytest.raises(DataError, match=r"list\.csv, line 1"):
        prepare("folder", tmp_path / "list.csv", tmp_path / "c")
