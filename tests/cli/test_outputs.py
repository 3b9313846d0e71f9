"""What a command writes never takes the place of what it read, nor of anything that is not its own."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from cnaps.data.collection import write_collection
from cnaps.errors import CnapsError
from cnaps.files import atomic_folder, atomic_path, write_text
from cnaps.runtime.taskfile import write_task

from ..compatibility import make

Contents = dict[Path, bytes]


def contents(folder: Path) -> Contents:
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture
def place(tmp_path: Path, examples: Path, task, model, digits_collection) -> Path:
    """Everything that commands read, in one folder."""
    rows = [f"{path},{path.parent.name}" for path in sorted(examples.rglob("*.png"))]
    (tmp_path / "labels.csv").write_text("path,label\n" + "\n".join(rows))
    (tmp_path / "list.txt").write_text(rows[0].split(",")[0])
    (tmp_path / "notes.csv").write_text("my own table\n")
    (tmp_path / "page.html").write_text("<html>mine</html>")
    (tmp_path / "own.onnx").write_bytes(b"somebody's network")
    (tmp_path / "photo.png").write_bytes(next(examples.rglob("*.png")).read_bytes())
    (tmp_path / "album").mkdir()
    (tmp_path / "album" / "a.jpg").write_bytes(b"a photograph")
    write_task(tmp_path / "task", task)
    model.save(tmp_path / "model")
    (tmp_path / "hub").mkdir()
    (tmp_path / "hub" / "config.json").write_text('{"architectures": ["Other"]}')
    (tmp_path / "hub" / "model.safetensors").write_bytes(b"somebody's weights")
    return tmp_path


@pytest.fixture
def digits_collection(tmp_path: Path):
    images, labels = make.digits()
    rows = [(int(labels[i]), str(i), images[i]) for i in range(30)]
    splits = {"train": [0, 1, 2], "test": [3, 4, 5]}
    classes = [str(d) for d in range(6)]
    return write_collection(tmp_path / "set", name="set", classes=classes, examples=rows, size=8, splits=splits)


LINES = [
    "classify labels.csv examples --model model --out labels.csv",
    "classify labels.csv examples --model model --save labels.csv",
    "classify examples list.txt --model model --save list.txt",
    "classify examples examples --model model --out notes.csv",
    "classify examples examples --model model --report page.html",
    "classify examples photo.png --model model --save photo.png",
    "classify examples photo.png --model model --out examples/results.csv",
    "classify examples photo.png --model model --out new.csv --report new.html --save new.csv",
    "classify examples photo.png --model model --save model/model.safetensors",
    "fit examples examples/digit_0/new --model model",
    "fit examples album/a.jpg --model model",
    "predict task photo.png --model model --out notes.csv",
    "predict task list.txt --model model --report page.html",
    "export task own.onnx --model model",
    "suggest task examples --model model --sheet photo.png",
    "suggest task examples --model model --out notes.csv",
    "ship model model",
    "ship model album",
    "ship model hub",
    "ship model model/model.safetensors",
    "tasks sample set --out notes.csv --tasks 2 --ways 2 --shots 1 --targets 1",
    "tasks sample set --out set/collection.json --tasks 2 --ways 2 --shots 1 --targets 1",
    "tasks show set --out photo.png --split all",
    "data show set --sheet photo.png",
    "data prepare folder examples examples/new --splits none",
    "data prepare folder examples album --splits none",
    "data prepare folder examples album --splits none --overwrite",
    "evaluate set --model model --learners protonet --tasks 1 --ways 2 --shots 1 --targets 1 --out album",
    "evaluate set --model model --learners protonet --tasks 1 --ways 2 --shots 1 --targets 1 --out set",
    'train --set data.train=["set"] --out album',
]


@pytest.mark.parametrize("line", LINES)
def test_nothing_that_was_there_is_replaced(line: str, place: Path, run, monkeypatch) -> None:
    monkeypatch.chdir(place)
    before = contents(place)
    code, _, errors = run(*line.split())
    assert contents(place) == before
    assert (code, errors.count("\n")) == (2, 1), errors


@pytest.mark.parametrize(
    "line",
    [
        "fit examples album/a.jpg --model model --force",
        "predict task photo.png --model model --out notes.csv --force",
        "predict task photo.png --model model --report page.html --force",
        "data show set --sheet photo.png --force",
        "tasks show set --out photo.png --split all --force",
    ],
)
def test_force_overwrites_a_file_of_somebody_else(line: str, place: Path, run, monkeypatch) -> None:
    monkeypatch.chdir(place)
    assert run(*line.split())[0] == 0


@pytest.mark.parametrize(
    "line",
    [
        "classify examples photo.png --model model --out r.csv --report r.html --save r.task",
        "classify examples photo.png --model model --out r.json",
        "suggest task examples --model model --out s.csv --sheet s.png",
        "export task own-task.onnx --model model",
        "ship model small",
        "tasks sample set --out t.jsonl --tasks 2 --ways 2 --shots 1 --targets 1",
        "tasks show set --out t.png --split all",
        "data show set --sheet c.png",
        "data prepare folder examples prepared --splits none --overwrite",
        "evaluate set --model model --learners protonet --tasks 1 --ways 2 --shots 1 --targets 1 --out results",
    ],
)
def test_what_a_command_wrote_itself_is_written_again_without_a_word(line, place, run, monkeypatch) -> None:
    monkeypatch.chdir(place)
    for _ in range(2):
        code, _, errors = run(*line.split())
        assert code == 0, errors


def test_a_fifo_or_a_device_is_not_replaced(place: Path, run, monkeypatch) -> None:
    monkeypatch.chdir(place)
    os.mkfifo("pipe")
    code, _, errors = run("fit", "examples", "pipe", "--model", "model", "--force")
    assert (code, "no regular file" in errors) == (2, True)
    assert stat.S_ISFIFO(os.stat("pipe").st_mode)
    with pytest.raises(CnapsError, match="no regular file"):
        write_text("pipe", "from a program")
    assert stat.S_ISFIFO(os.stat("pipe").st_mode)


def test_a_link_to_an_input_is_the_input(place: Path, run, monkeypatch) -> None:
    monkeypatch.chdir(place)
    os.symlink("labels.csv", "link.csv")
    os.link("labels.csv", "hard.csv")
    for name in ("link.csv", "hard.csv"):
        code, _, errors = run("classify", "labels.csv", "photo.png", "--model", "model", "--out", name, "--force")
        assert (code, "is read by this command" in errors) == (2, True)


def test_a_folder_with_anything_else_in_it_is_never_replaced(place: Path) -> None:
    before = contents(place)
    for name in ("album", "hub"):
        with pytest.raises(CnapsError, match="is not replaced"), atomic_folder(place / name, ("config.json",)):
            pass
    assert contents(place) == before


def test_the_masks_of_other_threads_stay_as_they_are(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(os, "umask", None)  # it is the whole process's
    with atomic_path(tmp_path / "file") as temporary:
        temporary.write_text("x")
    with atomic_folder(tmp_path / "folder", ("a",)) as folder:
        (folder / "a").write_text("x")
        (folder / "a").chmod(0o600)
    monkeypatch.undo()
    plain = tmp_path / "plain"
    plain.touch()
    plain_folder = tmp_path / "plain-folder"
    plain_folder.mkdir()
    wanted = [path.stat().st_mode for path in (plain, plain_folder)]
    assert [(tmp_path / name).stat().st_mode for name in ("file", "folder")] == wanted
    assert (tmp_path / "folder" / "a").stat().st_mode == wanted[0]
