"""The running service: as a process (`serve`), in a thread (`Service`), with its socket."""

import asyncio
import logging
import signal
import socket
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Final, cast

import uvicorn

from floodmark._util.system import open_file_limit
from floodmark._util.times import Duration
from floodmark.control import Tokens
from floodmark.errors import InvalidOption, ServiceNotStarted, TokensNeeded
from floodmark.service.access import is_loopback
from floodmark.service.app import App, create_app
from floodmark.service.connections import Connection, connection_class
from floodmark.service.context import ServiceLimits
from floodmark.streams import Controller, StreamHome, connect

_LOG: Final = logging.getLogger("floodmark.service")
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


@dataclass(frozen=True, slots=True)
class Tls:
    """The certificate chain of a service and its key: two PEM files."""

    certificate: Path
    key: Path


def serve(
    home: str | Path | None = None,
    *,
    host: str = "127.0.0.1",
    port: int = 8787,
    tls: Tls | None = None,
    limits: ServiceLimits | None = None,
    ttl: Duration = "10 seconds",
    log: str | None = None,
    on_start: Callable[[str], None] = lambda url: None,
) -> None:
    """Serve a home until this process receives SIGTERM or SIGINT. Call it from the main thread.

    A controller updates the watermarks of its buckets of streams; if the process dies, other services take over after
    `ttl`. On a signal the service refuses new requests, finishes those in progress, and releases its buckets.
    `on_start` is called with the address once the service answers requests. `log` is that of `connect`.
    """
    stopped = threading.Event()

    def stop(number: int, frame: FrameType | None) -> None:
        stopped.set()

    old_handlers = {number: signal.signal(number, stop) for number in _SIGNALS}
    try:
        # Without patience: clients of the service wait themselves, and may turn to another one.
        with connect(home, controller=False, log=log, patience="0 seconds") as local:
            controller = Controller(local, ttl=ttl)
            local.local.on_wake = controller.wake
            with controller, Service(local, host=host, port=port, tls=tls, limits=limits) as service:
                on_start(service.url)
                stopped.wait()
                _LOG.info("The service at %s stops.", service.url)
    finally:
        for number, handler in old_handlers.items():
            signal.signal(number, handler)


class Service:
    """The HTTP API of a home in its own thread. Use it as a context manager, or call `start` and `stop`.

    >>> with connect() as home, Service(home) as service, connect(service.url) as remote:
    ...     stream = remote.create_stream("shop/orders")
    ...     [stream.name for stream in home.streams()]
    ['shop/orders']

    By default it listens on 127.0.0.1; for another host, the home must have a token. Port 0 picks a free port.
    """

    __slots__ = ("_app", "_home", "_host", "_limits", "_listener", "_port", "_tls")

    def __init__(
        self,
        home: StreamHome,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        tls: Tls | None = None,
        limits: ServiceLimits | None = None,
    ) -> None:
        """Prepare the service; `start` makes it listen."""
        self._home = home
        self._host = host
        self._port = port
        self._tls = tls
        self._limits = limits or ServiceLimits()
        self._app: App | None = None
        self._listener: Listener | None = None

    @property
    def url(self) -> str:
        """The address of the started service."""
        if self._listener is None:
            raise ServiceNotStarted(
                "The service is not running.",
                rule="A service has an address only between start and stop.",
                remedy="Call start() first, or use the service in a `with` block.",
            )
        return self._listener.url

    def start(self) -> None:
        """Listen, and return once requests are answered. Idempotent."""
        if self._listener is not None:
            return
        address = resolve_address(self._host, self._port)
        host = address[1][0]
        needs_token = not is_loopback(host)
        if needs_token:
            self._check_public_address(host)
        app = create_app(self._home, limits=self._limits, needs_token=needs_token)
        try:
            self._listener = Listener(app, address, self._limits, self._tls)
        except BaseException:
            app.close()
            raise
        self._app = app
        _LOG.info("The service listens at %s.", self.url)

    def stop(self) -> None:
        """Stop listening, finish the requests in progress, and end. Idempotent."""
        listener, self._listener = self._listener, None
        app, self._app = self._app, None
        if app is not None:
            app.begin_to_stop()
        if listener is not None:
            listener.stop()
        if app is not None:
            app.close()

    def __enter__(self) -> "Service":
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        address = f"{self._host}:{self._port}" if self._listener is None else self._listener.url
        return f"Service({self._home!r}, {address!r})"

    def _check_public_address(self, address: str) -> None:
        home = self._home.home
        now = home.now()
        if all(token.has_expired(now) for token in Tokens(home).all()):
            raise TokensNeeded(
                f"The service cannot listen at {address}: the home has no valid token.",
                rule="A service that other machines can reach requires tokens.",
                remedy="Create a token first: `floodmark token create --scope admin`.",
                address=address,
            )
        if self._tls is None:
            _LOG.warning("The service at %s has no TLS certificate: tokens are sent unencrypted.", address)


