"""The studio's server, with the model that comes with the package and real pictures."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from fastapi.testclient import TestClient
from PIL import Image

from cnaps.images.inputs import read_pixels
from cnaps.runtime.taskfile import read_task
from cnaps.serving.app import Batcher
from cnaps.studio.server import create_studio
from cnaps.weights import DEFAULT_MODEL

from ..servers import Server, until

Pictures = dict[str, list[Path]]


class Page:
    """What the page does, without a browser."""

    def __init__(self, client: TestClient) -> None:
        self.client = client

    def state(self) -> dict[str, Any]:
        return self.client.get("/api/state").json()

    def settled(self) -> dict[str, Any]:
        """The state when all changes so far are learned."""
        return until(lambda: (s := self.state())["settled"] and s)

    def add(self, place: str, *files: Path | tuple[str, bytes]) -> dict[str, Any]:
        parts = [("files", f if isinstance(f, tuple) else (f.name, f.read_bytes())) for f in files]
        return self.client.post("/api/images", data={"place": place}, files=parts).raise_for_status().json()

    def teach(self, name: str, files: list[Path]) -> str:
        key = self.client.post("/api/classes", json={"name": name}).json()["id"]
        self.add(key, *files)
        return key

    def best(self, image: str) -> str:
        state = self.settled()
        names = {entry["id"]: entry["name"] for entry in state["classes"]}
        return names[state["predictions"][image]["top"][0][0]]


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    app = create_studio(tmp_path / "project", DEFAULT_MODEL)
    with TestClient(app, base_url="http://127.0.0.1") as client:
        yield Page(client)


@pytest.fixture
def taught(page: Page, pictures: Pictures) -> Page:
    for name in ("sunflower", "panda", "watch"):
        page.teach(name, pictures[name][:4])
    return page


def test_an_empty_project_says_that_it_waits(page: Page) -> None:
    state = page.settled()
    assert state["status"]["phase"] == "waiting"
    assert page.client.post("/predict", content=b"x").status_code == 422
    assert page.client.get("/api/export/task").status_code == 422
    assert page.client.get("/health").json()["classes"] == []


def test_predictions_follow_examples_corrections_and_new_classes(taught: Page, pictures: Pictures) -> None:
    images = taught.add("test", *(pictures[name][6] for name in ("sunflower", "panda", "watch", "pizza")))["added"]
    assert [taught.best(i) for i in images[:3]] == ["sunflower", "panda", "watch"]
    doubts = [taught.state()["predictions"][i]["doubt"] for i in images]
    assert "none" not in doubts[:3]
    assert doubts[3] == "none"
    pizza = taught.teach("pizza", pictures["pizza"][:4])
    assert taught.best(images[3]) == "pizza"
    taught.client.patch(f"/api/classes/{pizza}", json={"name": "Pizze"})
    assert taught.best(images[3]) == "Pizze"
    taught.client.delete(f"/api/classes/{pizza}")
    state = taught.settled()
    assert len([i for i in state["images"] if i["place"] == "pool"]) == 4
    assert set(state["suggestions"]) == {i["id"] for i in state["images"] if i["place"] == "pool"}
    taught.client.post("/api/undo")
    assert taught.best(images[3]) == "Pizze"


def test_a_wrong_label_is_pointed_out_until_it_is_corrected(taught: Page, pictures: Pictures) -> None:
    state = taught.settled()
    panda = next(entry["id"] for entry in state["classes"] if entry["name"] == "panda")
    watch = next(entry["id"] for entry in state["classes"] if entry["name"] == "watch")
    (wrong,) = taught.add(panda, pictures["watch"][7])["added"]
    review = taught.settled()["review"]
    assert [(entry["id"], entry["better"]) for entry in review["suspects"]] == [(wrong, watch)]
    assert review["correct"] < review["total"] == 13
    taught.client.patch("/api/images", json={"images": [wrong], "place": watch})
    corrected = taught.settled()["review"]
    assert corrected["suspects"] == []
    assert review["correct"] < corrected["correct"] <= corrected["total"] == 13


def test_images_that_are_held_out_are_counted_and_not_learned_from(taught: Page, pictures: Pictures) -> None:
    before = taught.settled()
    sunflower, panda, _ = (entry["id"] for entry in before["classes"])
    assert before["held_out"] is None
    taught.add(f"h{panda[1:]}", *pictures["panda"][6:8])
    (wrong,) = taught.add(f"h{sunflower[1:]}", pictures["watch"][6])["added"]
    state = taught.settled()
    found = state["held_out"]
    assert (found["correct"], found["total"]) == (2, 3)
    assert found["low"] < 2 / 3 < found["high"]
    assert [entry["id"] for entry in found["mistakes"]] == [wrong]
    assert (state["review"], state["status"]["text"]) == (before["review"], before["status"]["text"])
    taught.client.post("/api/undo")
    assert taught.settled()["held_out"]["total"] == 2


def test_images_are_read_at_the_size_that_the_examples_are_worth(page: Page) -> None:
    def pictures(side: int, count: int) -> list[tuple[str, bytes]]:
        found = []
        for seed in range(count):
            buffer = io.BytesIO()
            values = np.random.default_rng((side, seed)).integers(0, 255, (side, side, 3), np.uint8)
            Image.fromarray(values).save(buffer, "PNG")
            found.append((f"{side}-{seed}.png", buffer.getvalue()))
        return found

    small, large = pictures(32, 4), pictures(200, 6)
    first, second = (page.client.post("/api/classes", json={"name": name}).json()["id"] for name in "ab")
    page.add(first, *small[:2])
    page.add(second, *small[2:])
    assert page.settled()["size"] == 128
    page.add(first, *large)
    state = page.settled()
    assert state["size"] == 224
    assert "at 224 pixels" in state["status"]["text"]
    page.client.post("/api/undo")
    assert page.settled()["size"] == 128


def test_quick_and_thorough_learning_end_where_the_classifier_does(taught: Page, pictures: Pictures) -> None:
    """Whatever the order of changes, the result is that of all examples at once."""
    panda = taught.settled()["classes"][1]["id"]
    taught.add(panda, *pictures["panda"][4:6])
    (image,) = taught.add("test", pictures["panda"][8])["added"]
    state = taught.settled()
    from cnaps import FewShotClassifier

    examples = {"sunflower": 4, "panda": 6, "watch": 4}
    files = [(path, name) for name, count in examples.items() for path in pictures[name][:count]]
    alone = FewShotClassifier().fit([path for path, _ in files], [name for _, name in files])
    wanted = dict(zip(alone.classes_, alone.predict_proba([pictures["panda"][8]])[0], strict=True))
    names = {entry["id"]: entry["name"] for entry in state["classes"]}
    for key, p in state["predictions"][image]["top"]:
        assert p == pytest.approx(wanted[names[key]], abs=2e-3)


def test_a_folder_of_folders_makes_the_classes(page: Page, pictures: Pictures) -> None:
    files = [path for name in ("panda", "watch") for path in pictures[name][:2]]
    data = {"place": "folders", "paths": [f"things/{path.parent.name}/{path.name}" for path in files]}
    page.client.post("/api/images", data=data, files=[("files", (p.name, p.read_bytes())) for p in files])
    state = page.settled()
    assert [entry["name"] for entry in state["classes"]] == ["panda", "watch"]
    assert state["status"]["phase"] == "ready"


def test_broken_files_are_refused_and_the_rest_goes_on(taught: Page, pictures: Pictures) -> None:
    report = taught.add("test", ("bad.jpg", b"\xff\xd8\xff broken"), pictures["panda"][9], ("x.svg", b"<svg/>"))
    assert [entry["name"] for entry in report["refused"]] == ["bad.jpg", "x.svg"]
    assert taught.best(report["added"][0]) == "panda"
    answer = taught.client.post("/predict", files=[("files", ("bad.jpg", b"no image"))])
    assert answer.status_code == 422
    assert "bad.jpg" in answer.text


def test_every_export_can_be_imported_again(taught: Page, pictures: Pictures, tmp_path: Path) -> None:
    (image,) = taught.add("test", pictures["watch"][9])["added"]
    before = taught.settled()["predictions"][image]["top"]
    files = {kind: taught.client.get(f"/api/export/{kind}").content for kind in ("task", "onnx", "project")}
    (tmp_path / "task.safetensors").write_bytes(files["task"])
    assert read_task(tmp_path / "task.safetensors").names == ["panda", "sunflower", "watch"]
    zipfile.ZipFile(io.BytesIO(files["onnx"])).extractall(tmp_path)
    program, shown = tmp_path / "classify.py", str(pictures["sunflower"][9])
    answer = subprocess.run([sys.executable, program, shown], capture_output=True, text=True, check=True)
    assert answer.stdout.startswith(f"{shown}: sunflower")
    assert len(program.read_text().splitlines()) <= 22
    for kind, data in files.items():
        app = create_studio(tmp_path / f"from-{kind}", DEFAULT_MODEL)
        with TestClient(app, base_url="http://127.0.0.1") as client:
            other = Page(client)
            client.post("/api/import", content=data).raise_for_status()
            key = image
            if kind != "project":
                (key,) = other.add("test", pictures["watch"][9])["added"]
            state = other.settled()
            names = {entry["id"]: entry["name"] for entry in state["classes"]}
            assert sorted(names.values()) == ["panda", "sunflower", "watch"]
            found = state["predictions"][key]["top"]
            assert [p for _, p in found] == pytest.approx([p for _, p in before], abs=2e-3)
            if kind == "task":  # and it learns on, with a class of its own
                other.teach("pizza", pictures["pizza"][:4])
                (pizza,) = other.add("test", pictures["pizza"][8])["added"]
                assert (other.best(pizza), other.best(key)) == ("pizza", "watch")


def test_a_page_of_one_s_own_is_exported_where_it_can_be_made(
    taught: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CNAPS_WEB", str(tmp_path / "site"))
    (tmp_path / "site" / "assets").mkdir(parents=True)
    (tmp_path / "site" / "page.html").write_text("<title>page</title>")
    (tmp_path / "site" / "assets" / "page.js").write_text("run()")
    (tmp_path / "site" / "page.json").write_text('{"index.html": "page.html", "assets/page.js": "assets/page.js"}')
    assert taught.settled()["pages"]
    answer = taught.client.get("/api/export/page").raise_for_status()
    names = zipfile.ZipFile(io.BytesIO(answer.content)).namelist()
    assert {"project/index.html", "project/assets/page.js", "project/classifier.onnx"} <= set(names)


def test_two_networks_asked_for_at_once_are_both_exported_and_the_studio_goes_on(taught: Page) -> None:
    taught.settled()
    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(lambda _: taught.client.get("/api/export/onnx"), range(2)))
    for answer in answers:
        assert answer.status_code == 200, answer.text
        assert len(zipfile.ZipFile(io.BytesIO(answer.content)).namelist()) == 2
    taught.client.post("/api/undo")
    assert taught.settled()["status"]["phase"] == "ready"


def test_a_project_of_more_bytes_than_a_request_may_have_is_brought_to_another(page: Page, tmp_path: Path) -> None:
    for seed in range(6):
        picture = np.random.default_rng(seed).integers(0, 255, (2500, 2500, 3), np.uint8)
        buffer = io.BytesIO()
        Image.fromarray(picture).save(buffer, "BMP")
        page.add("test", (f"{seed}.bmp", buffer.getvalue()))
    data = page.client.get("/api/export/project").content
    assert len(data) > 110_000_000
    app = create_studio(tmp_path / "other", DEFAULT_MODEL)
    with TestClient(app, base_url="http://127.0.0.1") as client:
        assert len(client.post("/api/import", content=data).raise_for_status().json()["added"]) == 6


@pytest.mark.parametrize("data", [b"", b"nonsense", b"PK\x03\x04 broken", b"\x10\0\0\0\0\0\0\0{}"])
def test_a_file_that_is_none_of_ours_is_not_imported(page: Page, data: bytes) -> None:
    answer = page.client.post("/api/import", content=data)
    assert answer.status_code == 422
    assert answer.json()["error"]
    assert page.state()["classes"] == []


def test_waiting_for_news_ends_when_there_is_some(page: Page) -> None:
    state = page.settled()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(page.client.get, f"/api/state?since={state['version']}")
        assert not waiting.done()
        page.client.post("/api/classes", json={"name": "cats"})
        state = waiting.result(60).json()
    assert [entry["name"] for entry in state["classes"]] == ["cats"]


def test_the_interface_is_described(page: Page) -> None:
    paths = page.client.get("/openapi.json").json()["paths"]
    assert set(paths) == {"/predict", "/health", "/metrics"}
    assert "Predict over HTTP" in page.client.get("/docs").text


def test_what_waits_is_computed_together(task: Path, pictures: Pictures) -> None:
    fitted = read_task(task)
    images = [read_pixels(path.read_bytes(), fitted.image_size) for path in pictures["panda"][3:8]]

    async def ask() -> tuple[float, list[Any]]:
        batcher = Batcher()
        answers = await asyncio.gather(*(batcher(fitted, [image]) for image in images))
        batcher.close()
        return batcher.metrics["batches_total"], [fitted.names[int(row.argmax())] for ((row, _),) in answers]

    assert asyncio.run(ask()) == (1, ["panda"] * 5)


def test_fifty_clients_at_once_are_all_answered_rightly(task: Path, pictures: Pictures) -> None:
    fitted = read_task(task)
    shown = [path for paths in pictures.values() for path in paths[3:]]
    expected = np.concatenate([p for _, p in fitted.predict(shown)])
    server = Server("serve", str(task))

    def ask(number: int) -> tuple[int, dict[str, Any]]:
        i = number % len(shown)
        data = shown[i].read_bytes()
        if number % 2:
            answer = server.client.post("/predict", content=data, headers={"Content-Type": "image/jpeg"})
        else:
            answer = server.client.post("/predict", files={"files": ("a.jpg", data)})
        return i, answer.raise_for_status().json()["predictions"][0]

    try:
        with ThreadPoolExecutor(50) as pool:
            answers = list(pool.map(ask, range(100)))
        for i, answer in answers:
            assert answer["label"] == fitted.names[int(expected[i].argmax())]
            assert list(answer["probabilities"].values()) == pytest.approx(expected[i].tolist(), abs=1e-3)
        assert server.count("images_total") == 100
        too_many = [("files", ("a.jpg", b"x"))] * 40
        assert server.client.post("/predict", files=too_many).status_code in (400, 422)
        # asked to stop in the middle of an answer, it answers first
        many = [("files", ("a.jpg", path.read_bytes())) for path in shown[:32]]
        late = ThreadPoolExecutor(1).submit(server.client.post, "/predict", files=many)
        until(lambda: server.count("requests_total") == 102)
        server.process.terminate()
        answers = late.result(60).json()["predictions"]
        assert [answer["label"] for answer in answers] == [fitted.names[k] for k in expected[:32].argmax(1)]
        server.process.wait(60)
    finally:
        server.kill()


def test_a_server_with_too_much_to_do_says_so_and_answers_what_it_took(task: Path, pictures: Pictures) -> None:
    server = Server("serve", str(task), "--max-waiting", "5")
    files = [("files", ("a.jpg", path.read_bytes())) for path in pictures["panda"][3:8]]
    try:
        server.client.post("/predict", files=files).raise_for_status()  # the decoders have begun to work
        decoders = _children(server.process.pid)
        for pid in decoders:
            os.kill(pid, signal.SIGSTOP)
        with ThreadPoolExecutor(1) as pool:
            taken = pool.submit(server.client.post, "/predict", files=files)
            until(lambda: server.count("waiting_images") == 5)
            refused = server.client.post("/predict", files=files[:1])
            for pid in decoders:
                os.kill(pid, signal.SIGCONT)
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
            assert [answer["label"] for answer in taken.result().json()["predictions"]] == ["panda"] * 5
        assert server.client.post("/predict", files=files[:1]).is_success
        assert (server.count("waiting_images"), server.count("busy_total")) == (0, 1)
    finally:
        server.kill()


@pytest.mark.slow
def test_workers_share_the_work_and_one_that_dies_is_replaced(task: Path, pictures: Pictures) -> None:
    server = Server("serve", str(task), "--workers", "2")
    data = pictures["watch"][9].read_bytes()

    def worker() -> int:
        """Which process answers; a connection for each question."""
        with contextlib.suppress(httpx.TransportError):
            answer = httpx.post(f"{server.address}/predict", content=data, timeout=60)
            assert answer.json()["predictions"][0]["label"] == "watch"
            found = re.search(r'process="(\d+)"', httpx.get(f"{server.address}/metrics", timeout=60).text)
            assert found
            return int(found[1])
        return 0  # the connection was one of the worker that died

    try:
        seen: set[int] = set()
        until(lambda: seen.add(worker()) or len(seen - {0}) == 2)
        (first, *_) = known = seen - {0}
        assert server.process.pid not in known
        os.kill(first, signal.SIGKILL)
        until(lambda: worker() not in {0, *known})
        assert server.stop() in (0, -signal.SIGTERM)
        assert not any(_runs(pid) for pid in known)
        with pytest.raises(httpx.TransportError):
            httpx.get(f"{server.address}/health")
    finally:
        server.kill()


def _children(pid: int) -> list[int]:
    path = Path(f"/proc/{pid}/task/{pid}/children")
    if not path.exists():
        pytest.skip("needs to find the processes of a process in /proc, which is not here")
    return [int(child) for child in path.read_text().split()]


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_serving_beyond_loopback_asks_for_the_token(task: Path) -> None:
    from cnaps.serving.app import create_serving

    with TestClient(create_serving(str(task), token="secret"), base_url="http://10.0.0.1") as client:
        assert client.post("/predict", content=b"x").status_code == 401
        assert client.get("/health").json()["status"] == "ok"
        assert json.loads(client.get("/openapi.json", headers={"Authorization": "Bearer secret"}).text)
