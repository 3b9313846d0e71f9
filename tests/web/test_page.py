"""The page that learns in the browser: it says what Python says, and its files are Python's."""

from __future__ import annotations

import csv
import json
import re
import shutil
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from PIL import Image
from safetensors import safe_open
from safetensors.numpy import save_file
from sklearn.datasets import load_sample_images
from typer.testing import CliRunner

from cnaps.cli import app
from cnaps.runtime.engine import open_engine
from cnaps.runtime.examples import Examples, choose_size
from cnaps.runtime.review import LeftOut
from cnaps.runtime.task import FittedTask
from cnaps.runtime.taskfile import _digest, read_task, write_task
from cnaps.serving.decoding import Decoder
from cnaps.studio.exporting import import_file
from cnaps.studio.store import Project

from ..servers import open_chromium, violations
from ..studio.test_firefox import in_firefox
from .conftest import CLASSES, ROOT, Page, look_at, serve

ActionChains = pytest.importorskip("selenium.webdriver").ActionChains
Pictures = dict[str, list[Path]]
SHOTS = {name: 5 - i % 3 for i, name in enumerate(CLASSES)}  # unequal, as people have them
TOTAL, MOST = sum(SHOTS.values()), max(SHOTS.values())


def _teach(page: Page, pictures: Pictures) -> None:
    for i, name in enumerate(CLASSES, 1):
        page.name_class(name)
        page.drop(f"#classes > li:nth-child({i})", pictures[name][: SHOTS[name]])
    page.learned(TOTAL)


def _learn(pictures: Pictures) -> FittedTask:
    """The same in Python."""
    examples = [(path, name) for name in CLASSES for path in pictures[name][: SHOTS[name]]]
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
            pairs = [
                (row[key], row[key.replace("label", "probability")]) for key in row if key.startswith("label")
            ]
            found[row["path"]] = {name: float(p) for name, p in pairs if p}  # "none of these" has none
    return found


def _gap(table: dict[str, dict[str, float]], task: FittedTask, files: list[Path]) -> float:
    """How far a table's probabilities are from those of a task, at most."""
    wanted = {path.name: row for path, row in zip(files, _probabilities(task, files), strict=True)}
    rows = [(table[name], dict(zip(map(str, task.names), row, strict=True))) for name, row in wanted.items()]
    assert all(len(here) >= len(there) - 1 for here, there in rows)
    return max(abs(here[name] - there[name]) for here, there in rows for name in here)


def test_film_probabilities_and_review_agree_with_python_on_photographs(
    page: Page, pictures: Pictures, tmp_path: Path
) -> None:
    page.open()
    _teach(page, pictures)
    asked = [pictures[name][MOST + i] for i in range(2) for name in CLASSES]
    page.drop("#test", asked)
    page.wait(lambda: len(page.answers()) == len(asked))
    page.picture("web")  # docs/images/web.png

    wanted = _learn(pictures)
    made = read_task(page.export("here"))
    assert (made.names, made.image_size, made.seen) == (wanted.names, wanted.image_size, wanted.seen)
    assert np.abs(made.film - wanted.film).max() < 1e-3
    assert np.abs(made.statistics.means - wanted.statistics.means).max() < 1e-3
    assert made.threshold == pytest.approx(wanted.threshold, abs=1e-3)
    table = _table(page.saved("#tray-table"))
    assert _gap(table, wanted, asked) < 1e-3
    assert _gap(table, made, asked) < 1e-3  # the task file, in Python, says the same again

    names = [str(name) for name in wanted.names]
    files = [path for name in names for path in pictures[name][: SHOTS[name]]]
    labels = np.repeat(np.arange(len(names)), [SHOTS[name] for name in names])
    features = np.concatenate([rows for _, rows, _ in wanted.embed(files)])
    alone = LeftOut.of(wanted.left_out(features, labels), labels)
    page.show("review")
    assert f"{alone.correct} of {alone.total} examples recognised when left out" in page.text("#score")
    page.picture("review")
    assert page.complaints() == []


