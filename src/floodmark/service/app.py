"""The ASGI application of one home: all routes, behind the middleware."""

from functools import cache
from importlib.metadata import version
from typing import Any, Final

from fastapi import FastAPI
from starlette.types import Receive, Scope, Send

from floodmark.service.access import Authenticator
from floodmark.service.context import ServiceContext, ServiceLimits
from floodmark.service.messages import ErrorView, install_error_handlers
from floodmark.service.middleware import Guard
from floodmark.service.routes import events, groups, health, marks_log, streams, writers
from floodmark.service.routes.writers import MarkFastPath
from floodmark.service.workers import MarkQueue, Workers
from floodmark.streams import StreamHome
from floodmark.streams.remote.wire import API_PREFIX


class App:
    """An ASGI application; get one from `create_app`. It owns threads until it is closed."""

    __slots__ = ("_context", "_guard")

    def __init__(self, home: StreamHome, limits: ServiceLimits, *, needs_token: bool) -> None:
        """Use `create_app`."""
        backend = home.local
        workers = Workers(limits.threads, limits.max_waiting)
        marks = MarkQueue(backend.registry, backend.wake, limits.max_waiting * 16)
        self._context = ServiceContext(backend, workers, marks, limits)
        authenticator = Authenticator(backend.home, workers, needs_token=needs_token, seconds=limits.token_seconds)
        self._guard = Guard(MarkFastPath(api()), authenticator, self._context)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        await self._guard(scope, receive, send)

    def openapi(self) -> dict[str, Any]:
        """Return the OpenAPI document."""
        return api().openapi()

    def begin_to_stop(self) -> None:
        """Answer requests that wait for news, so that they do not delay the stop."""
        self._context.load.is_stopping = True

    def close(self) -> None:
        """Finish the requests in progress, and stop; later requests are refused."""
        self.begin_to_stop()
        self._context.marks.close()
        self._context.workers.close()


def create_app(home: StreamHome, *, limits: ServiceLimits | None = None, needs_token: bool = True) -> App:
    """Return the application of a home, for your own ASGI server; see `Service` for a complete server.

    With `needs_token` every request except /v1/health needs a token of the home. Without it, local requests need none
    until the home has its first token.

    >>> with connect() as home:
    ...     app = create_app(home)
    ...     "/v1/streams" in app.openapi()["paths"]
    ...     app.close()
    True
    """
    return App(home, limits or ServiceLimits(), needs_token=needs_token)


_ROUTES: Final = (
    # The most frequent requests first.
    writers.ROUTES,
    events.ROUTES,
    marks_log.ROUTES,
    groups.ROUTES,
    events.TRANSACTION_ROUTES,
    streams.ROUTES,
    health.ROUTES,
)
_ABOUT: Final = "Streams whose writers note time, and the watermark that follows from their marks."
_REFUSALS: Final[dict[int | str, dict[str, Any]]] = {
    "default": {"model": ErrorView, "description": "Why the request failed."}
}


@cache
def api() -> FastAPI:
    """Return the application with all routes. The home is in the scope of each request.

    >>> "/v1/streams" in api().openapi()["paths"]
    True
    """
    app = FastAPI(
        title="Floodmark",
        version=version("floodmark"),
        description=_ABOUT,
        openapi_url=f"{API_PREFIX}/openapi.json",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        responses=_REFUSALS,
    )
    for routes in _ROUTES:
        app.include_router(routes, prefix=API_PREFIX)
    install_error_handlers(app)
    return app
