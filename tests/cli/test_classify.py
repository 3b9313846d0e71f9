"""cnaps classify, fit, predict, export, models: what they print, write and return."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import pytest
from PIL import Image

from cnaps.cli import main


@pytest.fixture
def run(capsys, small_folder):
    """Run a command with the small model: exit code, standard output, standard error."""

    def call(*arguments: object, model: bool = True) -> tuple[int, str, str]:
        options = ["--model", str(small_folder)] if model else []
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in (*arguments, *options)])
        return int(ended.value.code or 0), *capsys.readouterr()

    return call


def files_below(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file()}


def test_classify_prints_a_line_for_each_image(run, folders):
    examples, images = folders
    code, output, errors = run("classify", examples, images)
    assert (code, errors) == (0, "")
    lines = output.splitlines()
    assert len(lines) == len(list(images.iterdir()))
    assert all("digit" in line and line.endswith("%") for line in lines)


def test_classify_writes_csv_json_report_and_task(run, folders, tmp_path):
    examples, images = folders
    table, page, task = tmp_path / "out/results.csv", tmp_path / "report.html", tmp_path / "task"
    assert run("classify", examples, images, "--out", table, "--report", page, "--save", task)[0] == 0
    rows = list(csv.DictReader(table.open(encoding="utf-8")))
    assert list(rows[0]) == [
        "path", "label", "probability", "label_2", "probability_2", "label_3", "probability_3",
    ]  # fmt: skip
    assert [Path(row["path"]) for row in rows] == sorted(images.iterdir())
    for row in rows:
        probabilities = [float(row[key]) for key in ("probability", "probability_2", "probability_3")]
        assert probabilities == sorted(probabilities, reverse=True)
        assert sum(probabilities) == pytest.approx(1, abs=1e-5)

    assert run("predict", task, images, "--out", tmp_path / "again.json", "--top", 2)[0] == 0
    again = json.loads((tmp_path / "again.json").read_text())
    for row, result in zip(rows, again["results"], strict=True):
        assert (row["path"], row["label"]) == (result["path"], result["label"])
        assert float(row["probability"]) == pytest.approx(result["probability"], abs=1e-5)
        assert [item["label"] for item in result["runners_up"]] == [row["label_2"]]


def test_the_report_holds_everything_and_asks_nothing_of_the_network(run, folders, tmp_path):
    examples, images = folders
    odd = examples / '<b>bold & "quoted"'
    odd.mkdir()
    Image.new("RGB", (300, 200), "red").save(odd / "red.jpg")
    (images / "broken <i>.png").write_bytes(b"not an image")
    code, _, _ = run("classify", examples, images, "--report", tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert code == 3
    assert "<b>bold" not in page
    assert "&lt;b&gt;bold &amp; &quot;quoted&quot;" in page
    assert "<i>.png" not in page
    assert page.count('class="card"') == len(list(images.iterdir())) - 1
    assert page.count("data:image/") == page.count('class="card"') + 16  # fifteen digits and the odd one
    assert "http" not in page
    shares = [float(part.split("%")[0]) for part in page.split("<b>")[1:] if "%" in part.split("</b>")[0]]
    best = shares[::3]
    assert best == sorted(best)  # the least certain first


def test_a_broken_image_is_reported_skipped_and_counted(run, folders, tmp_path, huge_png):
    examples, images = folders
    (images / "broken.jpg").write_bytes(b"not an image")
    (images / "huge.png").write_bytes(huge_png)
    Image.new("L", (1, 1)).save(images / "dot.png")
    (examples / "digit 1" / "broken.png").write_bytes(b"")
    out = tmp_path / "results.json"
    code, _, errors = run("classify", examples, images, "--out", out)
    assert code == 3
    assert "digit 1/broken.png" in errors
    assert "left out" in errors
    results = json.loads(out.read_text())
    assert {Path(item["path"]).name for item in results["skipped"]} == {"broken.jpg", "huge.png", "dot.png"}
    assert len(results["results"]) == len(list(images.iterdir())) - 3
    for name in ("broken.jpg", "huge.png", "dot.png"):
        assert name in errors


def test_when_no_image_can_be_read_nothing_is_written(run, folders, tmp_path):
    examples, _ = folders
    (tmp_path / "bad.png").write_bytes(b"not an image")
    out = tmp_path / "results.csv"
    code, _, errors = run("classify", examples, tmp_path / "bad.png", "--out", out, "--save", tmp_path / "task")
    assert code == 2
    assert "none of the 1 images can be read" in errors
    assert not out.exists()
    assert not (tmp_path / "task").exists()


def remove(folder: Path) -> None:
    for path in sorted(folder.rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    folder.rmdir()


def test_examples_that_do_not_make_a_task_are_explained(run, folders):
    examples, images = folders
    (examples / "digit 0" / "0.png").write_bytes(b"")
    for path in list((examples / "digit 0").iterdir()):
        path.write_bytes(b"not an image")
    code, _, errors = run("classify", examples, images)
    assert (code, "no image of the class 'digit 0' can be read" in errors) == (2, True)
    for path in (examples / "digit 0").iterdir():
        path.unlink()
    code, _, errors = run("classify", examples, images)
    assert (code, "holds no images" in errors) == (2, True)
    remove(examples / "digit 0")
    remove(examples / "digit 1")
    code, _, errors = run("classify", examples, images)
    assert (code, "at least two classes" in errors) == (2, True)
    remove(examples / "digit 2")
    code, _, errors = run("classify", examples, images)
    assert (code, "has no classes" in errors) == (2, True)


def test_twins_by_case_and_one_image_in_two_classes_are_warned_about(run, folders):
    examples, images = folders
    (examples / "digit 1").rename(examples / "DIGIT 0")
    source = next((examples / "digit 0").iterdir())
    (examples / "digit 2" / "copy.png").write_bytes(source.read_bytes())
    code, _, errors = run("classify", examples, images)
    assert code == 0
    assert "'DIGIT 0' and 'digit 0' differ only by case" in errors
    assert "copy.png are the same image" in errors


@pytest.mark.parametrize(
    ("option", "name", "reason"),
    [
        ("--out", "results.xlsx", "must end in .csv or .json"),
        ("--out", "a-file/results.csv", "is no folder"),
        ("--report", "report.pdf", "must end in .html"),
        ("--report", "folder.html", "it is a folder"),
        ("--save", "folder.html", "it is a folder"),
    ],
)
def test_an_output_that_cannot_be_written_is_said_before_any_work(run, folders, tmp_path, option, name, reason):
    examples, images = folders
    (tmp_path / "a-file").touch()
    (tmp_path / "folder.html").mkdir()
    before = files_below(tmp_path)
    code, output, errors = run("classify", examples, images, option, tmp_path / name)
    assert (code, output) == (2, "")
    assert reason in errors
    assert files_below(tmp_path) == before


def test_fit_predict_and_export_go_together(run, folders, tmp_path):
    examples, images = folders
    task = tmp_path / "digits.safetensors"
    code, output, _ = run("fit", examples, task)
    assert (code, "3 classes from 15 images" in output) == (0, True)
    some = sorted(images.iterdir())[:2]
    code, output, _ = run("predict", task, *some)
    assert (code, len(output.splitlines())) == (0, 2)
    code, output, _ = run("export", task, tmp_path / "digits.onnx")
    assert (code, "probabilities of 3 classes" in output) == (0, True)
    assert (tmp_path / "digits.onnx").stat().st_size > 1000


def test_a_task_of_another_model_is_refused(run, folders, tmp_path):
    examples, images = folders
    run("fit", examples, tmp_path / "task")
    code, _, errors = run("predict", tmp_path / "task", images, "--model", "cnaps-lite0", model=False)
    assert (code, "made with another model" in errors) == (2, True)


def test_examples_may_be_a_table_and_file_names_anything(run, folders, tmp_path):
    examples, images = folders
    odd = images / 'näme, with "quotes".png'
    next(images.iterdir()).rename(odd)
    rows = [f"{path},{path.parent.name}" for path in sorted(examples.rglob("*.png"))]
    (tmp_path / "examples.csv").write_text("path,label\n" + "\n".join(rows))
    code, _, _ = run("classify", tmp_path / "examples.csv", images, "--out", tmp_path / "results.csv")
    assert code == 0
    assert str(odd) in [row["path"] for row in csv.DictReader((tmp_path / "results.csv").open(encoding="utf-8"))]


def test_a_device_that_is_not_there_is_named(run, folders):
    code, _, errors = run("classify", *folders, "--device", "abacus")
    assert (code, "the device 'abacus' cannot be used" in errors) == (2, True)


@pytest.mark.slow
def test_the_tour_classifies_photographs_and_every_digit(tmp_path, capsys):
    from cnaps.demo import main as demo

    demo(tmp_path / "demo")
    output = capsys.readouterr().out
    assert int(re.findall(r"(\d+) of 60 right", output)[0]) >= 54
    assert "of 1,747 right: 8" in output
    assert "logistic regression on the same network without adaptation: 7" in output
    assert len(list(csv.DictReader((tmp_path / "demo/digits.csv").open(encoding="utf-8")))) == 1747
    assert (tmp_path / "demo/digits.html").read_text(encoding="utf-8").count('class="card"') == 1000
    assert (tmp_path / "demo/digits.task").is_file()


def test_the_tour_replaces_no_file_that_it_did_not_write(run, tmp_path):
    (tmp_path / "photographs/examples/pagoda").mkdir(parents=True)
    (tmp_path / "photographs/mine.jpg").touch()
    code, _, errors = run("demo", tmp_path, model=False)
    assert (code, "mine.jpg is no file of the tour" in errors) == (2, True)


def test_cnaps_alone_says_what_one_can_do_next(run):
    code, output, _ = run(model=False)
    assert code == 0
    assert [line.split()[1] for line in output.splitlines() if line.startswith("  cnaps")] == [
        "demo", "classify", "studio",
    ]  # fmt: skip


def test_models_lists_the_default_model(run):
    code, output, _ = run("models", model=False)
    assert (code, "cnaps-lite0 (default)" in output, "efficientnet_lite0" in output) == (0, True, True)


def test_the_exit_codes_are_in_the_help(run):
    _, output, _ = run("classify", "--help", model=False)
    assert "Exit codes" in output