def test_photographs_of_any_size_and_kind_are_read_as_python_reads_them(page: Page, tmp_path: Path) -> None:
    """Large JPEG files are decoded at a fraction of their size, by Python and by the page's own decoder."""
    examples = {name: _photographs(tmp_path / name, i, 0) for i, name in enumerate(("temple", "flower"))}
    asked = _photographs(tmp_path / "asked", 1, 3)
    page.open()
    for i, (name, files) in enumerate(examples.items(), 1):
        page.name_class(name)
        page.drop(f"#classes > li:nth-child({i})", files)
    page.learned(12)
    page.drop("#test", asked)
    page.wait(lambda: len(page.answers()) == len(asked))
    pairs = [(path, name) for name in sorted(examples) for path in examples[name]]
    learned, labels = [path for path, _ in pairs], [name for _, name in pairs]
    engine = open_engine("cnaps-lite0")
    wanted = FittedTask.learn(engine, Examples.read(learned, labels, choose_size(engine, learned)))
    made = read_task(page.export("here"))
    assert np.abs(made.film - wanted.film).max() < 1e-3
    assert np.abs(made.statistics.means - wanted.statistics.means).max() < 1e-3
    assert _gap(_table(page.saved("#tray-table")), wanted, asked) < 1e-3
    assert page.complaints() == []


def _photographs(folder: Path, which: int, turn: int) -> list[Path]:
    """Parts of a photograph as JPEG files of many kinds, as telephones and programs write them."""
    folder.mkdir()
    found, whole = [], Image.fromarray(load_sample_images().images[which])
    kinds: list[tuple[tuple[int, int], dict[str, Any]]] = [
        ((4032, 3024), {"subsampling": "4:2:0", "quality": 85}),  # a telephone's
        ((1000, 1503), {"subsampling": "4:2:2", "quality": 92, "progressive": True}),
        ((2047, 1365), {"subsampling": "4:4:4", "quality": 97, "restart_marker_blocks": 5}),
        ((1600, 1600), {"subsampling": "4:2:2", "quality": 90}),
        ((3001, 2003), {"subsampling": "4:2:0", "quality": 60, "progressive": True}),
        ((640, 427), {"quality": 92}),  # decoded whole
    ]
    for i, (size, how) in enumerate(kinds):
        part = whole.crop((20 * i + 5 * turn, 8 * i, 380 + 30 * i, 330 + 15 * i)).resize(
            size, Image.Resampling.LANCZOS
        )
        exif = Image.Exif()
        exif[274] = (i + turn) % 8 + 1  # which way up the camera was held
        found.append(folder / f"{which}-{turn}-{i}.jpg")
        part.save(found[-1], exif=exif, **how)
    rows = bytearray(
        found[3].read_bytes()
    )  # the same as from a camera on its side: fewer rows of colour, not columns
    place = rows.index(b"\xff\xc0") + 11
    assert rows[place] == 0x21
    rows[place] = 0x12
    found[3].write_bytes(rows)
    return found


def test_a_task_file_goes_from_python_to_the_page_and_back_bit_for_bit(
    page: Page, pictures: Pictures, tmp_path: Path
) -> None:
    task = _learn(pictures)
    path = tmp_path / "things.task"
    write_task(path, task)
    page.open()
    page.bring_in(path)
    page.learned(TOTAL)
    assert page.export("here").read_bytes() == path.read_bytes()

    # learning on in the page is learning on in Python
    more = pictures[CLASSES[0]][5:8]
    page.drop("#classes > li:nth-child(1)", more)
    page.learned(TOTAL + len(more))
    names = [page.script("return document.querySelector('#classes > li textarea').value")] * len(more)
    wanted = read_task(path).update(Examples.read(more, names, task.image_size))
    file = page.export("here")
    made = read_task(file)
    assert np.abs(made.statistics.means - wanted.statistics.means).max() < 1e-3
    asked = [pictures[name][12] for name in CLASSES]
    assert np.abs(_probabilities(made, asked) - _probabilities(wanted, asked)).max() < 1e-3

    # and what the page wrote it reads again, as it is
    page.click("#new-project")
    page.wait(lambda: page.count("#classes > li") == 0)
    page.bring_in(file)
    page.learned(TOTAL + len(more))
    assert page.export("here").read_bytes() == file.read_bytes()
    assert page.complaints() == []


