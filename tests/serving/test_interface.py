"""The servers against their own description: whatever fits it, or does not, is answered without a failure."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from hypothesis.internal.conjecture import providers

schemathesis = pytest.importorskip("schemathesis")
requests = pytest.importorskip("requests")

from cnaps.serving.app import create_serving  # noqa: E402
from cnaps.studio.server import create_studio  # noqa: E402
from cnaps.weights import DEFAULT_MODEL  # noqa: E402

EXAMPLES = 20  # of each operation, and as many that do not fit the description
ADDRESS = "http://127.0.0.1"


@pytest.fixture(params=["task", "folder", "studio"])
def app(request: pytest.FixtureRequest, task: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FastAPI:
    if request.param == "studio":
        include = FastAPI.include_router  # the page's own interface as well
        monkeypatch.setattr(FastAPI, "include_router", lambda self, router, **hidden: include(self, router))
        return create_studio(tmp_path / "project", DEFAULT_MODEL)
    (tmp_path / "tasks").mkdir()
    shutil.copy(task, tmp_path / "tasks" / "things.task")
    return create_serving(str(task if request.param == "task" else tmp_path / "tasks"))


@pytest.fixture
def same_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same requests every time: Hypothesis would try the constants of whatever modules are loaded by then."""
    monkeypatch.setattr(providers, "_get_local_constants", providers.Constants)
    monkeypatch.setattr(providers, "CONSTANTS_CACHE", type(providers.CONSTANTS_CACHE)(1024))
    for place in ("urllib3.filepost", "schemathesis.transport.requests"):
        monkeypatch.setattr(f"{place}.choose_boundary", lambda: "boundary")


@pytest.mark.usefixtures("same_requests")
def test_no_request_made_from_the_description_breaks_a_server(app: FastAPI) -> None:
    schema = schemathesis.openapi.from_dict(app.openapi())
    answers: dict[str, set[int]] = {}
    with TestClient(app, base_url=ADDRESS, raise_server_exceptions=False) as client:

        def ask(case: Any) -> None:
            sent = requests.Request(**case.as_transport_kwargs(base_url=ADDRESS)).prepare()
            del sent.headers["X-Schemathesis-TestCaseId"]  # drawn by chance
            headers = {name: value.encode() for name, value in sent.headers.items() if isinstance(value, str)}
            answer = client.request(sent.method, sent.url, headers=headers, content=sent.body)
            answers.setdefault(case.operation.label, set()).add(answer.status_code)
            assert answer.status_code < 500, f"{sent.method} {sent.url} {sent.body!r}"

        check = settings(
            max_examples=EXAMPLES,
            deadline=None,
            derandomize=True,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        for found in schema.get_all_operations():
            operation = found.ok()
            check(given(operation.as_strategy())(ask))()
            if "{name}" in operation.path:
                check(given(operation.as_strategy(path_parameters={"name": "things.task"}))(ask))()
            if operation.body or operation.query or operation.path_parameters:
                with contextlib.suppress(Unsatisfiable):  # whatever is text fits what takes any text
                    check(
                        given(operation.as_strategy(generation_mode=schemathesis.GenerationMode.NEGATIVE))(ask)
                    )()
    assert any(label.endswith("/predict") for label in answers)
    assert any("/api/images" in label for label in answers) == hasattr(app.state, "engine")
    assert {status for found in answers.values() for status in found} >= {200, 422}
