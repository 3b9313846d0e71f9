"""Models and tasks go to a hub and come back: a small server stands in for it, and speaks what is needed of it."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from cnaps import FewShotClassifier
from cnaps.cli import main
from cnaps.errors import CheckpointError, InputError
from cnaps.runtime.engine import open_engine
from cnaps.runtime.hub import fetch, known_models, push
from cnaps.weights import DEFAULT_MODEL, INSTALLED

IMAGES = np.random.default_rng(0).integers(0, 255, (6, 32, 32, 3), np.uint8)
LABELS = list("ababab")


class Hub(BaseHTTPRequestHandler):
    """Repositories in memory: made, committed to and read, as the hub's package asks for it."""

    repositories: dict[str, dict[str, bytes]]
    private: dict[str, bool]
    asked: list[str]

    def log_message(self, *_: object) -> None:
        pass

    def answer(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def tell(self, about: object, status: int = 200) -> None:
        self.answer(status, json.dumps(about).encode(), Content_Type="application/json")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Authorization") != "Bearer right":
            return self.tell({"error": "who are you?"}, 401)
        if self.path == "/api/repos/create":
            about = json.loads(body)
            name = f"{about['organization']}/{about['name']}"
            self.repositories.setdefault(name, {})
            self.private.setdefault(name, about.get("private") or about.get("visibility") == "private")
            return self.tell({"url": f"http://{self.headers['Host']}/{name}"})
        if self.path == "/api/validate-yaml":
            return self.tell({"errors": [], "warnings": []})
        name = "/".join(self.path.split("/")[3:5])
        if "/preupload/" in self.path:
            modes = [
                {"path": f["path"], "uploadMode": "regular", "shouldIgnore": False}
                for f in json.loads(body)["files"]
            ]
            return self.tell({"files": modes})
        for line in body.decode().splitlines():
            entry = json.loads(line)
            if entry["key"] == "file":
                self.repositories[name][entry["value"]["path"]] = base64.b64decode(entry["value"]["content"])
        return self.tell(
            {
                "success": True,
                "commitOid": "c" * 40,
                "commitUrl": f"http://{self.headers['Host']}/{name}/commit/{'c' * 40}",
            }
        )

    def do_GET(self) -> None:
        self.asked.append(self.path)
        parts = self.path.partition("?")[0].split("/")
        name = "/".join(parts[3:5] if parts[1] == "api" else parts[1:3])
        files = self.repositories.get(name)
        if files is None:
            return self.answer(404, b"", X_Error_Code="RepoNotFound")
        if parts[1] == "api" and "tree" in parts:
            sizes = {path: len(data) for path, data in files.items()}
            return self.tell([{"type": "file", "path": p, "size": n, "oid": "0" * 40} for p, n in sizes.items()])
        if parts[1] == "api":
            siblings = [{"rfilename": path} for path in files]
            return self.tell({"id": name, "sha": "c" * 40, "siblings": siblings, "private": False, "tags": []})
        data = files["/".join(parts[5:])]
        self.answer(200, data, ETag=f'"{hashlib.sha1(data).hexdigest()}"', X_Repo_Commit="c" * 40)

    do_HEAD = do_GET


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Hub]]:
    here = type("Here", (Hub,), {"repositories": {}, "private": {}, "asked": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), here)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    yield here
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def classifier() -> FewShotClassifier:
    return FewShotClassifier(image_size=64).fit(IMAGES, LABELS)


def test_a_task_goes_to_the_hub_and_comes_back(
    hub: type[Hub], classifier: FewShotClassifier, tmp_path: Path
) -> None:
    classifier.push_to_hub("me/shelf", token="right")
    assert hub.repositories["me/shelf"].keys() == {"shelf.task", "README.md"}
    assert hub.private["me/shelf"], "what is made for somebody is shown to nobody else"
    card = hub.repositories["me/shelf"]["README.md"].decode()
    assert card.startswith("---\nlibrary_name: cnaps")
    assert 'from_pretrained("me/shelf")' in card
    back = FewShotClassifier.from_pretrained("me/shelf")
    classifier.save(tmp_path / "own.task")
    own = FewShotClassifier.load(tmp_path / "own.task")
    assert np.array_equal(back.predict_proba(IMAGES), own.predict_proba(IMAGES))


