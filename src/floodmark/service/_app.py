"""The application of one home: the guard, and behind it the routes."""

from typing import Any

from starlette.types import Receive, Scope, Send

from floodmark.service._api import api
from floodmark.service._desk import Office
from floodmark.service._gate import Gate
from floodmark.service._guard import Guard
from floodmark.service._limits import ServiceLimits
from floodmark.service._mark_queue import MarkQueue
from floodmark.service._quick_marks import QuickMarks
from floodmark.service._workers import Workers
from floodmark.streams import StreamHome


class App:
    """An ASGI application; get one from `create_app`. It has threads of its own until it is closed."""

    __slots__ = ("_guard", "_office")

    def __init__(self, home: StreamHome, limits: ServiceLimits, *, needs_token: bool) -> None:
        """Use `create_app`."""
        backend = home.local
        workers = Workers(limits.threads, limits.max_waiting)
        marks = MarkQueue(backend.registry, backend.wake, limits.max_waiting * 16)
        self._office = Office(backend, workers, marks, limits)
        gate = Gate(backend.home, workers, needs_token=needs_token, seconds=limits.token_seconds)
        self._guard = Guard(QuickMarks(api()), gate, self._office)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        await self._guard(scope, receive, send)

    def openapi(self) -> dict[str, Any]:
        """Return the document that describes the API."""
        return api().openapi()

    def begin_to_stop(self) -> None:
        """Answer those who wait for news, so that they do not hold up the end."""
        self._office.load.is_stopping = True

    def close(self) -> None:
        """Finish what is under way, and end; what comes afterwards is refused."""
        self.begin_to_stop()
        self._office.marks.close()
        self._office.workers.close()


def create_app(home: StreamHome, *, limits: ServiceLimits | None = None, needs_token: bool = True) -> App:
    """Return the application for a home, to be run by an ASGI server of your own; see `Service` for one that runs.

    With `needs_token` every request but that for /v1/health needs a token of the home. Without it, and as long as the
    home has no token, requests of this machine need none.

    >>> with connect() as home:
    ...     app = create_app(home)
    ...     "/v1/streams" in app.openapi()["paths"]
    ...     app.close()
    True
    """
    return App(home, limits or ServiceLimits(), needs_token=needs_token)
