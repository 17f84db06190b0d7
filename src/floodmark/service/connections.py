"""HTTP connections: a client that stops half-way, or sends or reads too slowly, loses its connection."""

import asyncio
from dataclasses import dataclass
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from floodmark._util.system import unacknowledged_bytes
from floodmark.service.context import ServiceLimits


@dataclass(slots=True)
class Pace:
    """Judges whether a client keeps up while the service waits for it to send or to read.

    In every `seconds` that the service waits, the client moves at least `rate` bytes a second.

    >>> pace = Pace(seconds=30, rate=1_000)
    >>> pace.is_too_slow(waited=20, moved=0), pace.is_too_slow(waited=20, moved=50_000)
    (False, False)
    >>> pace.is_too_slow(waited=30, moved=29_999)
    True
    """

    seconds: float
    rate: float
    _waited: float = 0.0
    _moved: int = 0

    @property
    def seconds_left(self) -> float:
        """Until when the client may move nothing before it is judged."""
        return self.seconds - self._waited

    def is_too_slow(self, waited: float, moved: int) -> bool:
        """Return whether the client is too slow, after it was waited for and has moved so many bytes."""
        self._waited += waited
        self._moved += moved
        if self._waited < self.seconds:
            return False
        is_slow = self._moved < self.rate * self._waited
        self._waited, self._moved = 0.0, 0
        return is_slow


def connection_class(limits: ServiceLimits) -> type["Connection"]:
    """Return the protocol class of connections with these limits."""

    class LimitedConnection(Connection):
        service_limits = limits

    return LimitedConnection


class Connection(HttpToolsProtocol):
    """One connection of a client. The server calls `check` several times a second.

    An answer that is sent before the body of its request has ended closes the connection. When there are more
    connections than the service allows, the one whose client has been silent for longest is closed.
    """

    service_limits: ServiceLimits

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._socket: Any = None
        # When the head of a request began to arrive, or a connection without any request was made.
        self._head_since: float | None = None
        self._is_in_head = False
        self._unread = 0
        self._is_in_body = False
        # Whether the client wants to go on using the connection after the request that is being received.
        self._keeps_alive = False
        self._active_at = 0.0
        self._closing_at: float | None = None
        self._checked_at = 0.0
        self._written = 0
        self._unsent = 0
        self._pace = Pace(self.service_limits.send_seconds, self.service_limits.min_rate)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request, and close silent connections if there are too many."""
        self._socket = transport
        self._head_since = self._active_at = self._checked_at = self.loop.time()
        self._make_room()
        super().connection_made(cast("asyncio.Transport", _OrderlyTransport(self)))

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self._is_in_body = False
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse data of the client, or throw it away once the connection is closed."""
        if self._closing_at is not None:
            return
        self._active_at = self.loop.time()
        if self._is_in_body:
            super().data_received(data)
        else:
            self._unread += len(data)
            super().data_received(data)
        if self._is_in_body or self._closing_at is not None or not (self._unread or self._is_in_head):
            return
        if self._unread > self.service_limits.max_header:
            self.send_400_response("The headers are too long.")
        elif self._head_since is None:
            self._head_since = self._active_at

    def on_message_begin(self) -> None:
        """Begin the head of a request."""
        self._is_in_head = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Begin the body. Until it has ended, the connection cannot be used for another request."""
        self._is_in_head, self._is_in_body = False, True
        self._head_since = None
        super().on_headers_complete()
        self._keeps_alive, self.cycle.keep_alive = self.cycle.keep_alive, False

    def on_message_complete(self) -> None:
        """End the request."""
        self._is_in_body, self._unread = False, 0
        if not self.cycle.response_started:
            self.cycle.keep_alive = self._keeps_alive
        super().on_message_complete()

    def shutdown(self) -> None:
        """Close the connection after the request in progress."""
        self._keeps_alive = False
        if self._closing_at is None:
            super().shutdown()
        else:
            self._socket.abort()

    def check(self, now: float) -> None:
        """Close the connection if the client is too slow."""
        limits = self.service_limits
        is_reading = self._check_reading(now)
        if self._closing_at is not None:
            if not is_reading and now - self._closing_at > limits.close_seconds:
                self._socket.abort()
        elif self._head_since is not None and now - self._head_since > limits.header_seconds:
            self.close()

    def write(self, data: bytes) -> None:
        """Send data, unless the connection is lost."""
        if not self._socket.is_closing():
            self._written += len(data)
            self._socket.write(data)

    def close(self) -> None:
        """Close the connection as soon as everything is sent.

        To close a socket with unread input resets the connection, and the client may lose an answer that it has not
        read yet. Inside of a body only the sending side is closed, and what the client still sends is thrown away.
        """
        if self._closing_at is None:
            self._closing_at = self.loop.time()
        if not self._is_in_body:
            self._socket.close()
        elif self._socket.can_write_eof():
            self._socket.write_eof()
            self.flow.resume_reading()

    @property
    def is_closing(self) -> bool:
        """Whether it is closed, or about to be."""
        return self._closing_at is not None or bool(self._socket.is_closing())

    @property
    def silent_since(self) -> float | None:
        """When the client last sent or read something; None while the service works on its request."""
        is_waiting = self.cycle is None or self.cycle.response_complete or self._is_in_body or self.flow.write_paused
        return self._active_at if is_waiting else None

    def _check_reading(self, now: float) -> bool:
        """Return whether the client has an answer to read; abort the connection if it reads too slowly."""
        waited, self._checked_at = now - self._checked_at, now
        waiting: int = self._socket.get_write_buffer_size()
        unsent = waiting + unacknowledged_bytes(self._socket.get_extra_info("socket")) if waiting else 0
        moved = max(0, self._unsent + self._written - unsent)
        self._unsent, self._written = unsent, 0
        if moved:
            self._active_at = now
        if not waiting:
            self._pace = Pace(self.service_limits.send_seconds, self.service_limits.min_rate)
        elif self._pace.is_too_slow(waited, moved):
            self._socket.abort()
        return waiting > 0

    def _make_room(self) -> None:
        """Close the connections whose clients have been silent for longest, until there is room for this one."""
        excess = len(self.connections) + 1 - self.service_limits.max_connections
        if excess <= 0:
            return
        others = cast("list[Connection]", list(self.connections))
        silent = [(since, other) for other in others if (since := other.silent_since) is not None]
        for _, other in sorted(silent, key=lambda pair: pair[0])[:excess]:
            self.connections.discard(other)
            other._socket.abort()


class _OrderlyTransport:
    """The transport of a connection, as uvicorn uses it: written and closed by way of the connection."""

    __slots__ = ("_connection",)

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def write(self, data: bytes) -> None:
        self._connection.write(data)

    def close(self) -> None:
        self._connection.close()

    def is_closing(self) -> bool:
        return self._connection.is_closing

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection._socket, name)
