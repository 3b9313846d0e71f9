"""Who may ask, and how much."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import FastAPI, Request
from fastapi.testclient import TestClient
from starlette.types import Message, Receive, Scope, Send

from cnaps.serving.safety import Guard


def client(token: str | None = None, **limits: Any) -> TestClient:
    app = FastAPI()
    app.add_middleware(Guard, token=token, **{"upload": 1000, **limits})

    @app.api_route("/", methods=["GET", "POST"])
    @app.post("/predict")
    async def root(request: Request) -> int:
        return len(await request.body())

    @app.get("/api/export/project")
    def export() -> str:
        return "all"

    @app.get("/health")
    def health() -> str:
        return "ok"

    return TestClient(app, base_url="http://127.0.0.1:8765", follow_redirects=False)


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


@pytest.mark.parametrize("headers", [
    {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"},
    {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"},
    {"Referer": "https://evil.example/page"},
    {"Referer": "http://["},
])  # fmt: skip
def test_a_link_from_elsewhere_leads_to_the_page_only(headers: dict[str, str]) -> None:
    assert client().get("/api/export/project", headers=headers).status_code == 403
    own = {"Sec-Fetch-Site": "same-origin", "Referer": "http://127.0.0.1:8765/"}
    assert client().get("/api/export/project", headers=own).status_code == 200
    assert client().get("/api/export/project").status_code == 200, "a program, or an address typed by hand"


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


def test_a_link_from_elsewhere_with_the_token_leads_in_by_a_page_of_our_own() -> None:
    """A browser sends a strict cookie with no redirection that another page began."""
    headers = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    answer = client("secret").get("/?token=secret", headers=headers)
    assert (answer.status_code, "refresh" in answer.text) == (200, True)
    assert "SameSite=strict" in answer.headers["set-cookie"]


def test_a_body_beyond_the_limit_is_refused_whether_or_not_it_says_so() -> None:
    def pieces() -> Iterator[bytes]:
        for _ in range(20):
            yield b"x" * 100

    assert client().post("/predict", content=b"x" * 2000).status_code == 413
    assert client().post("/predict", content=pieces()).status_code == 413
    assert client().post("/predict", content=b"x" * 900).json() == 900
    assert client().post("/", content=b"x" * 1_000_001).status_code == 413
    assert client(to_disk={"/predict": 3000}).post("/predict", content=pieces()).json() == 2000


def test_all_requests_together_are_limited_and_what_is_over_is_free_again() -> None:
    guarded = client(in_flight=500)
    refused = guarded.post("/predict", content=b"x" * 900)
    assert (refused.status_code, refused.headers["retry-after"], refused.headers["connection"]) == (
        503,
        "1",
        "close",
    )
    assert [guarded.post("/predict", content=b"x" * 400).json() for _ in range(3)] == [400] * 3


def test_a_body_that_does_not_come_is_not_waited_for() -> None:
    async def silence() -> Message:
        await asyncio.sleep(60)
        raise AssertionError

    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()

    scope = {"type": "http", "method": "POST", "path": "/predict", "headers": [(b"host", b"localhost")]}
    asyncio.run(Guard(app, silence=0.05)(scope, silence, send))
    assert sent[0]["status"] == 408


@pytest.mark.parametrize("headers", [
    {"Host": "["}, {"Host": "[::1"}, {"Origin": "http://["}, {"Referer": "http://["}, {"Cookie": "a/b"},
    {"Cookie": "=;;=a; b=\xff"}, {"Authorization": "Bearer \xff"}, {"Content-Length": "\xb2"},
    {"Content-Type": "multipart/form-data; boundary=x; charset=unicode_escape"}, {"Sec-Fetch-Site": "\xff"},
])  # fmt: skip
@pytest.mark.parametrize("token", [None, "secret"])
def test_odd_headers_are_refused_or_passed_over(headers: dict[str, str], token: str | None) -> None:
    raw = {name: value.encode("latin-1") for name, value in headers.items()}
    assert client(token).post("/", headers=raw).status_code in (200, 401, 403, 413, 415, 421)  # type: ignore[arg-type]


@pytest.mark.parametrize("others", ["a/b=1; ", 'x="; ', "é=ü; ", "odd; ", 'json={"a":[1,2]}; '])
def test_cookies_of_others_do_not_hide_the_token(others: str) -> None:
    cookie = f"{others}cnaps_token=secret".encode("latin-1")
    assert client("secret").get("/", headers={b"Cookie": cookie}).status_code == 200


def test_answers_forbid_foreign_content() -> None:
    headers = client().get("/").headers
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
