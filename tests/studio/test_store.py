"""The project on disk."""

from __future__ import annotations

import hashlib
import io
import os
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cnaps.errors import CnapsError, DataError, InputError
from cnaps.serving.decoding import Decoder
from cnaps.studio.description import held_out
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
    return Project(project.folder, project.files.decoder)


def test_what_was_done_is_there_again_after_reopening(project: Project) -> None:
    cats = project.add_class("cats")
    (first,) = project.add([("a.png", picture(1))], cats)["added"]
    project.add([("b.png", picture(2))], "test")
    project.rename("My pets")
    again = reopened(project)
    assert again.describe() == project.describe()
    assert again.files.pixels(first).shape == (32, 32, 3)
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


def test_images_held_out_belong_to_a_class_and_are_no_examples_of_it(project: Project) -> None:
    cats, dogs = project.add_class("cats"), project.add_class("dogs")
    held = held_out(cats)
    (example,) = project.add([("a.png", picture(1))], cats)["added"]
    uploads = [("photos/Cats/b.png", picture(2)), ("photos/cows/c.png", picture(3)), ("d.png", picture(4))]
    report = project.add(uploads, "held")
    assert [entry["reason"] for entry in report["refused"]] == [
        "no class is named 'cows'",
        "it lies in no folder named like a class",
    ]
    (tested,) = report["added"]
    plan = project.contents()
    assert (plan.classes, plan.held) == ({"cats": [example]}, {"cats": [tested]})
    # an image is never both: what is held out is taken away from the examples, and said to be
    report = project.add([("again.png", picture(1))], held)
    assert report["moved"] == [{"name": "a.png", "from": cats, "to": held}]
    assert project.contents().classes == {}
    assert project.undo()
    again = reopened(project)
    assert again.contents() == plan
    again.remove_class(cats)
    assert again.contents().pool == [example, tested]
    assert again.undo()
    assert again.contents() == plan
    with pytest.raises(InputError, match="no such class"):
        again.move([example], "h9")
    again.move([tested], dogs)
    assert again.describe()["version"] == 1  # nothing in it that an older version would not understand
    again.close()


def test_a_share_of_the_examples_is_held_out_as_one_change(project: Project) -> None:
    for k, name in enumerate(("cats", "dogs")):
        project.add([(f"{i}.png", picture(20 * k + i)) for i in range(10 - 6 * k)], project.add_class(name))
    assert project.hold_out(0.2) == 2
    plan = project.contents()
    assert {name: len(ids) for name, ids in plan.classes.items()} == {"cats": 8, "dogs": 4}
    assert {name: len(ids) for name, ids in plan.held.items()} == {"cats": 2}
    assert project.undo()
    assert project.contents().held == {}


def test_a_label_that_was_confirmed_stays_so_until_the_image_is_moved(project: Project) -> None:
    cats, dogs = project.add_class("cats"), project.add_class("dogs")
    (key,) = project.add([("a.png", picture(1))], cats)["added"]
    project.confirm([key, "0" * 32])
    again = reopened(project)
    assert again.images[key] == {"name": "a.png", "place": cats, "right": True}
    again.move([key], dogs)
    assert again.images[key] == {"name": "a.png", "place": dogs}
    assert again.undo()
    assert again.images[key]["right"]
    again.close()


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


def test_a_damaged_description_is_said_with_its_path(project: Project) -> None:
    project.add_class("cats")
    (project.folder / "project.json").write_text("{")
    with pytest.raises(DataError, match=r"project\.json"):
        reopened(project)


def test_a_second_studio_is_kept_out_of_the_folder(project: Project) -> None:
    with pytest.raises(CnapsError, match="another studio"):
        Project(project.folder, project.files.decoder)


def test_the_cache_can_be_thrown_away(project: Project) -> None:
    (key,) = project.add([("a.png", picture(1))], "test")["added"]
    before = project.files.pixels(key)
    for path in (project.folder / "cache").iterdir():
        path.unlink()
    np.testing.assert_array_equal(project.files.pixels(key), before)
    assert project.thumbnail(key)[:4] == b"\x89PNG"


