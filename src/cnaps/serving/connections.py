"""Connections that stay silent are closed, and there are never too many."""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

CONNECTIONS = 250  # at once; beyond it clients are told to come again
SECONDS = 15.0  # for the headers of a request


class TimedProtocol(H11Protocol):
    """HTTP with a time limit on headers: uvicorn waits for them for ever."""

    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait."""
        super().connection_made(transport)
        if len(self.connections) > 2 * CONNECTIONS:
            transport.abort()
        self._late = self.loop.call_later(SECONDS, self._give_up)

    def data_received(self, data: bytes) -> None:
        """Go on waiting for headers, or stop when they are there."""
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._stop_waiting()
        elif self._late is None:
            self._late = self.loop.call_later(SECONDS, self._give_up)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._stop_waiting()
        super().connection_lost(exc)

    def _stop_waiting(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _give_up(self) -> None:
        self._late = None
        if self.conn.their_state is h11.IDLE and (self.cycle is None or self.cycle.response_complete):
            self.transport.close()


def uvicorn_settings(seconds_to_finish: int) -> dict[str, Any]:
    """What uvicorn is told by every server here."""
    return {
        "http": TimedProtocol,
        "limit_concurrency": CONNECTIONS,
        "log_level": "error",  # uvicorn warns about every odd request
        "timeout_graceful_shutdown": seconds_to_finish,
    }