def test_images_come_by_paste_file_and_camera_and_every_view_follows(
    page: Page, pictures: Pictures, tmp_path: Path
) -> None:
    page.open()
    one, two = CLASSES[:2]
    for i, name in enumerate((one, two), 1):
        page.name_class(name)
        page.drop(f"#classes > li:nth-child({i})", pictures[name][:3])
    page.learned(6)

    page.paste(pictures[one][4])
    page.click("[data-pick=test]")
    page.browser.find_element("css selector", "#file").send_keys(str(pictures[two][4]))
    page.wait(lambda: sorted(page.answers()) == sorted([one, two]))
    page.show("label")
    page.drop("#pool", [pictures[name][i] for name in (one, two) for i in (5, 6)])
    page.wait(lambda: page.count("#pool .marked") == 4)
    page.picture("label")
    page.script("document.body.dispatchEvent(new KeyboardEvent('keydown', { key: '2', bubbles: true }))")
    page.learned(7)
    page.show("map")
    page.wait(lambda: page.count("#plane .point") == 12)
    page.picture("map")

    page.show("teach")
    page.click("#classes > li:nth-child(2) [data-camera]")
    page.wait(lambda: page.count("#live .bars li") == 2)  # answers as long as it is open
    page.picture("camera")
    button = page.browser.find_element("css selector", "#shoot")
    ActionChains(page.browser).click_and_hold(button).pause(0.9).release().perform()
    page.click("#camera .close")
    page.wait(lambda: page.count("#classes > li:nth-child(2) .thumb") >= 5)

    page.show("held")
    page.drop("#held-classes > li:nth-child(1)", [pictures[one][9]])
    page.wait(lambda: "of 1 image answered rightly" in page.text("#held-score"))
    page.picture("held")

    page.show("answers")
    folder = tmp_path / "held-out"
    for name in (one, two):
        (folder / name).mkdir(parents=True)
        for path in pictures[name][7:9]:
            shutil.copy(path, folder / name)
    (folder / one / "broken.png").write_bytes(b"no image")
    page.wait(lambda: "Learned from" in page.text("#status"))
    page.browser.find_element("css selector", "#answers-files").send_keys(str(folder))
    page.wait(lambda: "5 images, 1 could not be read" in page.text("#answers-title"))
    assert "of 4 images in folders named like your classes are right" in page.text("#answers-accuracy")
    page.picture("classify")
    rows = list(csv.DictReader(page.saved("#answers-table").open(encoding="utf-8")))
    assert {row["path"].split("/")[-2] for row in rows} == {one, two}
    assert {row["true_label"] for row in rows} == {one, two}
    with zipfile.ZipFile(page.saved("#answers-sorted")) as archive:
        assert archive.testzip() is None
        assert len(archive.namelist()) == 4

    # the studio reads the whole project
    archive_file = page.export("keep")
    with zipfile.ZipFile(archive_file) as archive:
        assert {f"examples/{one}/{pictures[one][0].name}", "project.json"} <= set(archive.namelist())
    engine = open_engine("cnaps-lite0")
    project = Project(tmp_path / "project", Decoder(engine.image_size))
    with archive_file.open("rb") as file:
        import_file(project, engine, file)
    assert set(project.classes.values()) == {one, two}
    project.close()
    assert page.complaints() == []


def test_it_is_taught_on_a_telephone_and_every_view_fits_in_light_and_dark(page: Page, pictures: Pictures) -> None:
    with page.telephone():
        page.open()
        page.picture("phone-welcome")
        assert not page.script("return document.querySelector('.welcome [data-pick-folder]').checkVisibility()")
        one, two = CLASSES[:2]
        for i, name in enumerate((one, two), 1):
            page.name_class(name)
            page.drop(f"#classes > li:nth-child({i})", pictures[name][:4])
        page.learned(8)
        page.drop("#test", [pictures[one][6], pictures[two][6]])
        page.wait(lambda: sorted(page.answers()) == sorted([one, two]))
        page.click("#classes > li:nth-child(2) [data-camera]")
        page.wait(lambda: page.count("#live .bars li") == 2)
        page.picture("phone-camera")
        assert violations(page) == [], "camera"
        page.hold("#shoot", 1)
        page.click("#camera .close")
        page.wait(lambda: page.count("#classes > li:nth-child(2) .thumb") >= 6)  # a series
        page.wait(lambda: "Learned from" in page.text("#status"))
        page.drop("#pool", pictures[one][7:9])
        page.drop("#held-classes > li:nth-child(1)", [pictures[one][9]])
        page.wait(lambda: "of 1 image answered rightly" in page.text("#held-score"))
        for theme in ("light", "dark"):
            page.theme(theme)
            for tab in ("answers", "label", "review", "held", "map", "teach"):
                page.show(tab)
                page.fits()
                page.wait(lambda: page.script("return !document.getAnimations().length"))
                assert violations(page) == [], tab
                page.picture(f"phone-{tab}-{theme}")
        page.script("document.querySelector('#more').open = true")
        box = page.script("return document.querySelector('.sheet').getBoundingClientRect().toJSON()")
        assert 0 <= box["left"] < box["right"] <= 360
        page.picture("phone-menu")
        page.theme("light")
        assert page.complaints() == []


