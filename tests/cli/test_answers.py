"""What comes out besides the answers: accuracy, none of these, sorted folders, progress."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import pytest
from PIL import Image

from cnaps import progress
from cnaps.cli import display, main
from cnaps.images.finding import find_images, true_labels
from cnaps.runtime.accuracy import Accuracy
from cnaps.runtime.novelty import NONE
from cnaps.runtime.results import Result
from cnaps.runtime.sorting import sort_into


@pytest.fixture
def run(capsys, small_folder):
    def call(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main([*map(str, arguments), "--model", str(small_folder)])
        return int(ended.value.code or 0), *capsys.readouterr()

    return call


@pytest.fixture
def labelled(folders):
    """The images moved into folders named like the classes."""
    examples, images = folders
    for path in list(images.iterdir()):
        folder = images / f"digit {path.name[0]}"
        folder.mkdir(exist_ok=True)
        path.rename(folder / path.name)
    return examples, images


def rows_of(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.open(encoding="utf-8")))


def test_images_in_folders_named_like_classes_are_counted(run, labelled, tmp_path):
    examples, images = labelled
    code, output, _ = run("classify", examples, images, "--out", tmp_path / "results.csv")
    rows = rows_of(tmp_path / "results.csv")
    right = sum(row["label"] == row["true_label"] for row in rows)
    assert code == 0
    assert {row["true_label"] for row in rows} == {"digit 0", "digit 1", "digit 2"}
    assert f"{right} of {len(rows)} right" in output
    assert "at 95% confidence" in output
    assert re.search(r"^digit 1( +[\d.]+){3}$", output, re.M)
    assert output.count("but is digit") == len(rows) - right


def test_a_table_may_name_the_true_classes(run, folders, tmp_path):
    examples, images = folders
    lines = [f"{path},digit {path.name[0]}" for path in sorted(images.iterdir())]
    (tmp_path / "truth.csv").write_text("path,label\n" + "\n".join(lines))
    run("fit", examples, tmp_path / "digits.task")
    code, output, _ = run("predict", tmp_path / "digits.task", tmp_path / "truth.csv")
    assert (code, f"of {len(lines)} right" in output) == (0, True)


def test_without_known_classes_nothing_is_counted(run, folders, tmp_path):
    code, output, _ = run("classify", *folders, "--out", tmp_path / "results.csv")
    assert (code, "right" in output) == (0, False)
    assert "true_label" not in rows_of(tmp_path / "results.csv")[0]


def test_the_nearest_folder_named_like_a_class_is_the_true_class(tmp_path):
    for name in ("cat/2024/a.png", "DOG/b.png", "other/c.png", "cat/dog/d.png"):
        (tmp_path / "cat/images" / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (8, 8)).save(tmp_path / "cat/images" / name)
    source = str(tmp_path / "cat/images")
    found = true_labels([source], find_images([source]), ["cat", "dog"])
    assert {path.name: label for path, label in found.items()} == {"a.png": "cat", "b.png": "dog", "d.png": "dog"}


def test_a_matrix_of_many_classes_is_a_list_of_mistakes():
    pairs = [(f"class {i}", f"class {i}") for i in range(20)] + [("class 1", "class 2")] * 3
    assert Accuracy.of(pairs).table()[0] == "    3 x  class 1  taken for  class 2"


def test_the_report_marks_mistakes_and_links_to_the_files(run, labelled, tmp_path):
    examples, images = labelled
    odd = images / "digit 0" / "a b#1.png"
    next((images / "digit 0").iterdir()).rename(odd)
    next((images / "digit 1").iterdir()).rename(images / "digit 2" / "1-moved.png")
    run("classify", examples, images, "--out", tmp_path / "results.csv", "--report", tmp_path / "out/report.html")
    page = (tmp_path / "out/report.html").read_text(encoding="utf-8")
    rows = rows_of(tmp_path / "results.csv")
    wrong = sum(row["label"] != row["true_label"] for row in rows)
    assert 0 < wrong < len(rows)
    assert page.count('class="card" data-wrong') == wrong
    assert 'href="../images/digit%200/a%20b%231.png"' in page
    assert 'class="matrix"' in page


def test_thumbnails_beside_the_report_are_files_in_a_folder_of_their_own(run, folders, tmp_path):
    examples, images = folders
    page = tmp_path / "report.html"
    for _ in range(2):
        assert run("classify", examples, images, "--report", page, "--thumbnails", "beside")[0] == 0
    text = page.read_text(encoding="utf-8")
    named = re.findall(r'src="(report-thumbnails/[^"]+)"', text)
    assert "data:image" not in text
    assert len(named) == len(list(images.iterdir())) + 15
    assert all((tmp_path / name).is_file() for name in named)
    (tmp_path / "report-thumbnails/holiday.jpg").touch()
    code, _, errors = run("classify", examples, images, "--report", page, "--thumbnails", "beside")
    assert (code, "holiday.jpg, which is no thumbnail" in errors) == (2, True)


def test_images_unlike_all_classes_are_none_of_these_everywhere(run, folders, tmp_path):
    examples, images = folders
    task, table, more = tmp_path / "digits.task", tmp_path / "results.csv", tmp_path / "results.json"
    run("fit", examples, task)
    code, output, _ = run(
        "predict", task, images, "--none-above", 0, "--out", table, "--report", tmp_path / "r.html"
    )
    rows = rows_of(table)
    assert code == 0
    assert {(row["label"], row["probability"]) for row in rows} == {(NONE, "")}
    assert all(float(row["novelty"]) > 0 and row["label_2"].startswith("digit") for row in rows)
    assert output.count(NONE) == len(rows)
    assert (tmp_path / "r.html").read_text(encoding="utf-8").count('class="card" data-none') == len(rows)
    assert run("predict", task, images, "--none-above", 2, "--out", table)[0] == 0
    assert all(row["label"].startswith("digit") for row in rows_of(table))
    assert run("predict", task, images, "--none-of-these", "--out", more)[0] == 0
    assert all("novelty" in each for each in json.loads(more.read_text())["results"])


def test_none_of_these_with_too_few_examples_says_what_to_do(run, folders):
    examples, images = folders
    for folder in examples.iterdir():
        for path in sorted(folder.iterdir())[1:]:
            path.unlink()
    code, _, errors = run("classify", examples, images, "--none-of-these")
    assert (code, "--none-above" in errors) == (2, True)


def test_images_are_sorted_into_folders_of_their_classes(run, folders, tmp_path):
    examples, images = folders
    for _ in range(2):  # a second time changes nothing
        assert (
            run("classify", examples, images, "--out", tmp_path / "r.csv", "--sort-into", tmp_path / "s")[0] == 0
        )
        found = {(path.parent.name, path.name) for path in (tmp_path / "s").rglob("*.png")}
        assert found == {(row["label"], Path(row["path"]).name) for row in rows_of(tmp_path / "r.csv")}
    assert len(list(images.iterdir())) == len(found)


def test_sorting_overwrites_nothing_and_leaves_the_folder_for_no_class(tmp_path):
    for name, colour in (("a", 0), ("b", 255)):
        (tmp_path / name).mkdir()
        Image.new("L", (8, 8), colour).save(tmp_path / name / "x.png")
    results = [Result(str(tmp_path / name / "x.png"), (("../out", 1.0),)) for name in ("a", "b")]
    assert sort_into(tmp_path / "sorted", results) == 2
    assert sort_into(tmp_path / "sorted", results, link=True) == 0
    assert sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*.png")) == [
        "a/x.png", "b/x.png", "sorted/__out/x (2).png", "sorted/__out/x.png",
    ]  # fmt: skip
    assert sort_into(tmp_path / "linked", results, link=True) == 2
    assert (tmp_path / "linked/__out/x.png").resolve() == tmp_path / "a/x.png"


def test_images_are_not_sorted_into_a_folder_that_is_read(run, folders):
    examples, images = folders
    for folder in (images, images / "sorted", examples / "new"):
        code, _, errors = run("classify", examples, images, "--sort-into", folder)
        assert (code, "which is read" in errors) == (2, True)
        assert not (folder / "digit 0").exists()


def test_without_a_terminal_progress_is_a_line_every_few_seconds(capsys, monkeypatch):
    now = iter(range(0, 1000, 2))
    monkeypatch.setattr(display.time, "monotonic", lambda: float(next(now)))
    monkeypatch.setattr(progress, "_display", progress.Display)
    assert list(progress.track(range(10), "counting")) == list(range(10))
    assert capsys.readouterr().err == ""  # a library is silent
    progress.show_with(display.progress_display)
    assert list(progress.track(range(10), "counting")) == list(range(10))
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    assert re.fullmatch(r"counting: 3 of 10, \d+ s left", lines[0])