def test_a_folder_that_is_no_project_is_neither_changed_nor_made_one(tmp_path: Path, decoder: Decoder) -> None:
    key = hashlib.md5(b"1").hexdigest()
    files = [
        f"images/{key}.jpg",
        f"images/{key}",
        f"tasks/{key}",
        "cache/notes.tmp",
        "images/.a.tmp",
        "holiday.jpg",
    ]
    for name in files:
        (tmp_path / "photos" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "photos" / name).write_bytes(b"a photograph")
    before = everything(tmp_path / "photos")
    with pytest.raises(InputError, match="is not empty and no project"):
        Project(tmp_path / "photos", decoder)
    assert everything(tmp_path / "photos") == before


def test_a_project_that_lost_its_description_keeps_its_images(project: Project) -> None:
    project.add([(f"{i}.png", picture(i)) for i in range(3)], project.add_class("cats"))
    (project.folder / "project.json").unlink()
    before = everything(project.folder)
    with pytest.raises(InputError, match=r"project\.json"):
        reopened(project)
    assert everything(project.folder) == before


def test_what_people_put_into_a_project_s_folders_stays_there(project: Project) -> None:
    project.add([("a.png", picture(1))], "test")
    mine = [project.folder / folder / name for folder in ("images", "cache", "tasks", "trash")
            for name in ("0" * 32, "1" * 32 + ".jpg", "draft.tmp", "holiday.jpg")]  # fmt: skip
    for path in mine:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"mine")
        os.utime(path, (0, 0))
    reopened(project).close()
    assert all(path.read_bytes() == b"mine" for path in mine)


def test_what_was_taken_out_lies_in_the_trash_for_a_day_after_the_project_is_opened_next(project: Project) -> None:
    (key,) = project.add([("a.png", picture(1))], "test")["added"]
    project.remove([key])
    assert project.undo()
    assert key in project.images
    project.remove([key])
    assert (project.folder / "images" / key).exists()
    again = reopened(project)
    assert [path.name for path in again.folder.glob(f"[!t]*/{key}*")] == []
    thrown = again.folder / "trash" / key
    assert thrown.read_bytes() == picture(1)
    again = reopened(again)
    assert thrown.exists()
    os.utime(thrown, (time.time() - 90_000,) * 2)
    again = reopened(again)
    assert not thrown.exists()
    again.close()


def test_a_file_that_was_half_written_when_the_studio_was_killed_goes_the_same_way(project: Project) -> None:
    (key,) = project.add([("a.png", picture(1))], "test")["added"]
    half = project.folder / "images" / f".{key}.abcd1234.tmp"
    half.write_bytes(b"half")
    again = reopened(project)
    thrown = again.folder / "trash" / half.name
    assert (half.exists(), thrown.exists()) == (False, True)
    again.add_class("cats")
    os.utime(thrown, (0, 0))
    again = reopened(again)
    assert not thrown.exists()
    assert list(again.images) == [key]
    again.close()


def test_an_image_that_comes_back_is_not_thrown_away(project: Project) -> None:
    (key,) = project.add([("a.png", picture(1))], "test")["added"]
    project.remove([key])
    again = reopened(project)
    again.add([("a.png", picture(1))], "test")
    os.utime(again.folder / "trash" / key, (0, 0))
    again = reopened(again)
    assert (again.folder / "images" / key).read_bytes() == picture(1)
    again.close()


def test_labels_of_images_that_are_away_for_a_while_are_kept(project: Project, tmp_path: Path) -> None:
    cats = project.add_class("cats")
    project.add([("a.png", picture(1)), ("b.png", picture(2))], cats)
    (project.folder / "images").rename(tmp_path / "elsewhere")
    again = reopened(project)
    assert not again.images
    again.add_class("dogs")
    again.close()
    (tmp_path / "elsewhere").rename(project.folder / "images")
    again = reopened(again)
    assert [entry["place"] for entry in again.images.values()] == [cats, cats]
    again.close()


def everything(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*")
            if path.is_file() and path.name != ".lock"}  # fmt: skip