def test_what_goes_wrong_is_said_in_words(page: Page, pictures: Pictures, tmp_path: Path) -> None:
    page.open()
    quota = {"origin": page.address.rstrip("/"), "quotaSize": 20_000}
    page.browser.execute_cdp_cmd("Storage.overrideQuotaForOrigin", quota)
    large = tmp_path / "large.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (300, 300, 3), dtype=np.uint8)).save(large)
    page.drop("#test", [large])
    page.says("storage is full: export the project")
    page.picture("error-storage", messages=True)
    page.browser.execute_cdp_cmd("Storage.overrideQuotaForOrigin", {"origin": quota["origin"]})  # as it was

    broken = tmp_path / "broken.jpg"
    broken.write_bytes(pictures[CLASSES[0]][0].read_bytes()[:200])
    page.drop("#test", [broken])
    page.says("broken.jpg: it is damaged")
    page.picture("error-broken", messages=True)

    path = tmp_path / "foreign.task"
    about = {"fingerprint": "0" * 16, "model": "other", "classes": ["a", "b"]}
    tensors = {"film": np.zeros(2, np.float32)}
    metadata = {"format": "cnaps-task", "version": "2", "about": json.dumps(about)}
    save_file(tensors, path, metadata | {"digest": _digest(metadata["about"], tensors)})
    page.bring_in(path)
    page.says("made with another model (other")
    page.picture("error-other-model", messages=True)

    # the browser of the tests never asks, so nobody can refuse
    page.script(
        "navigator.mediaDevices.getUserMedia = async () => { throw new DOMException('', 'NotAllowedError'); }"
    )
    page.click("#open-camera")
    page.says("The camera was refused: allow it")
    page.picture("error-camera-refused", messages=True)

    page.before_all("WebAssembly.validate = () => false")
    page.open()
    page.drop("#test", [large])
    page.says("its WebAssembly has no SIMD")
    page.picture("error-simd", messages=True)


def test_it_works_offline_after_a_visit_and_asks_nobody_else(
    site: Path, pictures: Pictures, tmp_path: Path
) -> None:
    log = tmp_path / "requests.json"
    browser = open_chromium("--disable-gpu", f"--log-net-log={log}")
    try:
        with look_at(browser, site, tmp_path) as page:
            page.open()
            page.wait(lambda: page.script("return navigator.serviceWorker.controller !== null"))
            page.name_class("one")
            page.name_class("two")
            page.drop("#classes > li:nth-child(1)", pictures[CLASSES[0]][:2])
            page.drop("#classes > li:nth-child(2)", pictures[CLASSES[1]][:2])
            page.learned(4)

            page.stop_server()
            page.open()
            page.learned(4)  # the project is there, and so are the model and the runtime
            assert page.script("return crossOriginIsolated")  # several threads may be used
            address = page.address
    finally:
        browser.quit()
    own = re.escape(address.rstrip("/"))
    asked = set(re.findall(rf'"initiator":"{own}[^\n]*?"url":"([^"]+)"', log.read_text(encoding="utf-8")))
    assert any(name.endswith("model.safetensors") for name in asked)
    assert [name for name in asked if not name.startswith((address, "blob:", "data:"))] == []


def test_the_site_is_small_and_names_no_other_host(site: Path) -> None:
    policy = "default-src 'self'; script-src 'self' 'wasm-unsafe-eval'"
    for name in ("index.html", "page.html"):
        text = (site / name).read_text(encoding="utf-8")
        assert policy in text
        assert not re.search(r"<script(?![^>]*src=)|<style|\son\w+=|style=", text)  # nothing inline
        assert not re.search(r"(?:src|href)=\"(?:https?:)?//", text)
    lock = json.loads((ROOT / "web" / "package-lock.json").read_text(encoding="utf-8"))
    assert [name for name, package in lock["packages"].items() if "resolved" in package] == []
    sizes = {path: path.stat().st_size for path in site.rglob("*") if path.is_file()}
    assert sum(sizes.values()) < 40_000_000
    licences = (site / "licences.txt").read_text(encoding="utf-8")
    assert "onnxruntime-web 1." in licences
    assert "vite" not in licences.split("== cnaps ==")[0]  # what only builds it
    assert sum(size for path, size in sizes.items() if path.suffix not in (".gz", ".safetensors")) < 1_000_000


