"""The backend of Label Studio, asked as its protocol is documented: setup, suggestions, training, events."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from cnaps.cli import main
from cnaps.errors import DataError, InputError
from cnaps.images.finding import find_examples
from cnaps.runtime.label_studio import Addresses, Config
from cnaps.studio.label_studio import create_backend
from cnaps.weights import DEFAULT_MODEL

from ..servers import until

Pictures = dict[str, list[Path]]
INTERFACE = (
    '<View><Image name="photo" value="$picture"/><Choices name="kind" toName="photo" choice="single">'
    '<Choice value="panda"/><Choice value="pizza"/><Choice value="watch"/></Choices></View>'
)
PROJECT = {"id": 7, "title": "Things", "label_config": INTERFACE, "model_version": ""}


def annotation(number: int, *choices: str, task: int = 1, cancelled: bool = False) -> dict[str, Any]:
    value = {
        "value": {"choices": list(choices)},
        "id": "x1",
        "from_name": "kind",
        "to_name": "photo",
        "type": "choices",
    }
    about = {"id": number, "task": task, "was_cancelled": cancelled, "ground_truth": False, "completed_by": 1}
    return {**about, "result": [value] if choices else [], "lead_time": 1.5, "prediction": {}}


def event(action: str, picture: Path, made: dict[str, Any], root: Path) -> dict[str, Any]:
    task = {"id": made["task"], "data": {"picture": local(picture, root)}, "project": 7}
    return {"action": action, "annotation": made, "task": task, "project": PROJECT}


def local(picture: Path, root: Path) -> str:
    return f"/data/local-files/?d={picture.relative_to(root)}"


@pytest.fixture
def root(pictures: Pictures) -> Path:
    return pictures["panda"][0].parent.parent


@pytest.fixture
def backend(tmp_path: Path, root: Path) -> Iterator[TestClient]:
    app = create_backend(tmp_path / "project", DEFAULT_MODEL, Addresses(root))
    with TestClient(app, base_url="http://127.0.0.1") as client:
        yield client


def labels(client: TestClient) -> dict[str, int]:
    return {name: len(keys) for name, keys in client.app.state.learner.project.contents().classes.items()}  # type: ignore[attr-defined]


def suggest(client: TestClient, *addresses: Any) -> list[str | None]:
    tasks = [{"id": i, "data": {"picture": address}} for i, address in enumerate(addresses)]
    params = {"login": None, "password": None, "hostname": "http://localhost:8080", "context": None}
    request = {"tasks": tasks, "project": "7.1629", "label_config": INTERFACE, "params": params}
    answer = client.post("/label-studio/predict", json=request)
    assert answer.status_code == 200
    assert len(answer.json()["results"]) == len(addresses)
    found = []
    for each in answer.json()["results"]:
        assert each["model_version"] == answer.json()["model_version"]
        if each["result"]:
            assert each["result"][0]["from_name"] == "kind"
            assert each["result"][0]["to_name"] == "photo"
            assert each["result"][0]["type"] == "choices"
            assert 0 < each["score"] <= 1
        found.append(each["result"][0]["value"]["choices"][0] if each["result"] else None)
    return found


def test_suggestions_follow_what_people_label(backend: TestClient, pictures: Pictures, root: Path) -> None:
    assert backend.get("/label-studio/health").json()["status"] == "UP"
    setup = {"project": "7.1629", "schema": INTERFACE, "hostname": "http://evil.example", "access_token": "t"}
    before = backend.post("/label-studio/setup", json=setup).json()["model_version"]
    asked = [local(pictures[name][9], root) for name in ("panda", "pizza")]
    assert suggest(backend, *asked) == [None, None], "nothing is learned yet"
    number = 0
    for name in ("panda", "pizza"):
        for picture in pictures[name][:3]:
            number += 1
            made = event("ANNOTATION_CREATED", picture, annotation(number, name, task=number), root)
            assert backend.post("/label-studio/webhook", json=made).json() == {"learned": 1, "unreadable": 0}
    until(lambda: suggest(backend, *asked) == ["panda", "pizza"])
    assert backend.post("/label-studio/setup", json=setup).json()["model_version"] != before
    embedded = "data:image/png;base64," + base64.b64encode(pictures["pizza"][9].read_bytes()).decode()
    assert suggest(backend, embedded, "/etc/passwd", None) == ["pizza", None, None]


def test_changed_skipped_and_deleted_annotations_are_followed(
    backend: TestClient, pictures: Pictures, root: Path
) -> None:
    def tell(action: str, made: dict[str, Any]) -> None:
        sent = event(action, pictures["panda"][0], made, root)
        assert backend.post("/label-studio/webhook", json=sent).status_code == 201

    tell("ANNOTATION_CREATED", annotation(1, "pizza"))
    assert labels(backend) == {"pizza": 1}
    tell("ANNOTATION_UPDATED", annotation(1, "panda"))
    assert labels(backend) == {"panda": 1}
    tell("ANNOTATION_UPDATED", annotation(1, "panda", "pizza"))
    assert labels(backend) == {}, "two at once is no class"
    tell("ANNOTATION_CREATED", annotation(2, "panda"))
    tell("ANNOTATION_CREATED", annotation(3, cancelled=True))
    assert labels(backend) == {"panda": 1}
    gone = {"action": "ANNOTATIONS_DELETED", "annotations": [{"id": 2}], "project": PROJECT}
    assert backend.post("/label-studio/webhook", json=gone).status_code == 201
    assert labels(backend) == {}


def test_training_takes_all_annotations_at_once(backend: TestClient, pictures: Pictures, root: Path) -> None:
    tasks: list[dict[str, Any]] = [
        {
            "id": i,
            "data": {"picture": local(pictures[name][i], root)},
            "annotations": [annotation(10 * i + k, name)],
        }
        for k, name in enumerate(("panda", "watch"))
        for i in range(2)
    ]
    tasks.append({"id": 9, "data": {"picture": "gone.jpg"}, "annotations": [annotation(99, "watch")]})
    sent = {"annotations": tasks, "project": "7.1629", "label_config": INTERFACE, "params": {}}
    answer = backend.post("/label-studio/train", json=sent)
    assert (answer.status_code, answer.json()) == (201, {"learned": 4, "unreadable": 1})
    assert labels(backend) == {"panda": 2, "watch": 2}


@pytest.mark.parametrize("body", [b"", b"[1]", b'{"label_config": "<View/>", "tasks": []}', b'{"tasks": 3}',
    b'{"label_config": "<!DOCTYPE x><View/>"}', b'{"action": "ANNOTATION_CREATED"}',
    b'{"action": "ANNOTATION_CREATED", "annotation": {"task": "x"}, "project": {}}'])  # fmt: skip
@pytest.mark.parametrize("path", ["predict", "train", "setup", "webhook"])
def test_nonsense_is_refused_in_a_sentence(backend: TestClient, path: str, body: bytes) -> None:
    answer = backend.post(f"/label-studio/{path}", content=body)
    unknown_event = path == "webhook" and b"CREATED" not in body and body[:1] == b"{"
    assert answer.status_code == (201 if unknown_event else 422)
    assert unknown_event or len(answer.json()["error"]) > 10


class Studio(BaseHTTPRequestHandler):
    """What a Label Studio answers to those who have its token."""

    files: dict[str, bytes]

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        if self.path == "/data/elsewhere.png":
            self.send_response(302)
            self.send_header("Location", "/data/upload/7/a.png")
            self.end_headers()
            return
        right = self.headers.get("Authorization") in ("Token right", "Bearer short-lived")
        body = self.files.get(self.path, b"") if right else b""
        self.send_response(200 if body else 404 if right else 401)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        sent = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        right = self.path == "/api/token/refresh" and sent == {"refresh": "personal.access.token"}
        body = b'{"access": "short-lived"}' if right else b"{}"
        self.send_response(200 if right else 401)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def host(pictures: Pictures) -> Iterator[str]:
    files = {"/data/upload/7/a.png": pictures["pizza"][0].read_bytes()}
    task = {"id": 5, "data": {"picture": "/data/upload/7/a.png"}}
    files["/api/tasks/5"] = json.dumps(task).encode()
    exported = [{**task, "annotations": [annotation(50, "pizza", task=5)]}]
    files["/api/projects/7/export?exportType=JSON"] = json.dumps(exported).encode()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Here", (Studio,), {"files": files}))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_the_named_host_is_asked_with_its_token_and_no_other(host: str, pictures: Pictures) -> None:
    addresses, image = Addresses(host=host, token="right"), pictures["pizza"][0].read_bytes()
    assert addresses.read("/data/upload/7/a.png") == image
    assert addresses.read(f"{host}/data/upload/7/a.png") == image
    for other in (
        f"{host}0/a.png",
        f"{host}@evil.example/a.png",
        "file:///etc/passwd",
        "http://127.0.0.1:1/a.png",
    ):
        with pytest.raises(DataError, match="another host"):
            addresses.read(other)
    with pytest.raises(DataError, match="answers 302"):
        addresses.read("/data/elsewhere.png")
    with pytest.raises(DataError, match="answers 401"):
        Addresses(host=host, token="wrong").read("/data/upload/7/a.png")
    with pytest.raises(InputError, match="is no address"):
        Addresses(host="ftp://x")


def test_a_personal_access_token_is_exchanged_for_one_that_lasts_for_minutes(
    host: str, pictures: Pictures, monkeypatch: pytest.MonkeyPatch
) -> None:
    addresses, image = Addresses(host=host, token="personal.access.token"), pictures["pizza"][0].read_bytes()
    assert addresses.read("/data/upload/7/a.png") == image
    with pytest.raises(DataError, match="answers 401"):
        Addresses(host=host, token="some.other.token").read("/data/upload/7/a.png")
    monkeypatch.setattr(Studio, "do_POST", None)  # it is not asked for again
    assert addresses.read("/data/upload/7/a.png") == image


def test_what_an_event_does_not_say_is_asked_for(host: str, tmp_path: Path) -> None:
    app = create_backend(tmp_path / "project", DEFAULT_MODEL, Addresses(host=host, token="right"))
    with TestClient(app, base_url="http://127.0.0.1") as client:
        sent = {"action": "ANNOTATION_CREATED", "annotation": annotation(1, "panda", task=5), "project": PROJECT}
        assert client.post("/label-studio/webhook", json=sent).json() == {"learned": 1, "unreadable": 0}
        assert labels(client) == {"panda": 1}
        sent = {"action": "START_TRAINING", "project": PROJECT}
        assert client.post("/label-studio/webhook", json=sent).json() == {"learned": 1, "unreadable": 0}
        assert labels(client) == {"pizza": 1}


@pytest.mark.parametrize("address", ["/data/local-files/?d=../secret.png", "../secret.png", 
    "/data/../../secret.png", "/data/local-files/?d=/secret.png", "link.png", "%2e%2e/secret.png", "\0", "http://evil.example/a.png",
    "data:text/html;base64,AAAA", "data:image/png;base64,?"])  # fmt: skip
def test_nothing_outside_the_folder_is_read(tmp_path: Path, address: str) -> None:
    (tmp_path / "secret.png").write_bytes(b"secret")
    (tmp_path / "images").mkdir()
    (tmp_path / "images/link.png").symlink_to(tmp_path / "secret.png")
    with pytest.raises(DataError):
        Addresses(tmp_path / "images").read(address)


def test_basic_authentication_is_as_good_as_a_bearer(tmp_path: Path) -> None:
    app = create_backend(tmp_path / "project", DEFAULT_MODEL, Addresses(), token="secret")
    with TestClient(app, base_url="http://10.0.0.1") as client:
        assert client.get("/label-studio/health").status_code == 401
        assert client.get("/label-studio/health", auth=("anybody", "wrong")).status_code == 401
        assert client.get("/label-studio/health", auth=("anybody", "secret")).status_code == 200
        assert client.get("/label-studio/health", headers={"Authorization": "Basic ?"}).status_code == 401


def test_choices_go_to_label_studio_and_come_back(
    tmp_path: Path, pictures: Pictures, task: Path, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, table = tmp_path / "tasks.json", tmp_path / "examples.csv"
    asked = [str(pictures[name][10]) for name in ("panda", "pizza")]
    with pytest.raises(SystemExit) as ended:
        main(["label-studio", "export", *asked, "--images", str(root), "--task", str(task), "--out", str(out)])
    assert not ended.value.code
    tasks = json.loads(out.read_text())
    chosen = [each["predictions"][0]["result"][0]["value"]["choices"] for each in tasks]
    assert chosen == [["panda"], ["pizza"]]
    for number, each in enumerate(tasks):  # somebody agrees
        each["annotations"] = [{"id": number, "result": each.pop("predictions")[0]["result"]}]
    tasks.append({"data": {"image": "/data/local-files/?d=gone.png"}, "annotations": tasks[0]["annotations"]})
    (tmp_path / "export.json").write_text(json.dumps(tasks))
    with pytest.raises(SystemExit) as ended:
        main(["label-studio", "import", str(tmp_path / "export.json"), str(table), "--images", str(root)])
    assert ended.value.code == 3, "one image is not there"
    assert [(str(path), label) for path, label in find_examples(table)] == list(
        zip(asked, ["panda", "pizza"], strict=True)
    )


def test_only_choices_that_the_interface_has_are_suggested() -> None:
    config = Config.parse(INTERFACE)
    assert config.result(["lion", "panda"], [0.9, 0.1])["result"][0]["value"] == {"choices": ["panda"]}
    assert config.result(["lion"], [1.0]) == {"result": [], "score": 0.0}


RECORDED = json.loads((Path(__file__).parent / "recorded" / "label-studio.json").read_text(encoding="utf-8"))


@pytest.fixture
def served(tmp_path: Path, pictures: Pictures) -> Path:
    """Images where the recorded requests say that they lie."""
    for request in RECORDED["requests"]:
        for task in [*request["body"].get("tasks", []), request["body"].get("task")]:
            if not isinstance(task, dict) or "data" not in task:
                continue
            address = task["data"]["picture"]
            name = address.removeprefix("/data/local-files/?d=").removeprefix("/data/")
            kind = next((kind for kind in ("panda", "pizza") if kind in name), "watch")
            place = tmp_path / "served" / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(pictures[kind][sum(map(ord, name)) % 14].read_bytes())
    return tmp_path / "served"


def test_what_a_real_label_studio_asked_is_answered_as_it_wants(tmp_path: Path, served: Path) -> None:
    """Connected, labelled, changed, deleted, skipped, asked for suggestions, trained: as it was recorded."""
    app = create_backend(tmp_path / "project", DEFAULT_MODEL, Addresses(served))
    after: list[dict[str, int]] = []
    with TestClient(app, base_url="http://127.0.0.1") as client:
        for request in RECORDED["requests"]:
            body, path = request["body"], request["path"]
            if path.endswith("/predict"):
                until(lambda: client.app.state.learner.fitted is not None)  # type: ignore[attr-defined]
            answer = client.request(request["method"], path, headers=request["headers"], json=body or None)
            assert answer.status_code in (200, 201), f"{path} {body.get('action')}: {answer.text}"
            found = answer.json()
            if path.endswith("/health"):
                assert found["status"] == "UP"
            elif path.endswith("/setup"):
                assert isinstance(found["model_version"], str)
            elif path.endswith("/versions"):
                assert found["versions"] == [client.get("/label-studio/health").json()["model_version"]]
            elif path.endswith("/predict"):
                assert len(found["results"]) == len(body["tasks"])
                for each in found["results"]:
                    assert each["result"][0]["value"]["choices"][0] in ("panda", "pizza", "watch")
            after.append(labels(client))
    actions = [request["body"].get("action") for request in RECORDED["requests"]]
    assert after[actions.index("ANNOTATION_UPDATED") - 1] == {"panda": 3, "pizza": 3}
    assert after[actions.index("ANNOTATION_UPDATED")] == {"panda": 2, "pizza": 4}
    first, last = (i for i, action in enumerate(actions) if action == "ANNOTATIONS_DELETED")
    assert after[first - 1] == {"panda": 3, "pizza": 3, "watch": 1}
    assert after[first] == {"panda": 3, "pizza": 3}
    assert after[last - 1] == {"panda": 3, "pizza": 3, "watch": 1}
    assert after[last] == {"panda": 2, "pizza": 3, "watch": 1}
    assert after[actions.index("TASKS_DELETED")] == {"panda": 1, "pizza": 3, "watch": 1}
    assert after[actions.index("ANNOTATIONS_CREATED")] == {"panda": 3, "pizza": 4, "watch": 1}


def test_what_label_studio_exported_becomes_examples(tmp_path: Path, served: Path) -> None:
    exported = tmp_path / "export.json"
    exported.write_text(json.dumps(RECORDED["export"]))
    with pytest.raises(SystemExit) as ended:
        main(["label-studio", "import", str(exported), str(tmp_path / "examples.csv"), "--images", str(served),
              "--field", "picture"])  # fmt: skip
    assert not ended.value.code
    kinds = [label for _, label in find_examples(tmp_path / "examples.csv")]
    assert sorted(kinds) == ["panda"] * 2 + ["pizza"] * 3 + ["watch"]
