"""The project on disk."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cnaps.errors import CnapsError, DataError, InputError
from cnaps.serving.decoding import Decoder
from cnaps.studio.store import Project


@pytest.fixture(scope="module")
def decoder() -> Iterator[Decoder]:
    found = Decoder(32, workers=1)
    yield found
    found.close()


@pytest.fixture
def project(tmp_path: Path, decoder: Decoder) -> Iterator[Project]:
    found = Project(tmp_path / "project", decoder)
    yield found
    found.close()


def picture(seed: int) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.random.default_rng(seed).integers(0, 255, (40, 50, 3), np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()


def reopened(project: Project) -> Project:
    project.close()
    return Project(project.folder, project.decoder)


def test_what_was_done_is_there_again_after_reopening(project: Project) -> None:
    cats = project.add_class("cats")
    (first,) = project.add([("a.png", picture(1))], cats)["added"]
    project.add([("b.png", picture(2))], "test")
    project.rename("My pets")
    again = reopened(project)
    assert again.describe() == project.describe()
    assert again.pixels(first).shape == (32, 32, 3)
    again.close()


def test_an_image_taken_out_leaves_the_disk_only_when_the_project_is_opened_next(project: Project) -> None:
    (key,) = project.add([("a.png", picture(1))], "test")["added"]
    project.remove([key])
    assert project.undo()
    assert key in project.images
    project.remove([key])
    assert (project.folder / "images" / key).exists()
    again = reopened(project)
    assert not list(again.folder.glob("*/" + key + "*"))
    again.close()


def test_every_change_can_be_undone_and_a_drop_of_many_files_is_one_change(project: Project) -> None:
    cats = project.add_class("cats")
    for i in range(3):
        project.add([(f"{i}.png", picture(i))], cats, group="drop")
    project.remove_class(cats)
    assert {entry["place"] for entry in project.images.values()} == {"pool"}
    assert project.undo()
    assert project.classes == {cats: "cats"}
    assert project.undo()
    assert not project.images
    assert project.undo()
    assert not project.classes
    assert not project.undo()


def test_an_image_is_in_one_place_only_and_a_label_wins(project: Project) -> None:
    cats, dogs = project.add_class("cats"), project.add_class("dogs")
    project.add([("a.png", picture(1))], cats)
    report = project.add([("copy.png", picture(1))], dogs)
    assert report["known"] == ["a.png"]
    assert [entry["place"] for entry in project.images.values()] == [dogs]
    project.add([("copy.png", picture(1))], "test")
    assert [entry["place"] for entry in project.images.values()] == [dogs]


def test_class_names_are_told_apart_without_regard_to_case_and_space(project: Project) -> None:
    cats = project.add_class("  Red   cats ")
    assert project.classes[cats] == "Red cats"
    assert project.add_class("red CATS") == cats
    with pytest.raises(InputError, match="already"):
        project.rename_class(project.add_class("dogs"), "RED cats")
    with pytest.raises(InputError, match="letter"):
        project.add_class(" \n\x00 ")


def test_a_name_from_a_client_never_becomes_a_path(project: Project) -> None:
    before = {path for path in project.folder.parent.rglob("*") if "project/" not in str(path)}
    evil = "../../../escape.png"
    (key,) = project.add([(evil, picture(1))], "pool")["added"]
    project.add([("../../../up/../escape.png", picture(2)), (evil, picture(4))], "folders")
    assert project.images[key]["name"] == "escape.png"
    assert {p for p in project.folder.parent.rglob("*") if "project/" not in str(p)} == before
    with pytest.raises(InputError):
        project.add([("a.png", picture(3))], "../test")
    with pytest.raises(DataError):
        project.thumbnail("../project.json")


def test_bad_files_are_refused_by_name_and_the_good_ones_kept(project: Project) -> None:
    report = project.add([("bad.jpg", b"no image"), ("empty.png", b""), ("good.png", picture(1))], "test")
    assert len(report["added"]) == 1
    assert [entry["name"] for entry in report["refused"]] == ["bad.jpg", "empty.png"]
    assert all(entry["reason"] for entry in report["refused"])


def test_a_zip_brings_everything_to_another_project(project: Project, tmp_path: Path, decoder: Decoder) -> None:
    cats = project.add_class("cats")
    project.add_class("empty")
    project.add([("a.png", picture(1))], cats)
    project.add([("b.png", picture(2))], "pool")
    project.write_zip(tmp_path / "all.zip")
    other = Project(tmp_path / "other", decoder)
    other.add_class("Cats")
    other.read_zip((tmp_path / "all.zip").read_bytes(), lambda task: 0)
    assert list(other.classes.values()) == ["Cats", "empty"]
    assert [entry["place"] for entry in other.images.values()] == ["c1", "pool"]
    assert other.images.keys() == project.images.keys()
    other.close()


@pytest.mark.parametrize("change", [
    lambda about: about["images"].append({"id": "../../etc/passwd", "name": "x", "place": "test"}),
    lambda about: about["images"].append({"id": "0" * 32, "name": "x", "place": "elsewhere"}),
    lambda about: about["classes"].append({"id": "../c1", "name": "x"}),
    lambda about: about.update(version=99),
    lambda about: about.update(format="other"),
    lambda about: about.pop("classes"),
])  # fmt: skip
def test_a_zip_with_a_strange_description_is_refused(project: Project, change) -> None:  # type: ignore[no-untyped-def]
    about = project.describe()
    change(about)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("project.json", json.dumps(about))
    with pytest.raises(DataError):
        project.read_zip(buffer.getvalue(), lambda task: 0)
    assert not project.images


def test_a_cut_zip_file_is_no_project(project: Project, tmp_path: Path) -> None:
    project.write_zip(tmp_path / "all.zip")
    with pytest.raises(DataError, match="no project"):
        project.read_zip((tmp_path / "all.zip").read_bytes()[:60], lambda task: 0)


def test_a_damaged_description_is_said_with_its_path(project: Project) -> None:
    project.add_class("cats")
    (project.folder / "project.json").write_text("{")
    with pytest.raises(DataError, match=r"project\.json"):
        reopened(project)


def test_a_second_studio_is_kept_out_of_the_folder(project: Project) -> None:
    with pytest.raises(CnapsError, match="another studio"):
        Project(project.folder, project.decoder)


def test_the_cache_can_be_thrown_away(project: Project) -> None:
    (key,) = project.add([("a.png", picture(1))], "test")["added"]
    before = project.pixels(key)
    for path in (project.folder / "cache").iterdir():
        path.unlink()
    np.testing.assert_array_equal(project.pixels(key), before)
    assert project.thumbnail(key)[:4] == b"\x89PNG"
