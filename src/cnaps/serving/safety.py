"""What stands between the network and the server: who may ask, from which page, and how much at once."""

from __future__ import annotations

import asyncio
import base64
import re
import secrets
from collections.abc import Mapping
from urllib.parse import SplitResult, parse_qs, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK = ("127.0.0.1", "localhost", "::1")
COOKIE = "cnaps_token"
KNOWN = "cnaps.known"  # in the scope of a request: whether it has the token, if one is needed
UPLOAD = 100_000_000  # bytes of a request with images
IN_FLIGHT = 300_000_000  # bytes of all requests that are being answered
_BODY = 1_000_000  # bytes of any other request
_SILENCE = 30.0  # seconds until the next piece of a body
_PACE = 20_000  # bytes a second: whoever is slower is not waited for
_UPLOADS = ("/predict", "/api/images", "/api/answers/files", "/label-studio/train")
_PAGES = ("/", "/docs")  # where a link from elsewhere may lead
_CHARSETS = ("utf-8", "utf8", "us-ascii", "ascii")
_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' blob: data:; object-src 'none'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Refused(Exception):
    """The rest of a request's body is not read."""


class Guard:
    """Refuses requests of other web pages, of strangers without the token, and more than can be held.

    Without a token only loopback names are answered, so that a page elsewhere cannot come in by a name of its
    own that resolves to this machine. A body is limited, and so are those of all requests together; `to_disk` has
    the limits of paths whose bodies are written to the disk as they come. One that comes too slowly is given up.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        token: str | None = None,
        upload: int = UPLOAD,
        in_flight: int = IN_FLIGHT,
        silence: float = _SILENCE,
        to_disk: Mapping[str, int] | None = None,
    ) -> None:
        self.app, self.token, self.upload = app, token, upload
        self.in_flight, self.silence, self.to_disk = in_flight, silence, to_disk or {}
        self.held = 0  # bytes of requests that are being answered

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer or pass on."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        limit = self._limit(scope)
        refusal = self._foreign(headers, scope) or self._stranger(headers, scope) or _unreadable(headers, limit)
        if refusal is not None:
            await refusal(scope, receive, send)
            return
        scope[KNOWN] = self._knows(headers)
        await _Request(self, limit, scope["path"] not in self.to_disk, receive, send).answer(scope)

    def _limit(self, scope: Scope) -> int:
        path: str = scope["path"]
        if path in self.to_disk:
            return self.to_disk[path]
        return self.upload if scope["method"] == "POST" and path.endswith(_UPLOADS) else _BODY

    def _foreign(self, headers: Headers, scope: Scope) -> Response | None:
        host = headers.get("host", "")
        if self.token is None and _split(f"//{host}").hostname not in LOOPBACK:
            return _refuse(421, "this server answers to loopback names only")
        refused = _refuse(403, "requests from other web pages are refused")
        origin, referer = headers.get("origin"), headers.get("referer")
        if origin is not None and _split(origin).netloc != host:
            return refused
        link = scope["method"] == "GET" and scope["path"] in _PAGES
        site = headers.get("sec-fetch-site", "none")
        if site not in ("none", "same-origin"):
            kind = headers.get("sec-fetch-mode"), headers.get("sec-fetch-dest")
            return None if link and kind == ("navigate", "document") else refused
        return None if link or referer is None or _split(referer).netloc == host else refused

    def _stranger(self, headers: Headers, scope: Scope) -> Response | None:
        if self.token is None or scope["path"] == "/health":
            return None
        asked = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        if scope["path"] == "/" and self._fits(asked):
            # a cookie for this site alone goes with no redirection of a link from elsewhere, but with a new page
            again = '<meta http-equiv="refresh" content="0; url=/">'
            linked = headers.get("sec-fetch-site", "none") not in ("none", "same-origin")
            response: Response = HTMLResponse(again) if linked else RedirectResponse("/", 303)
            response.set_cookie(COOKIE, asked, httponly=True, samesite="strict")
            return response
        if self._knows(headers):
            return None
        return _refuse(401, "a token is needed: open the address that the server printed, or send it as Bearer")

    def _knows(self, headers: Headers) -> bool:
        pairs = (part.strip().partition("=") for part in headers.get("cookie", "").split(";"))
        offered = [value.strip('"') for name, _, value in pairs if name == COOKIE]
        kind, _, given = headers.get("authorization", "").partition(" ")
        offered.append(_password(given) if kind == "Basic" else given if kind == "Bearer" else kind)
        return self.token is None or any(self._fits(token) for token in offered)

    def _fits(self, token: str) -> bool:
        return secrets.compare_digest(token.encode(errors="replace"), (self.token or "").encode())


class _Request:
    """A request that is being answered: its body is counted, and its answer gets the headers of every answer."""

    def __init__(self, guard: Guard, limit: int, in_memory: bool, receive: Receive, send: Send) -> None:
        self._guard, self._limit, self._in_memory = guard, limit, in_memory
        self._receive, self._send = receive, send
        self._taken, self._whole, self._started = 0, False, False
        self._begun = asyncio.get_running_loop().time()
        self._refusal: Response | None = None

    async def answer(self, scope: Scope) -> None:
        """Pass on, unless the body turns out to be refused."""
        try:
            await self._guard.app(scope, self._counted, self._shielded)
        except Refused:
            pass
        finally:
            self._guard.held -= self._taken if self._in_memory else 0
        if self._refusal is not None and not self._started:
            await self._refusal(scope, self._receive, self._send)

    async def _counted(self) -> Message:
        if self._whole:  # now it is about whether the client is still there
            return await self._receive()
        try:
            message = await asyncio.wait_for(self._receive(), self._guard.silence)
        except TimeoutError:
            self._refuse(408, "the rest of the request did not come")
        size = len(message.get("body", b""))
        self._whole = not message.get("more_body", False)
        self._taken += size
        self._guard.held += size if self._in_memory else 0
        seconds = asyncio.get_running_loop().time() - self._begun
        if self._taken > self._limit:
            self._refuse(413, f"more than {self._limit:,} bytes in one request")
        if self._guard.held > self._guard.in_flight:
            self._refuse(503, "too much is being sent at once")
        if seconds > 4 * self._guard.silence + self._taken / _PACE:
            self._refuse(408, "the request comes too slowly")
        return message

    def _refuse(self, status: int, reason: str) -> None:
        self._refusal = _refuse(status, reason)
        raise Refused

    async def _shielded(self, message: Message) -> None:
        if self._refusal is not None:
            return  # whatever the application made of a body that was cut off
        if message["type"] == "http.response.start":
            self._started = True
            found = MutableHeaders(scope=message)
            for name, value in _HEADERS.items():
                found.setdefault(name, value)
        await self._send(message)


def shown(name: str) -> str:
    """The name of a file from outside, for showing only: its last part, printable."""
    last = re.split(r"[/\\]", name)[-1]
    return "".join(c for c in last if c.isprintable())[-120:] or "image"


def _password(given: str) -> str:
    """Of basic authentication, which some programs know alone; the user may be anybody."""
    try:
        return base64.b64decode(given, validate=True).decode().partition(":")[2]
    except ValueError:
        return ""


def _unreadable(headers: Headers, limit: int) -> Response | None:
    length = headers.get("content-length", "0")
    if not re.fullmatch("[0-9]{1,18}", length) or int(length) > limit:
        return _refuse(413, f"more than {limit:,} bytes in one request")
    charset = re.search(r"charset\s*=\s*\"?([^\s\";]*)", headers.get("content-type", ""), re.IGNORECASE)
    if charset and charset[1].lower() not in _CHARSETS:
        return _refuse(415, "text is sent as UTF-8")
    return None


def _split(address: str) -> SplitResult:
    try:
        return urlsplit(address)
    except ValueError:
        return urlsplit("")


def _refuse(status: int, reason: str) -> Response:
    headers = {"Connection": "close"}  # what is still being sent is not read
    if status == 503:
        headers["Retry-After"] = "1"
    return PlainTextResponse(f"{reason}\n", status, headers)
