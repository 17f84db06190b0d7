"""HTTP as uvicorn speaks it, with an end to headers that are too long or come too slowly."""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from floodmark.service._limits import ServiceLimits


def protocol_for(limits: ServiceLimits) -> type[asyncio.Protocol]:
    """Return the protocol of a service with these limits."""

    class GuardedProtocol(_Guarded):
        held = limits

    return GuardedProtocol


class _Guarded(HttpToolsProtocol):
    """Cuts a connection whose request does not get to the end of its headers."""

    held: ServiceLimits

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._timer: asyncio.TimerHandle | None = None
        self._unread = 0
        self._in_body = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._in_body:
            super().data_received(data)
            return
        self._unread += len(data)
        super().data_received(data)
        if self._in_body or self._unread == 0 or self.transport.is_closing():
            return
        if self._unread > self.held.max_header:
            self.send_400_response("The headers are too long.")
        elif self._timer is None:
            # Most requests come in one piece, and need no timer.
            self._expect_headers()

    def on_headers_complete(self) -> None:
        self._stop_timer()
        self._in_body = True
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._in_body, self._unread = False, 0
        super().on_message_complete()

    def _expect_headers(self) -> None:
        self._timer = self.loop.call_later(self.held.header_seconds, self._too_slow)

    def _too_slow(self) -> None:
        self._timer = None
        if not self.transport.is_closing():
            self.transport.close()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
