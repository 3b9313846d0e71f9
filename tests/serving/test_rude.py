"""Clients without manners, and what the server keeps to itself."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient

from cnaps import __version__
from cnaps.runtime.taskfile import versions_in
from cnaps.serving.app import create_serving
from cnaps.serving.connections import CONNECTIONS, SECONDS
from cnaps.serving.safety import IN_FLIGHT
from cnaps.studio.server import create_studio
from cnaps.weights import DEFAULT_MODEL

from ..servers import ROOT, Server, until

Pictures = dict[str, list[Path]]


@pytest.fixture(scope="module")
def server(task: Path) -> Iterator[Server]:
    server = Server("serve", str(task))
    yield server
    server.kill()


def connected(server: Server) -> socket.socket:
    return socket.create_connection(("127.0.0.1", int(server.port)), timeout=60)


def memory(server: Server) -> float:
    """What the process holds, in MB."""
    status = Path(f"/proc/{server.process.pid}/status")
    if not status.exists():
        pytest.skip("needs /proc")
    found = re.search(r"VmRSS:\s+(\d+)", status.read_text())
    assert found
    return int(found[1]) / 1e3


@pytest.mark.parametrize("kind", ["image/jpeg", "multipart/form-data; boundary=x"])
def test_twenty_unfinished_uploads_do_not_fill_the_memory(server: Server, pictures: Pictures, kind: str) -> None:
    data = pictures["panda"][0].read_bytes()
    server.client.post("/predict", content=data).raise_for_status()
    before = memory(server)
    start = (
        f"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\nContent-Length: 99000000\r\n\r\n"
    )
    part = b'--x\r\nContent-Disposition: form-data; name="files"; filename="a"\r\n\r\n' if "multi" in kind else b""

    def send(_: int) -> socket.socket:
        client = connected(server)
        try:
            client.sendall(start.encode() + part)
            for _ in range(98):
                client.sendall(bytes(1_000_000))
        except OSError:
            pass  # it is not read to the end
        return client

    with ThreadPoolExecutor(20) as pool:
        clients = list(pool.map(send, range(20)))
    try:
        assert memory(server) - before < IN_FLIGHT / 1e6 + 150
        assert server.client.get("/health").is_success
    finally:
        for client in clients:
            client.close()
    until(server.answers)
    until(lambda: server.client.post("/predict", content=data).is_success)


def test_a_client_that_never_ends_its_headers_is_hung_up_on(server: Server) -> None:
    begun = time.monotonic()
    client = connected(server)
    client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n")
    client.settimeout(SECONDS + 10)
    assert client.recv(100) == b""
    assert SECONDS - 1 < time.monotonic() - begun < SECONDS + 10


def test_idle_connections_without_end_do_not_keep_others_out(server: Server) -> None:
    clients = []
    for _ in range(2 * CONNECTIONS + 50):
        clients.append(connected(server))
    for client in clients:
        client.close()
    until(server.answers)


def test_ctrl_c_ends_the_studio_without_a_traceback(tmp_path: Path) -> None:
    with (tmp_path / "errors").open("w+") as errors:
        studio = Server("studio", str(tmp_path / "project"), "--no-browser", stderr=errors)
        state = studio.settled()
        with ThreadPoolExecutor(1) as pool:
            news = pool.submit(studio.client.get, f"/api/state?since={state['version']}")
            time.sleep(0.5)
            studio.process.send_signal(signal.SIGINT)
            assert news.result(30).is_success
        assert studio.process.wait(30) == 130
        errors.seek(0)
        assert errors.read().strip() in ("", "interrupted")


@pytest.mark.parametrize(("option", "value"), [("--port", "99999"), ("--port", "-1"), ("--host", "a..b"),
                                               ("--host", "nowhere.invalid")])  # fmt: skip
def test_an_address_that_cannot_be_is_said_in_a_sentence(task: Path, option: str, value: str) -> None:
    command = [sys.executable, "-c", "from cnaps.cli import main; main()", "serve", str(task), option, value]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=100)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert option in done.stderr or value in done.stderr


def test_workers_add_up_their_counters_and_keep_the_token_to_themselves(task: Path, pictures: Pictures) -> None:
    server = Server(
        "serve", str(task), "--workers", "2", "--host", "0.0.0.0", environment={"CNAPS_TOKEN": "t0ps3cret"}
    )
    data, headers = pictures["watch"][9].read_bytes(), {"Authorization": "Bearer t0ps3cret"}
    try:
        asked = 0
        seen: set[str] = set()
        while len(seen) < 2:
            with httpx.Client(base_url=f"http://127.0.0.1:{server.port}", headers=headers, timeout=60) as client:
                client.post("/predict", content=data).raise_for_status()
                asked += 1
                text = client.get("/metrics").text
            assert f"\ncnaps_requests_total {asked}\n" in text
            assert f"\ncnaps_images_total {asked}\n" in text
            seen.update(re.findall(r'process="(\d+)"', text))
        names = [line.split()[0].split("{")[0] for line in text.splitlines() if not line.startswith("#")]
        for name in {re.sub("_(bucket|sum|count)$", "", name) for name in names}:
            assert f"# HELP {name} " in text
            assert f"# TYPE {name} " in text
        for worker in seen:
            shown = Path(f"/proc/{worker}/cmdline").read_bytes()
            environment = Path(f"/proc/{worker}/environ").read_bytes().replace(b"CNAPS_TOKEN=t0ps3cret", b"")
            assert b"t0ps3cret" not in shown + environment
    finally:
        server.stop()


def test_without_the_token_health_says_versions_and_no_names(task: Path) -> None:
    with TestClient(create_serving(str(task), token="secret"), base_url="http://10.0.0.1") as client:
        told = client.get("/health").json()
        assert told == {"status": "ok", "version": __version__, **versions_in(task)}
        assert told["model"] == DEFAULT_MODEL
        assert re.fullmatch("[0-9a-f]{40}", told["task"])
        assert client.get("/metrics").status_code == 401
        known = client.get("/health", headers={"Authorization": "Bearer secret"}).json()
        assert known["classes"] == ["panda", "pizza", "sunflower", "watch"]


@pytest.fixture(scope="module")
def studio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    app = create_studio(tmp_path_factory.mktemp("rude") / "project", DEFAULT_MODEL)
    with TestClient(app, base_url="http://127.0.0.1", raise_server_exceptions=False) as client:
        yield client


def form(charset: str, name: bytes = b"a.png") -> dict[str, Any]:
    body = b'--x\r\nContent-Disposition: form-data; name="files"; filename="' + name + b'"\r\n\r\nx\r\n--x--\r\n'
    return {"content": body, "headers": {"Content-Type": f"multipart/form-data; boundary=x{charset}"}}


JSON = {"headers": {"Content-Type": "application/json"}}
REQUESTS: list[tuple[str, str, dict[str, Any]]] = [
    ("POST", "/api/classes", {"content": b'{"name": NaN}', **JSON}),
    ("POST", "/api/classes", {"content": b'{"name": "\\ud800"}', **JSON}),
    ("POST", "/api/classes", {"content": b'{"name": "\\ud800cats\\udfff"}', **JSON}),
    ("POST", "/api/classes", {"content": b'{"name": [Infinity, "\\ud800"]}', **JSON}),
    ("POST", "/api/classes", {"content": b"[" * 100_000, **JSON}),
    ("POST", "/api/classes", {"content": b"\xff\xfe", **JSON}),
    ("PATCH", "/api/classes/%00", {"json": {"name": "a"}}),
    ("PATCH", "/api/images", {"content": b'{"images": ["\\ud800"], "place": "\\ud800"}', **JSON}),
    ("PATCH", "/api/project", {"content": b'{"name": "\\udfff"}', **JSON}),
    ("DELETE", "/api/images", {"content": b'{"images": NaN}', **JSON}),
    ("GET", "/api/images/%00", {}),
    ("GET", "/api/images/%ed%a0%80", {}),
    ("GET", "/static/%00", {}),
    ("GET", "/static/" + "a" * 400, {}),
    ("GET", "/static/%ed%a0%80", {}),
    ("GET", "/static/index.html", {"headers": {"Range": "bytes=" + "0-1," * 2000 + "5-6"}}),
    ("GET", "/api/state?since=%ff%00", {}),
    ("GET", "/api/export/%00", {}),
    ("POST", "/predict", form("; charset=unicode_escape", b"\\ud800")),
    ("POST", "/predict", form("; charset=idna", b"\xff")),
    ("POST", "/predict", form("; charset=undefined")),
    ("POST", "/predict", form("", b"\xed\xa0\x80")),
    ("POST", "/predict", {"content": b"no form", "headers": {"Content-Type": "multipart/form-data; boundary=x"}}),
    ("POST", "/predict", {"content": b"", "headers": {"Content-Type": "multipart/form-data"}}),
    (
        "POST",
        "/predict",
        {"content": b"", "headers": {"Content-Type": "multipart/form-data; boundary=" + "x" * 999}},
    ),
    ("POST", "/api/images", form("; charset=utf_7")),
    ("POST", "/api/images", form("")),
    *(
        ("POST", path, {"json": {key: folder}})
        for path, key in (("/api/answers", "folder"), ("/api/answers/sort", "into"))
        for folder in ("\0", "/\0", "~nobody-of-that-name/x", "/" + "a" * 5000, "", "/dev/null", "/\u00e9")
    ),
    *(
        ("POST", "/api/answers/files", {"files": {"files": (name, b"x")}})
        for name in ("..", "a" * 300, "a/../../b")
    ),
    *(
        ("POST", "/api/answers/files", {"data": {"paths": [path]}, "files": {"files": ("a.png", b"x")}})
        for path in ("/", ".", "..", "\N{GRINNING FACE}" * 200, "con/nul", "\\")
    ),
    ("POST", "/api/import", {"content": b"PK" + b"\xff" * 100}),
]


@pytest.mark.parametrize(
    "request_", REQUESTS, ids=lambda r: f"{r[0]} {r[1][:20]} {r[2].get('content', b'')[:30]!r}"
)
def test_no_request_breaks_the_studio(studio: TestClient, request_: tuple[str, str, dict[str, Any]]) -> None:
    method, path, options = request_
    answer = studio.request(method, path, **options)
    assert answer.status_code < 500, answer.text
    assert studio.get("/api/state").status_code == 200
