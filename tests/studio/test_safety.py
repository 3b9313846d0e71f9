"""Who may ask, and how much."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fastapi import FastAPI, Request
from fastapi.testclient import TestClient

from cnaps.serving.safety import Guard


def client(token: str | None = None, **options: object) -> TestClient:
    app = FastAPI()
    app.add_middleware(Guard, token=token, max_body=1000)

    @app.api_route("/", methods=["GET", "POST"])
    async def root(request: Request) -> int:
        return len(await request.body())

    @app.get("/health")
    def health() -> str:
        return "ok"

    return TestClient(app, base_url="http://127.0.0.1:8765", follow_redirects=False, **options)  # type: ignore[arg-type]


def test_the_page_itself_may_ask() -> None:
    headers = {"Origin": "http://127.0.0.1:8765", "Sec-Fetch-Site": "same-origin"}
    assert client().post("/", headers=headers).status_code == 200


@pytest.mark.parametrize("headers", [
    {"Origin": "https://evil.example"},
    {"Origin": "null"},
    {"Origin": "http://127.0.0.1:9999"},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
])  # fmt: skip
def test_other_pages_are_refused(headers: dict[str, str]) -> None:
    assert client().post("/", headers=headers).status_code == 403
    assert client().get("/", headers=headers).status_code == 403


def test_a_link_from_elsewhere_opens_the_page() -> None:
    headers = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    assert client().get("/", headers=headers).status_code == 200
    assert client().get("/", headers={**headers, "Sec-Fetch-Dest": "iframe"}).status_code == 403


def test_a_name_that_only_resolves_to_loopback_is_refused() -> None:
    assert client().get("/", headers={"Host": "rebound.example:8765"}).status_code == 421
    assert client().get("/", headers={"Host": "localhost:1"}).status_code == 200


def test_beyond_loopback_the_token_is_needed() -> None:
    guarded = client("secret")
    assert guarded.get("/").status_code == 401
    assert guarded.get("/?token=wrong").status_code == 401
    assert guarded.get("/", headers={"Authorization": "Bearer wrong"}).status_code == 401
    assert guarded.get("/", headers={"Authorization": "Bearer secret"}).status_code == 200
    assert guarded.get("/health").status_code == 200


def test_the_token_in_the_address_becomes_a_cookie() -> None:
    guarded = client("secret")
    answer = guarded.get("/?token=secret")
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    assert "HttpOnly" in answer.headers["set-cookie"]
    assert "SameSite=strict" in answer.headers["set-cookie"]
    assert guarded.get("/").status_code == 200


def test_a_body_beyond_the_limit_is_refused_whether_or_not_it_says_so() -> None:
    def pieces() -> Iterator[bytes]:
        for _ in range(20):
            yield b"x" * 100

    assert client().post("/", content=b"x" * 2000).status_code == 413
    assert client().post("/", content=pieces()).status_code == 413
    assert client().post("/", content=b"x" * 900).json() == 900


def test_answers_forbid_foreign_content() -> None:
    headers = client().get("/").headers
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
