"""The page that learns in the browser: it says what Python says, and its files are Python's."""

from __future__ import annotations

import csv
import json
import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from safetensors.numpy import save_file
from typer.testing import CliRunner

from cnaps.cli import app
from cnaps.runtime.engine import open_engine
from cnaps.runtime.task import Examples, FittedTask, choose_size
from cnaps.runtime.taskfile import _digest, read_task, write_task

from .conftest import CLASSES, ROOT, Page, serve

pytest.importorskip("selenium")
Pictures = dict[str, list[Path]]
SHOTS = 5


def _teach(page: Page, pictures: Pictures) -> None:
    for i, name in enumerate(CLASSES, 1):
        page.name_class(name)
        page.drop(f"#classes > li:nth-child({i})", pictures[name][:SHOTS])
    page.learned(SHOTS * len(CLASSES))


def _learn(pictures: Pictures) -> FittedTask:
    """The same in Python."""
    examples = [(path, name) for name in CLASSES for path in pictures[name][:SHOTS]]
    engine = open_engine("cnaps-lite0")
    files = [path for path, _ in sorted(examples, key=lambda each: each[1])]
    read = Examples.read([p for p, _ in examples], [n for _, n in examples], choose_size(engine, files))
    return FittedTask.learn(engine, read)


def _probabilities(task: FittedTask, files: list[Path]) -> np.ndarray:
    return np.concatenate([found for _, found in task.predict(files)])


def _table(path: Path) -> dict[str, dict[str, float]]:
    """Probabilities by file and class."""
    found = {}
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            keys = [key for key in row if key.startswith("label")]
            found[row["path"]] = {row[key]: float(row[key.replace("label", "probability")]) for key in keys}
    return found


def test_film_and_probabilities_agree_with_python_on_photographs(page: Page, pictures: Pictures) -> None:
    page.open()
    _teach(page, pictures)
    asked = [path for name in CLASSES for path in pictures[name][SHOTS:10]]
    page.drop("#test", asked)
    page.wait(lambda: len(page.answers()) == len(asked))

    page.picture("web")  # docs/images/web.png

    wanted = _learn(pictures)
    made = read_task(page.export("here"))
    assert made.names == wanted.names
    assert np.abs(made.film - wanted.film).max() < 1e-3
    assert np.abs(made.statistics.means - wanted.statistics.means).max() < 1e-3
    assert made.threshold == pytest.approx(wanted.threshold, abs=1e-3)

    table = _table(page.saved("#tray-table"))
    here = np.array([[table[path.name][name] for name in wanted.names] for path in asked])
    assert np.abs(here - _probabilities(wanted, asked)).max() < 1e-3
    # and the task file, in Python, says the same again
    assert np.abs(here - _probabilities(made, asked)).max() < 1e-3
    assert page.complaints() == []


def test_a_task_file_goes_from_python_to_the_page_and_back_bit_for_bit(
    page: Page, pictures: Pictures, tmp_path: Path
) -> None:
    task = _learn(pictures)
    path = tmp_path / "things.task"
    write_task(path, task)
    page.open()
    page.bring_in(path)
    page.learned(SHOTS * len(CLASSES))
    assert page.export("here").read_bytes() == path.read_bytes()

    asked = [pictures[name][12] for name in CLASSES]
    page.drop("#test", asked)
    page.wait(lambda: len(page.answers()) == len(asked))
    table = _table(page.saved("#tray-table"))
    here = np.array([[table[path.name][name] for name in task.names] for path in asked])
    assert np.abs(here - _probabilities(read_task(path), asked)).max() < 1e-3

    # learning on in the page is learning on in Python
    more = pictures[CLASSES[0]][5:8]
    page.drop("#classes > li:nth-child(1)", more)
    page.learned(SHOTS * len(CLASSES) + len(more))
    names = [page.script("return document.querySelector('#classes > li textarea').value")] * len(more)
    wanted = read_task(path).update(Examples.read(more, names, task.image_size))
    assert np.abs(read_task(page.export("here")).statistics.means - wanted.statistics.means).max() < 1e-3


