"""What those who run a server see of it: its log and its histograms."""

from __future__ import annotations

import asyncio
import io
import json
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from cnaps.serving.access import AccessLog
from cnaps.serving.app import create_serving
from cnaps.serving.metrics import Metrics


def lines_of(task: Path, capsys: pytest.CaptureFixture[str], style: str | None) -> list[str]:
    app = create_serving(str(task), token="t0ps3cret", access_log=style)
    with TestClient(app, base_url="http://10.0.0.1", follow_redirects=False) as client:
        client.get("/?token=t0ps3cret")
        client.get(
            "/metrics", headers={"Authorization": "Bearer t0ps3cret", "Referer": "http://10.0.0.1/t0ps3cret"}
        )
        client.get("/metrics%1b[2J")
    return capsys.readouterr().err.splitlines()


def test_there_is_no_access_log_unless_it_is_asked_for(task: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert lines_of(task, capsys, None) == []


@pytest.mark.parametrize("style", ["text", "json"])
def test_the_access_log_has_every_request_and_never_the_token(
    style: str, task: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = lines_of(task, capsys, style)
    assert len(lines) == 3
    assert "t0ps3cret" not in "".join(lines)
    assert "\x1b" not in "".join(lines)
    if style == "json":
        found = [json.loads(line) for line in lines]
        assert [(entry["path"], entry["status"]) for entry in found[:2]] == [("/", 303), ("/metrics", 200)]
        assert found[1]["bytes"] > 1000
        assert found[1]["milliseconds"] > 0
    else:
        assert " GET /metrics 200 " in lines[1]


def test_a_request_that_breaks_down_is_in_the_log_too() -> None:
    async def broken(*_: object) -> None:
        raise RuntimeError

    file = io.StringIO()
    scope = {"type": "http", "method": "GET", "path": "/x", "client": None}
    with pytest.raises(RuntimeError):
        asyncio.run(AccessLog(broken, style="json", file=file)(scope, None, None))  # type: ignore[arg-type]
    assert json.loads(file.getvalue())["status"] == 0


def test_histograms_add_up_over_processes(tmp_path: Path) -> None:
    own = Metrics(tmp_path)
    for value in (0.01, 0.02, 99.0):
        own.observe("request_seconds", value)
    (tmp_path / "1.counts").write_bytes((next(tmp_path.glob("*.counts"))).read_bytes())  # another one, alike
    lines = dict(line.rsplit(" ", 1) for line in own.text().splitlines() if not line.startswith("#"))
    assert lines['cnaps_request_seconds_bucket{le="0.01"}'] == "2", "a bound belongs to its bucket"
    assert lines['cnaps_request_seconds_bucket{le="0.025"}'] == "4"
    assert lines['cnaps_request_seconds_bucket{le="30"}'] == "4"
    assert lines['cnaps_request_seconds_bucket{le="+Inf"}'] == lines["cnaps_request_seconds_count"] == "6"
    assert float(lines["cnaps_request_seconds_sum"]) == pytest.approx(198.06)


def test_a_request_for_predictions_is_in_the_histograms(task: Path, pictures: dict[str, list[Path]]) -> None:
    with TestClient(create_serving(str(task)), base_url="http://127.0.0.1") as client:
        assert client.post("/predict", content=pictures["panda"][9].read_bytes()).is_success
        text = client.get("/metrics").text
    for name in ("request_seconds", "decoding_seconds", "batch_seconds", "batch_images"):
        assert f"# TYPE cnaps_{name} histogram" in text
        assert f"cnaps_{name}_count 1\n" in text
