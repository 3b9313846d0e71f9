"""What stands between the network and the server: who may ask, from which page, and how much at once."""

from __future__ import annotations

import secrets
from http.cookies import SimpleCookie
from urllib.parse import parse_qs, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK = ("127.0.0.1", "localhost", "::1")
COOKIE = "cnaps_token"
_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' blob: data:; object-src 'none'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class TooLarge(Exception):
    """A request's body went over the limit."""


class Guard:
    """Refuses requests of other web pages, of strangers without the token, and bodies beyond the limit.

    Without a token only loopback names are answered, so that a page elsewhere cannot come in by a name of its
    own that resolves to this machine.
    """

    def __init__(self, app: ASGIApp, *, token: str | None = None, max_body: int = 100_000_000) -> None:
        self.app, self.token, self.max_body = app, token, max_body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer or pass on."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        refusal = self._foreign(headers, scope) or self._stranger(headers, scope) or self._size(headers)
        if refusal is not None:
            await refusal(scope, receive, send)
            return
        taken = 0

        async def counted() -> Message:
            nonlocal taken
            message = await receive()
            taken += len(message.get("body", b""))
            if taken > self.max_body:
                raise TooLarge
            return message

        started = False

        async def shielded(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                found = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    found.setdefault(name, value)
            await send(message)

        try:
            await self.app(scope, counted, shielded)
        except TooLarge:
            if not started:
                await _refuse(413, f"more than {self.max_body:,} bytes in one request")(scope, receive, send)

    def _foreign(self, headers: Headers, scope: Scope) -> Response | None:
        host = headers.get("host", "")
        if self.token is None and (urlsplit(f"//{host}").hostname or "") not in LOOPBACK:
            return _refuse(421, "this server answers to loopback names only")
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc != host:
            return _refuse(403, "requests from other web pages are refused")
        site = headers.get("sec-fetch-site", "none")
        navigation = headers.get("sec-fetch-mode") == "navigate" and scope["method"] == "GET"
        if site not in ("none", "same-origin") and not (
            navigation and headers.get("sec-fetch-dest") == "document"
        ):
            return _refuse(403, "requests from other web pages are refused")
        return None

    def _stranger(self, headers: Headers, scope: Scope) -> Response | None:
        if self.token is None or scope["path"] == "/health":
            return None
        asked = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        if scope["path"] == "/" and self._fits(asked):
            response = RedirectResponse("/", 303)
            response.set_cookie(COOKIE, asked, httponly=True, samesite="strict")
            return response
        cookie = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
        bearer = headers.get("authorization", "").removeprefix("Bearer ")
        if self._fits(bearer) or (cookie is not None and self._fits(cookie.value)):
            return None
        return _refuse(401, "a token is needed: open the address that the server printed, or send it as Bearer")

    def _fits(self, token: str) -> bool:
        return secrets.compare_digest(token.encode(), (self.token or "").encode())

    def _size(self, headers: Headers) -> Response | None:
        length = headers.get("content-length", "0")
        if not length.isdigit() or int(length) > self.max_body:
            return _refuse(413, f"more than {self.max_body:,} bytes in one request")
        return None


def _refuse(status: int, reason: str) -> Response:
    return PlainTextResponse(f"{reason}\n", status)
