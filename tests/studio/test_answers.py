"""Images classified by the studio and not kept, of a folder or dropped; what can be taken away."""

from __future__ import annotations

import csv
import io
import shutil
import zipfile
from pathlib import Path

import pytest

from cnaps.errors import InputError
from cnaps.runtime.engine import open_engine
from cnaps.runtime.task import Examples, FittedTask
from cnaps.serving.decoding import Decoder
from cnaps.studio.answers import Answers

from ..servers import CLASSES, until

Pictures = dict[str, list[Path]]


@pytest.fixture(scope="module")
def fitted(pictures: Pictures) -> FittedTask:
    engine = open_engine("cnaps-lite0")
    files = [(path, name) for name in CLASSES[:3] for path in pictures[name][:5]]
    return FittedTask.learn(engine, Examples.read([p for p, _ in files], [n for _, n in files], engine.image_size))


@pytest.fixture
def answers(fitted: FittedTask):
    decoder = Decoder(fitted.image_size, workers=1)
    asked = Answers(decoder)
    yield asked
    asked.clear()
    decoder.close()


def finished(answers: Answers) -> dict:
    until(lambda: answers.phase != "running")
    return answers.describe()


def test_a_folder_of_class_folders_is_a_test_that_is_counted(answers, fitted, pictures, tmp_path):
    for name in CLASSES[:3]:
        (tmp_path / "held out" / name).mkdir(parents=True)
        for path in pictures[name][6:10]:
            shutil.copy(path, tmp_path / "held out" / name)
    (tmp_path / "held out" / CLASSES[0] / "broken.jpg").write_bytes(b"nothing")
    answers.open_folder(str(tmp_path / "held out"))
    answers.start(fitted)
    about = finished(answers)
    assert (about["phase"], about["done"], about["skipped_total"]) == ("done", 13, 1)
    assert about["accuracy"]["total"] == 12
    assert about["accuracy"]["correct"] >= 10
    wrong = [row["truth"] != row["label"] for row in about["rows"]]
    assert wrong == sorted(wrong, reverse=True)  # mistakes first
    rows = list(csv.DictReader(io.StringIO(answers.csv())))
    assert {row["path"].split("/")[0] for row in rows} == set(CLASSES[:3])
    answers.report(tmp_path / "report.html")
    assert "of 12 right" in (tmp_path / "report.html").read_text(encoding="utf-8")
    assert answers.sort_into(str(tmp_path / "sorted")) == 12
    with pytest.raises(InputError, match="which is read"):
        answers.sort_into(str(tmp_path / "held out/sorted"))


def test_dropped_images_are_answered_packed_and_deleted(answers, fitted, pictures):
    files = [path for name in CLASSES[:2] for path in pictures[name][6:8]]
    answers.drop([(f"photos/{path.name}", path.read_bytes()) for path in files])
    answers.drop([("../../same.jpg", files[0].read_bytes()), ("../../same.jpg", files[0].read_bytes())])
    scratch = answers.files[0].parents[2]
    answers.start(fitted)
    about = finished(answers)
    assert (about["phase"], len(about["rows"])) == ("done", 6)
    assert sum(count for _, count in about["counts"]) == 6
    assert answers.thumbnail(0)[:3] in (b"\xff\xd8\xff", b"\x89PN")
    buffer = io.BytesIO()
    answers.write_zip(buffer)
    inside = zipfile.ZipFile(buffer).namelist()
    assert len(inside) == len(set(inside)) == 6
    assert not any(".." in name for name in inside)
    assert scratch.is_dir()
    answers.clear()
    assert not scratch.exists()
    assert answers.describe()["phase"] == "empty"


def test_no_image_of_a_zip_takes_the_place_of_another(answers, fitted, pictures):
    image = pictures[CLASSES[0]][6].read_bytes()
    answers.drop([(name, image) for name in ("a/same.jpg", "b/same.jpg", "same (2).jpg")])
    answers.start(fitted)
    finished(answers)
    buffer = io.BytesIO()
    answers.write_zip(buffer)
    inside = zipfile.ZipFile(buffer).namelist()
    assert len(inside) == len(set(inside)) == 3


def test_a_table_of_images_that_lie_elsewhere_is_answered_too(answers, fitted, pictures, tmp_path):
    rows = [f"{pictures[name][6]},{name}" for name in CLASSES[:2]]
    (tmp_path / "table.csv").write_text("\n".join(["path,label", *rows]), encoding="utf-8")
    answers.open_folder(str(tmp_path / "table.csv"))
    answers.start(fitted)
    about = finished(answers)
    assert {row["name"] for row in about["rows"]} == {str(pictures[name][6]) for name in CLASSES[:2]}
    assert about["accuracy"]["total"] == 2


def test_what_cannot_be_asked_says_why(answers, fitted, tmp_path):
    with pytest.raises(InputError, match="no images"):
        answers.start(fitted)
    with pytest.raises(InputError, match="there is no folder"):
        answers.open_folder("photos")
    answers.drop([("a.jpg", b"x")])
    with pytest.raises(InputError, match="nothing has been learned"):
        answers.start(None)
