"""A socket, and a thread in which an application answers what comes there."""

import asyncio
import socket
import ssl
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import uvicorn

from floodmark.errors import InvalidOption, ServiceNotStarted
from floodmark.service._limits import ServiceLimits
from floodmark.service._protocol import protocol_for

Address = tuple[socket.AddressFamily, tuple[str, int]]
_START_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True)
class Tls:
    """The certificate of a service, with those that lead up to it, and its key: two PEM files."""

    certificate: Path
    key: Path


class Listener:
    """Answers requests from its beginning to its end, in a thread of its own."""

    __slots__ = ("_server", "_socket", "_thread", "url")

    def __init__(self, app: Any, address: Address, limits: ServiceLimits, tls: Tls | None = None) -> None:
        """Listen, and return when requests are answered."""
        check_tls(tls)
        self._socket = _bound(*address)
        host, port = self._socket.getsockname()[:2]
        self.url = f"{'http' if tls is None else 'https'}://{f'[{host}]' if ':' in host else host}:{port}"
        """Where it listens."""
        self._server = _Server(
            uvicorn.Config(
                app,
                interface="asgi3",
                http=protocol_for(limits),
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                # What a proxy says of who is behind it is not believed.
                proxy_headers=False,
                server_header=False,
                limit_concurrency=limits.max_connections,
                timeout_keep_alive=int(limits.keep_alive_seconds),
                timeout_graceful_shutdown=int(limits.stop_seconds),
                ssl_certfile=None if tls is None else str(tls.certificate),
                ssl_keyfile=None if tls is None else str(tls.key),
            )
        )
        self._thread = threading.Thread(
            target=self._server.run, args=([self._socket],), name="floodmark service", daemon=True
        )
        self._thread.start()
        give_up = time.monotonic() + _START_SECONDS
        while not self._server.started:
            if not self._thread.is_alive() or time.monotonic() > give_up:
                self.stop()
                raise _not_started(host, port, "it ended at once")
            time.sleep(0.002)

    def stop(self) -> None:
        """Listen no more, let requests that are under way come to their end, and end."""
        self._server.should_exit = True
        self._thread.join()
        self._socket.close()


class _Server(uvicorn.Server):
    """Cuts, at its end, the connections that have taken longer than they had."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await super().shutdown(sockets)
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        # Until the loop has let go of them.
        await asyncio.sleep(0)


def address_of(host: str, port: int) -> Address:
    """Return the one address that a host stands for: it is looked up once, and judged by what was found.

    >>> address_of("127.0.0.1", 8787)[1]
    ('127.0.0.1', 8787)
    """
    if not 0 <= port <= 65_535:
        # What is looked up would be another port, without a word.
        raise _not_started(host, port, "there is no such port")
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, OverflowError, UnicodeError) as error:
        raise _not_started(host, port, str(error)) from error
    family, _, _, _, address = found[0]
    return family, (str(address[0]), int(address[1]))


def check_tls(tls: Tls | None) -> None:
    """Refuse a certificate that cannot be used."""
    if tls is None:
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(tls.certificate, tls.key)
    except OSError as error:
        raise InvalidOption(
            f"The certificate {tls.certificate} or its key {tls.key} cannot be used: {error}.",
            rule="They are PEM files that belong together, and this user may read them.",
            remedy="Check --tls-cert and --tls-key.",
            option="tls",
        ) from error


def _bound(family: socket.AddressFamily, address: tuple[str, int]) -> socket.socket:
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        bound.bind(address)
    except (OSError, OverflowError) as error:
        bound.close()
        raise _not_started(address[0], address[1], str(error)) from error
    return bound


def _not_started(host: str, port: int, why: str) -> ServiceNotStarted:
    return ServiceNotStarted(
        f"The service cannot listen at {host}:{port}: {why}.",
        rule="It listens at an address of this machine, on a port that nothing else uses.",
        remedy="Choose another port, or end what uses it.",
        host=host,
        port=port,
    )