def test_a_page_of_ones_own_classifies_alike_from_python_and_from_the_page(
    page: Page, pictures: Pictures, tmp_path: Path
) -> None:
    task = _learn(pictures)
    path, own = tmp_path / "things.task", tmp_path / "own"
    write_task(path, task)
    result = CliRunner().invoke(app, ["export", str(path), str(own)])
    assert result.exit_code == 0, result.output

    page.open()
    page.bring_in(path)
    page.learned(TOTAL)
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
    page.browser.get(address)
    page.wait(lambda: "It tells apart" in page.text("#about"))
    asked = pictures[CLASSES[2]][9]
    page.drop("main", [asked])
    page.wait(lambda: page.count("#answers .bars") == 1)
    assert page.text("#answers .bars li:first-child span") == CLASSES[2]
    page.click("#camera")
    page.wait(lambda: page.count("#live .bars li") == 3)
    page.picture("own")
    assert violations(page) == []
    page.browser.set_window_size(360, 780)
    page.fits()
    assert page.complaints() == []
    server.shutdown()
    server.server_close()


def test_a_device_without_enough_memory_and_without_a_camera_is_told_so(
    site: Path, pictures: Pictures, tmp_path: Path
) -> None:
    limits = ("--js-flags=--wasm-max-mem-pages=1000", "--use-fake-device-for-media-stream=device-count=0")  # 64 MB
    browser = open_chromium("--disable-gpu", *limits)
    try:
        with look_at(browser, site, tmp_path) as page:
            page.open()
            for i, name in enumerate(CLASSES[:2], 1):
                page.name_class(name)
                page.drop(f"#classes > li:nth-child({i})", pictures[name][:4])
            page.wait(lambda: "There is not enough memory for this" in page.text("#status"))
            assert page.count("#classes .thumb") == 8
            page.click("#open-camera")
            page.says("No camera can be used here")
            page.picture("error-memory-no-camera", messages=True)
    finally:
        browser.quit()


def test_without_a_gpu_that_works_the_processor_learns(page: Page, pictures: Pictures) -> None:
    """The browser offers one, and then there is none."""
    page.before_all("GPU.prototype.requestAdapter = async () => ({ info: {} })")
    page.open()
    for i, name in enumerate(CLASSES[:2], 1):
        page.name_class(name)
        page.drop(f"#classes > li:nth-child({i})", pictures[name][:2])
    page.learned(4)
    assert any("the GPU cannot be used" in entry["message"] for entry in page.browser.get_log("browser"))


@pytest.mark.slow
@pytest.mark.parametrize("right", [True, False])
def test_a_gpu_answers_as_python_does_or_is_left_alone(
    site: Path, pictures: Pictures, tmp_path: Path, right: bool
) -> None:
    software = ("--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader", "--enable-features=Vulkan")
    browser = open_chromium(*software)
    if not right:  # features that it should have computed, and did not
        site = shutil.copytree(site, tmp_path / "site")
        with safe_open(site / "model.safetensors", "numpy") as file:
            tensors, metadata = {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118
        tensors["check/features"] = tensors["check/features"] + np.float32(0.01)
        save_file(tensors, site / "model.safetensors", metadata)
    try:
        with look_at(browser, site, tmp_path) as page:
            # one that a processor plays is good enough for this
            page.before_all(
                "Object.defineProperty(GPUAdapterInfo.prototype, 'isFallbackAdapter', { get: () => false })"
            )
            page.open()
            for i, name in enumerate(CLASSES, 1):
                page.name_class(name)
                page.drop(f"#classes > li:nth-child({i})", pictures[name][: SHOTS[name]])
            page.wait(lambda: f"Learned from {TOTAL} images" in page.text("#status"), 600)
            asked = [pictures[name][MOST] for name in CLASSES]
            page.drop("#test", asked)
            page.wait(lambda: len(page.answers()) == len(asked), 600)
            assert _gap(_table(page.saved("#tray-table")), _learn(pictures), asked) < 1e-3
            said = [entry["message"] for entry in browser.get_log("browser") if "the GPU" in entry["message"]]
            assert bool(said) != right, said
            kept = """
                const stores = await Promise.all((await caches.keys()).map((name) => caches.open(name)));
                const requests = await Promise.all(stores.map((store) => store.keys()));
                return requests.flat().map(({ url }) => url);
                """
            assert any("asyncify.wasm" in address for address in page.script(kept))  # it was tried
    finally:
        browser.quit()


@pytest.mark.slow
def test_the_page_works_in_firefox(site: Path, pictures: Pictures, tmp_path: Path) -> None:
    server, address = serve(site)
    found = in_firefox(tmp_path, Path(__file__).with_name("firefox.mjs"), address, *(
        str(pictures[name][i]) for name in CLASSES[:2] for i in range(5)
    ))  # fmt: skip
    server.shutdown()
    server.server_close()
    assert sorted(found["answers"]) == sorted(CLASSES[:2])
    assert max(found["wide"].values()) <= 0
    assert found["problems"] == []