Address = tuple[socket.AddressFamily, tuple[str, int]]
_START_SECONDS: Final = 30.0


class Listener:
    """A running HTTP server in its own thread, from construction to `stop`."""

    __slots__ = ("_server", "_socket", "_thread", "url")

    def __init__(self, app: Any, address: Address, limits: ServiceLimits, tls: Tls | None = None) -> None:
        """Listen, and return once requests are answered."""
        check_tls(tls)
        limits = fit_file_limit(limits)
        self._socket = _bind_socket(*address)
        host, port = self._socket.getsockname()[:2]
        self.url = f"{'http' if tls is None else 'https'}://{f'[{host}]' if ':' in host else host}:{port}"
        """The address it listens at."""
        self._server = _UvicornServer(
            uvicorn.Config(
                app,
                interface="asgi3",
                http=connection_class(limits),
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                # Forwarded client addresses are not trusted.
                proxy_headers=False,
                server_header=False,
                # With one more connection than allowed, `Connection` has found none to close.
                limit_concurrency=limits.max_connections + 1,
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
                raise _not_started(host, port, "the server ended at once or did not start in time")
            time.sleep(0.002)

    def stop(self) -> None:
        """Stop listening, finish the requests in progress, and end."""
        self._server.should_exit = True
        self._thread.join()
        self._socket.close()


class _UvicornServer(uvicorn.Server):
    """Checks its connections ten times a second, and aborts those that are still open after the graceful shutdown."""

    async def on_tick(self, counter: int) -> bool:
        now = asyncio.get_running_loop().time()
        for connection in cast("list[Connection]", list(self.server_state.connections)):
            connection.check(now)
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await super().shutdown(sockets)
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        # Let the loop close the transports.
        await asyncio.sleep(0)


_OTHER_FILES: Final = 128
"""How many files other than connections a service may have open."""


def fit_file_limit(limits: ServiceLimits) -> ServiceLimits:
    """Return the limits with no more connections than this process may have open files.

    When files run out, the system accepts no connection, and `Connection` cannot close a silent one to make room.
    """
    files = open_file_limit()
    if files is None or limits.max_connections <= files - _OTHER_FILES:
        return limits
    most = max(1, files - _OTHER_FILES)
    _LOG.warning("The service takes %d connections: the process may have %d open files (`ulimit -n`).", most, files)
    return replace(limits, max_connections=most)


def resolve_address(host: str, port: int) -> Address:
    """Resolve a host to one address. It is looked up once, so that the address checked is the address used.

    >>> resolve_address("127.0.0.1", 8787)[1]
    ('127.0.0.1', 8787)
    """
    if not 0 <= port <= 65_535:
        # getaddrinfo would silently use another port.
        raise _not_started(host, port, "ports are 0 to 65535")
    try:
        candidates = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, OverflowError, UnicodeError) as error:
        raise _not_started(host, port, str(error)) from error
    family, _, _, _, address = candidates[0]
    return family, (str(address[0]), int(address[1]))


def check_tls(tls: Tls | None) -> None:
    """Refuse a certificate that cannot be loaded."""
    if tls is None:
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(tls.certificate, tls.key)
    except OSError as error:
        raise InvalidOption(
            f"The certificate {tls.certificate} or its key {tls.key} cannot be used: {error}.",
            rule="Certificate and key are readable PEM files that belong together.",
            remedy="Set --tls-cert to the certificate chain and --tls-key to its private key.",
            option="tls",
        ) from error


def _bind_socket(family: socket.AddressFamily, address: tuple[str, int]) -> socket.socket:
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
        rule="A service listens at an address of this machine, on a free port.",
        remedy="Choose another --port, or stop the process that uses this one.",
        host=host,
        port=port,
    )
