"""`cnaps studio` on a folder of somebody's."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cnaps.errors import InputError
from cnaps.serving.decoding import Decoder
from cnaps.studio.folders import import_folder, project_for
from cnaps.studio.store import Project

from ..servers import ROOT, Server
from .test_store import everything, picture


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "pets"
    for number, name in enumerate(("cats/one.png", "cats/deep/two.png", "dogs/three.png", "dogs/notes.txt")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(picture(number))
    (folder / "dogs" / "broken.jpg").write_bytes(b"no image")
    return folder


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    decoder = Decoder(32, workers=1)
    found = Project(tmp_path / "pets-studio", decoder)
    yield found
    found.close()
    decoder.close()


def test_class_folders_become_a_project_elsewhere(photos: Path, tmp_path: Path) -> None:
    before = everything(photos)
    assert project_for(photos) == (tmp_path / "pets-studio", photos)
    server = Server("studio", str(photos), "--no-browser")
    try:
        state = server.state()
        assert [entry["name"] for entry in state["classes"]] == ["cats", "dogs"]
        assert sorted(entry["name"] for entry in state["images"]) == ["one.png", "three.png", "two.png"]
        assert state["folder"] == str(tmp_path / "pets-studio")
    finally:
        server.kill()
    assert everything(photos) == before


def test_what_could_not_be_used_is_said_by_name(photos: Path, project: Project) -> None:
    text = import_folder(project, photos)
    assert project.name == photos.name
    assert "3 images of 2 classes" in text
    assert "broken.jpg" in text
    assert project.undo()
    assert not project.classes, "it was one change"


def test_the_second_time_the_project_is_opened_as_it_was_left(photos: Path, project: Project) -> None:
    import_folder(project, photos)
    project.remove(list(project.images)[:1])
    assert project_for(photos) == (project.folder, None)

    project.remove(list(project.images))
    assert project_for(photos) == (project.folder, photos), "what is empty may be filled"


def test_a_project_an_empty_folder_and_a_new_one_are_themselves(tmp_path: Path, project: Project) -> None:
    (tmp_path / "empty").mkdir()
    for folder in (project.folder, tmp_path / "empty", tmp_path / "new"):
        assert project_for(folder) == (folder, None)


def test_other_folders_are_refused_with_a_reason(tmp_path: Path, project: Project) -> None:
    (tmp_path / "loose").mkdir()
    (tmp_path / "loose" / "a.png").write_bytes(picture(1))
    with pytest.raises(InputError, match="side by side"):
        project_for(tmp_path / "loose")
    project.add([("a.png", picture(1))], "test")
    (project.folder / "project.json").unlink()
    with pytest.raises(InputError, match=r"lost its project\.json"):
        project_for(project.folder)
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(InputError, match="folder"):
        project_for(tmp_path / "file")


def test_the_command_leaves_a_folder_of_photographs_alone(tmp_path: Path) -> None:
    photo = tmp_path / "images" / f"{'0' * 32}.jpg"
    photo.parent.mkdir()
    photo.write_bytes(b"a photograph")
    (tmp_path / "notes").mkdir()
    program = "from cnaps.cli import main; main()"
    command = [sys.executable, "-c", program, "studio", str(tmp_path), "--no-browser", "--port", "0"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=dict(os.environ), timeout=100)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert photo.read_bytes() == b"a photograph"
