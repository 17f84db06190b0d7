"""A service that runs: the application of a home, and where it listens."""

import logging
from types import TracebackType
from typing import Final

from floodmark.control import Tokens
from floodmark.errors import ServiceNotStarted, TokensNeeded
from floodmark.service._app import App, create_app
from floodmark.service._hosts import is_loopback
from floodmark.service._limits import ServiceLimits
from floodmark.service._listener import Listener, Tls, address_of
from floodmark.streams import StreamHome

_LOG: Final = logging.getLogger("floodmark.service")


class Service:
    """The API of a home, in a thread of its own. As a context it runs from the beginning to the end.

    >>> with connect() as home, Service(home) as service, connect(service.url) as remote:
    ...     stream = remote.create_stream("shop/orders")
    ...     [stream.name for stream in home.streams()]
    ['shop/orders']

    It listens on this machine alone unless it is told otherwise, and then the home must have a token. Port 0 is any
    port that is free.
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
        """Prepare one; it listens once it is started."""
        self._home = home
        self._host = host
        self._port = port
        self._tls = tls
        self._limits = limits or ServiceLimits()
        self._app: App | None = None
        self._listener: Listener | None = None

    @property
    def url(self) -> str:
        """Where it is, once it is started."""
        if self._listener is None:
            raise ServiceNotStarted(
                "The service does not run.",
                rule="It has an address from start to stop.",
                remedy="Use it as a context, or start it.",
            )
        return self._listener.url

    def start(self) -> None:
        """Listen, and return when requests are answered; to say so twice is no error."""
        if self._listener is not None:
            return
        address = address_of(self._host, self._port)
        where = address[1][0]
        needs_token = not is_loopback(where)
        if needs_token:
            self._check_may_be_reached(where)
        app = create_app(self._home, limits=self._limits, needs_token=needs_token)
        try:
            self._listener = Listener(app, address, self._limits, self._tls)
        except BaseException:
            app.close()
            raise
        self._app = app
        _LOG.info("The service listens at %s", self.url)

    def stop(self) -> None:
        """Listen no more, let requests that are under way come to their end, and end; twice is no error."""
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
        where = f"{self._host}:{self._port}" if self._listener is None else self._listener.url
        return f"Service({self._home!r}, {where!r})"

    def _check_may_be_reached(self, address: str) -> None:
        home = self._home.home
        now = home.now()
        if all(token.has_expired(now) for token in Tokens(home).all()):
            raise TokensNeeded(
                f"The service was to listen at {address}, and the home has no token.",
                rule="Beyond its own machine a service is used with tokens.",
                remedy="Make one first: `floodmark token create --scope admin`.",
                address=address,
            )
        if self._tls is None:
            _LOG.warning("The service at %s has no certificate: whoever can listen in gets the tokens.", address)
