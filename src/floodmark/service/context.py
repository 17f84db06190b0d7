"""The context of a request: limits of the service, the home, the worker threads, and the token."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, ParamSpec, TypeVar

from fastapi import Depends, Path, Query
from starlette.requests import Request

from floodmark._util.ints import INT64_MAX
from floodmark._util.text import did_you_mean
from floodmark.control import Scope, Token
from floodmark.errors import NotAllowed, StreamDeleted, UnknownStream
from floodmark.service.messages import JsonResponse
from floodmark.service.workers import MarkQueue, Workers
from floodmark.streams import StreamInfo
from floodmark.streams.backend import LocalBackend
from floodmark.streams.definition import check_stream_name, make_settings
from floodmark.streams.layout.layout import Layout

MIB = 2**20


@dataclass(frozen=True, slots=True)
class ServiceLimits:
    """The limits of a service. A request beyond a limit is refused, and nothing of it is stored.

    >>> ServiceLimits(max_request=8 * MIB).max_marks
    1000
    """

    max_request: int = 64 * MIB
    """Bytes of a body with events."""
    max_json: int = MIB
    """Bytes of any other body."""
    max_under_way: int = 512 * MIB
    """Bytes of the bodies of all requests in progress."""
    max_header: int = 64 * 1024
    """Bytes of the first line and the headers of a request."""
    max_marks: int = 1_000
    """Marks in a request."""
    max_wait: float = 30.0
    """Seconds a request may wait for news."""
    header_seconds: float = 10.0
    """Seconds until the headers of a request must be complete."""
    body_seconds: float = 30.0
    """Seconds to wait for a body; in each further period of this length it must arrive at `min_rate`."""
    send_seconds: float = 30.0
    """Seconds to wait for a client to read its answer; in each period of this length it must read at `min_rate`."""
    min_rate: int = 1024
    """Bytes a second that a client must send or read while the service waits for it."""
    close_seconds: float = 5.0
    """Seconds for a client to close its side of a connection that the service has closed."""
    keep_alive_seconds: float = 75.0
    """Seconds a connection may be idle."""
    stop_seconds: float = 30.0
    """Seconds to finish requests in progress when the service stops."""
    token_seconds: float = 0.25
    """Seconds until a created or revoked token takes effect."""
    threads: int = 8
    """Requests that use the store at the same time; marks are not counted."""
    max_waiting: int = 256
    """Further requests that may wait for a thread; 16 times as many requests with marks may wait."""
    max_connections: int = 2_000
    """Open connections; one more closes the one whose client has been silent for longest."""


P = ParamSpec("P")
T = TypeVar("T")

CONTEXT_KEY: Final = "floodmark.context"
"""The key of the `RequestContext` in the ASGI scope of a request."""

StreamId = Annotated[int, Path(ge=0, le=INT64_MAX, description="The id of the stream.")]
StreamName = Annotated[
    str | None, Query(alias="name", max_length=200, description="The stream's name, used if it was deleted.")
]


@dataclass(slots=True)
class ServiceLoad:
    """The current load of the service."""

    body_bytes: int = 0
    """Bytes of all bodies in progress."""
    is_stopping: bool = False
    """Whether the service is stopping; requests that wait for news are then answered at once."""


@dataclass(frozen=True, slots=True)
class ServiceContext:
    """State that all requests share."""

    backend: LocalBackend
    workers: Workers
    marks: MarkQueue
    limits: ServiceLimits
    load: ServiceLoad = field(default_factory=ServiceLoad)


class RequestContext:
    """The service as one request may use it, restricted by its token."""

    __slots__ = ("_service", "_token")

    def __init__(self, service: ServiceContext, token: Token | None) -> None:
        """Restrict the service to what the token allows."""
        self._service = service
        self._token = token

    @property
    def backend(self) -> LocalBackend:
        """The home."""
        return self._service.backend

    @property
    def limits(self) -> ServiceLimits:
        """The limits of the service."""
        return self._service.limits

    @property
    def is_stopping(self) -> bool:
        """Whether the service is stopping."""
        return self._service.load.is_stopping

    @property
    def marks(self) -> MarkQueue:
        """The queue that stores marks."""
        return self._service.marks

    async def run(self, work: Callable[P, T], /, *args: P.args, **options: P.kwargs) -> T:
        """Run a blocking function in a worker thread and return its result."""
        return await self._service.workers.run(work, *args, **options)

    async def answer(self, work: Callable[[], Any], status: int = 200) -> JsonResponse:
        """Run a blocking function in a worker thread, encode its result there too, and return the response."""
        return await self.run(lambda: JsonResponse(work(), status))

    def allow(self, scope: Scope, name: str) -> None:
        """Raise `NotAllowed` unless the token permits `scope` in the stream `name`."""
        token = self._token
        if token is not None and not token.allows(scope, name):
            reason = "does not cover this stream" if token.includes(scope) else f"has only the scope {token.scope!r}"
            raise NotAllowed(
                f"The token {token.id!r} {reason}.",
                rule=f"The request needs a token with the scope {scope!r} and a prefix that covers the stream.",
                remedy=f"Use another token, or create one with `floodmark token create --scope {scope}`.",
                token=token.id,
                scope=scope,
            )

    def allow_some(self, scope: Scope) -> None:
        """Raise `NotAllowed` unless the token permits `scope` in at least some stream."""
        if self._token is not None:
            self.allow(scope, self._token.prefixes[0])

    def may_see(self, name: str) -> bool:
        """Return whether a stream of that name may be shown."""
        return self._token is None or self._token.allows("read", name)

    async def stream(self, number: int, name: str | None, scope: Scope) -> StreamInfo:
        """Return the stream with an id, if the token permits `scope`. The cached stream may be outdated or deleted.

        The `name` from the request is used only if the stream does not exist.
        """
        info = self.backend.catalog.cached(number)
        if info is None:
            info = await self.run(self.backend.catalog.find_id, number)
        if info is None:
            raise await self._missing_stream(number, name, scope)
        self.allow(scope, info.name)
        return info

    async def find(self, name: str, scope: Scope) -> StreamInfo:
        """Return the stream with a name, if the token permits `scope`."""
        self.allow(scope, name)
        try:
            return await self.run(self.backend.catalog.find, name)
        except UnknownStream as unknown:
            if self._token is None or "" in self._token.prefixes:
                raise
            # The suggestion must not reveal streams that the token does not cover.
            visible = [info.name for info in await self.run(self.backend.catalog.all) if self.may_see(info.name)]
            remedy = did_you_mean(name, visible, otherwise="Create it with create_stream().")
            raise UnknownStream(unknown.fact, rule=unknown.rule, remedy=remedy, **unknown.fields) from None

    async def _missing_stream(self, number: int, name: str | None, scope: Scope) -> Exception:
        if name is None:
            self.allow_some(scope)
            return UnknownStream(
                f"There is no stream with the id {number}.",
                rule="An id belongs to one stream, from its creation to its deletion.",
                remedy="Look the stream up by its name: GET /v1/stream?name=...",
                stream_id=number,
            )
        self.allow(scope, check_stream_name(name))
        # Only to get the error for a deleted stream from the catalog.
        placeholder = StreamInfo(number, name, 0, make_settings(), Layout.create(), False, 0, 0)
        try:
            await self.run(self.backend.catalog.refresh, placeholder)
        except StreamDeleted as deleted:
            return deleted
        return AssertionError("a missing stream exists")


async def context_of(request: Request) -> RequestContext:
    """Return the context of a request. A coroutine, because FastAPI runs plain functions in another thread."""
    context: RequestContext = request.scope[CONTEXT_KEY]
    return context


Context = Annotated[RequestContext, Depends(context_of)]
