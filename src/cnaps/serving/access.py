"""The access log: a line for each request, without what was sent and without the token."""

from __future__ import annotations

import json
import sys
import time
from datetime import UTC, datetime
from typing import TextIO

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cnaps.files import shown


class AccessLog:
    """Around everything else, so that refused requests are in it too.

    Neither the query of an address nor any header is written: either may hold the token. As `json` a line is an
    object of its own.
    """

    def __init__(self, app: ASGIApp, *, style: str, file: TextIO | None = None) -> None:
        self.app, self._json, self._file = app, style == "json", file

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on, and write the line when the answer is complete or given up."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begun, status, size = time.perf_counter(), 0, 0

        async def counted(message: Message) -> None:
            nonlocal status, size
            if message["type"] == "http.response.start":
                status = message["status"]
            size += len(message.get("body", b""))
            await send(message)

        try:
            await self.app(scope, receive, counted)
        finally:
            self._write(scope, status, size, time.perf_counter() - begun)

    def _write(self, scope: Scope, status: int, size: int, seconds: float) -> None:
        about = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "client": (scope.get("client") or ("-",))[0],
            "method": scope["method"],
            "path": shown(scope["path"])[:500],
            "status": status,  # 0: nobody waited for the answer
            "bytes": size,
            "milliseconds": round(1000 * seconds, 1),
        }
        line = json.dumps(about) if self._json else " ".join(map(str, about.values()))
        print(line, file=self._file or sys.stderr, flush=True)