def test_a_model_goes_to_the_hub_and_is_used_by_its_name_there(
    hub: type[Hub], classifier: FewShotClassifier, capsys: pytest.CaptureFixture[str]
) -> None:
    push(DEFAULT_MODEL, "me/lite", token="right", public=True)
    assert not hub.private["me/lite"]
    card = hub.repositories["me/lite"]["README.md"].decode()
    assert "| omniglot | train |" in card, "the card says what it was trained on, from the notes"
    hub.repositories["me/lite"] |= {"pytorch_model.bin": b"a pickle", "run.py": b"code"}
    used = FewShotClassifier("hub:me/lite", image_size=64).fit(IMAGES, LABELS)
    assert np.array_equal(used.predict_proba(IMAGES), classifier.predict_proba(IMAGES))
    assert not any(path.endswith((".bin", ".py")) for path in hub.asked), "neither a pickle nor code is fetched"
    assert [model.name for model in known_models()] == [DEFAULT_MODEL, "hub:me/lite@cccccccc"]
    with pytest.raises(SystemExit):
        main(["models"])
    told = capsys.readouterr().out
    assert told.count(open_engine(DEFAULT_MODEL).fingerprint) == 2
    assert f"{DEFAULT_MODEL} (default): " in told


def test_what_was_fetched_is_there_without_the_hub(
    hub: type[Hub], classifier: FewShotClassifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    classifier.push_to_hub("me/shelf", token="right")
    path = fetch("me/shelf")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert fetch("me/shelf") == path
    with pytest.raises(CheckpointError, match=r"me/other cannot be fetched: .*not fetched before"):
        fetch("me/other")


def test_damage_on_the_way_is_noticed(hub: type[Hub], classifier: FewShotClassifier) -> None:
    classifier.push_to_hub("me/shelf", token="right")
    hub.repositories["me/shelf"]["shelf.task"] = hub.repositories["me/shelf"]["shelf.task"][:-4] + b"####"
    with pytest.raises(CheckpointError, match="does not fit its digest"):
        fetch("me/shelf")
    hub.repositories["me/lite"] = {
        str(path.relative_to(INSTALLED / DEFAULT_MODEL)): path.read_bytes()
        for path in (INSTALLED / DEFAULT_MODEL).rglob("*.*")
    }
    hub.repositories["me/lite"]["graphs/stem.onnx"] += b"#"
    with pytest.raises(CheckpointError, match="do not fit their digests"):
        fetch("hub:me/lite")


@pytest.mark.parametrize(
    ("name", "why"),
    [("me/none", "no such repository"), ("me/empty", "0 task files and no model"), ("nowhere", "OWNER/NAME")],
)
def test_what_is_not_there_is_said_in_a_sentence(hub: type[Hub], name: str, why: str) -> None:
    hub.repositories["me/empty"] = {"README.md": b""}
    with pytest.raises((CheckpointError, InputError), match=why):
        fetch(name)


def test_a_stranger_cannot_push(hub: type[Hub], classifier: FewShotClassifier) -> None:
    with pytest.raises(CheckpointError, match="cannot be pushed to me/shelf: you are not logged in") as refused:
        classifier.push_to_hub("me/shelf", token="wr0ng")
    assert "wr0ng" not in str(refused.value)
    assert hub.repositories == {}


def test_a_folder_is_as_good_as_a_repository(tmp_path: Path, classifier: FewShotClassifier) -> None:
    (tmp_path / "shelf").mkdir()
    classifier.save(tmp_path / "shelf/anything.task")
    assert FewShotClassifier.from_pretrained(tmp_path / "shelf").classes_.tolist() == ["a", "b"]
    shutil.copytree(INSTALLED / DEFAULT_MODEL, tmp_path / "model")
    assert FewShotClassifier.from_pretrained(tmp_path / "model").model == str(tmp_path / "model")