def test_a_task_of_another_model_and_a_broken_image_are_refused_in_words(
    page: Page, pictures: Pictures, tmp_path: Path
) -> None:
    page.open()
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(pictures[CLASSES[0]][0].read_bytes()[:200])
    page.drop("#test", [broken])
    page.wait(lambda: "broken.jpg: it is damaged" in " ".join(page.texts(".toast")))

    path = tmp_path / "foreign.task"
    task = _learn({name: pictures[name] for name in CLASSES})
    about = {"fingerprint": "0" * 16, "model": "other", "classes": task.names}
    tensors = {"film": task.film}
    metadata = {"format": "cnaps-task", "version": "2", "about": json.dumps(about)}
    save_file(tensors, path, metadata | {"digest": _digest(metadata["about"], tensors)})
    page.bring_in(path)
    page.wait(lambda: "made with another model (other" in " ".join(page.texts(".toast")))


def test_it_works_offline_after_a_visit_and_asks_nobody_else(page: Page, pictures: Pictures, site: Path) -> None:
    page.open()
    page.wait(lambda: page.script("return navigator.serviceWorker.controller !== null"))
    page.name_class("one")
    page.name_class("two")
    page.drop("#classes > li:nth-child(1)", pictures[CLASSES[0]][:2])
    page.drop("#classes > li:nth-child(2)", pictures[CLASSES[1]][:2])
    page.learned(4)
    asked = page.script("return performance.getEntriesByType('resource').map(({ name }) => name)")
    assert [name for name in asked if not name.startswith((page.address, "blob:", "data:"))] == []

    page.stop_server()
    page.open()
    page.learned(4)  # the project is there, and so are the model and the runtime
    assert page.script("return crossOriginIsolated")


def test_nothing_in_the_site_names_another_host(site: Path) -> None:
    policy = "default-src 'self'; script-src 'self' 'wasm-unsafe-eval'"
    for name in ("index.html", "page.html"):
        text = (site / name).read_text(encoding="utf-8")
        assert policy in text
        assert "<script>" not in text
        assert not re.search(r"(?:src|href)=\"(?:https?:)?//", text)
    lock = json.loads((ROOT / "web" / "package-lock.json").read_text(encoding="utf-8"))
    assert [name for name, package in lock["packages"].items() if "resolved" in package] == []
    small = sum(
        path.stat().st_size for path in site.rglob("*") if path.suffix in (".js", ".css", ".html", ".mjs", ".svg")
    )
    assert small < 1_000_000
    assert sum(path.stat().st_size for path in site.rglob("*") if path.is_file()) < 40_000_000


def test_a_page_of_ones_own_classifies_alike_from_python_and_from_the_page(
    page: Page, pictures: Pictures, tmp_path: Path, browser: Any
) -> None:
    task = _learn(pictures)
    path, own = tmp_path / "things.task", tmp_path / "own"
    write_task(path, task)
    result = CliRunner().invoke(app, ["export", str(path), str(own)])
    assert result.exit_code == 0, result.output

    page.open()
    page.bring_in(path)
    page.learned(SHOTS * len(CLASSES))
    with zipfile.ZipFile(page.export("page")) as archive:
        assert archive.testzip() is None
        inside = {name: archive.read(name) for name in archive.namelist()}
    written = {str(p.relative_to(own)): p.read_bytes() for p in own.rglob("*") if p.is_file()}
    assert inside.keys() == written.keys()
    assert [name for name in inside if inside[name] != written[name]] == ["classifier.onnx"]  # with the task in it
    session = onnxruntime.InferenceSession(inside["classifier.onnx"])
    pixels = Examples.read(pictures[CLASSES[0]][:3], ["x"] * 3, task.image_size).pixels
    found = session.run(None, {"images": pixels})[0]
    assert np.abs(found - task.probabilities(task.features(pixels))).max() < 1e-3

    server, address = serve(own)
    browser.get(address)
    page.wait(lambda: "It tells apart" in page.text("#about"))
    asked = pictures[CLASSES[2]][9]
    page.drop("main", [asked])
    page.wait(lambda: page.count("#answers .bars") == 1)
    assert page.text("#answers .bars li:first-child span") == CLASSES[2]
    server.shutdown()
    server.server_close()
