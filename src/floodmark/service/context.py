"""What an endpoint works with: the limits of the service, the home, the threads, and the token."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Final, ParamSpec, TypeVar

from fastapi import Depends, Path, Query
from starlette.requests import Request

from floodmark._util.ints import INT64_MAX
from floodmark._util.text import did_you_mean
from floodmark.control import Scope, Token
from floodmark.errors import NotAllowed, StreamDeleted, UnknownStream
from floodmark.service.workers import MarkQueue, Workers
from floodmark.streams import StreamInfo
from floodmark.streams.backend import LocalBackend
from floodmark.streams.definition import check_stream_name, make_settings
from floodmark.streams.layout.layout import Layout

MIB = 2**20


@dataclass(frozen=True, slots=True)
class ServiceLimits:
    """The limits of a service. What goes beyond one is refused, and nothing of it is stored.

    >>> ServiceLimits(max_request=8 * MIB).max_marks
    1000
    """

    max_request: int = 64 * MIB
    """How many bytes the body of a request may have."""
    max_under_way: int = 512 * MIB
    """How many bytes all bodies together may have that are under way."""
    max_header: int = 64 * 1024
    """How many bytes the first line and the headers of a request may have."""
    max_marks: int = 1_000
    """How many marks a request may have."""
    max_wait: float = 30.0
    """For how many seconds a request may wait for news."""
    header_seconds: float = 10.0
    """How long the headers of a request may take to come."""
    body_seconds: float = 60.0
    """How long the service waits for the next piece of a body."""
    keep_alive_seconds: float = 75.0
    """How long a connection may be idle."""
    stop_seconds: float = 30.0
    """How long requests that are under way have when the service is to stop."""
    token_seconds: float = 0.25
    """How long a token may be good that was revoked, and how soon a new one is."""
    threads: int = 8
    """How many requests work on the store at the same time; marks do not count."""
    max_waiting: int = 256
    """How many more requests may wait for their turn, and how many times as many marks."""
    max_connections: int = 2_000
    """How many connections there may be."""


P = ParamSpec("P")
T = TypeVar("T")

CONTEXT_KEY: Final = "floodmark.context"
"""Where in the scope of a request that is what it may use."""

StreamId = Annotated[int, Path(ge=0, le=INT64_MAX, description="The id of the stream.")]
StreamName = Annotated[
    str | None, Query(alias="name", max_length=200, description="What it is called, for the case that it is gone.")
]


@dataclass(slots=True)
class ServiceLoad:
    """What the service has to bear at the moment."""

    body_bytes: int = 0
    """How large the bodies are that are under way."""
    is_stopping: bool = False
    """Whether it is to end: who waits for news is then answered at once."""


@dataclass(frozen=True, slots=True)
class ServiceContext:
    """What all requests share."""

    backend: LocalBackend
    workers: Workers
    marks: MarkQueue
    limits: ServiceLimits
    load: ServiceLoad = field(default_factory=ServiceLoad)


class RequestContext:
    """What one request may use."""

    __slots__ = ("_service", "_token")

    def __init__(self, service: ServiceContext, token: Token | None) -> None:
        """Work with what is shared, as far as the token allows."""
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
        """Whether the service is to end."""
        return self._service.load.is_stopping

    @property
    def marks(self) -> MarkQueue:
        """Takes marks."""
        return self._service.marks

    async def run(self, work: Callable[P, T], /, *args: P.args, **options: P.kwargs) -> T:
        """Return what a function returns that blocks."""
        return await self._service.workers.run(work, *args, **options)

    def allow(self, scope: Scope, name: str) -> None:
        """Refuse what the token is not good for."""
        token = self._token
        if token is not None and not token.allows(scope, name):
            what = "is not good for this stream" if token.includes(scope) else f"is good to {token.scope}"
            raise NotAllowed(
                f"The token {token.id!r} {what}.",
                rule=f"This needs a token with the scope {scope!r}, and a prefix that the stream's name begins with.",
                remedy="Use another token, or make one with `floodmark token create`.",
                token=token.id,
                scope=scope,
            )

    def allow_some(self, scope: Scope) -> None:
        """Refuse what the token is good for in no stream at all."""
        if self._token is not None:
            self.allow(scope, self._token.prefixes[0])

    def may_see(self, name: str) -> bool:
        """Return whether a stream of that name may be shown."""
        return self._token is None or self._token.allows("read", name)

    async def stream(self, number: int, name: str | None, scope: Scope) -> StreamInfo:
        """Return the stream of an id, if the token is good for that; it may have changed, or gone, in this moment.

        What it is called is known here. The name in the request is asked only when the stream is not there any more.
        """
        info = self.backend.catalog.cached(number)
        if info is None:
            info = await self.run(self.backend.catalog.find_id, number)
        if info is None:
            raise await self._gone(number, name, scope)
        self.allow(scope, info.name)
        return info

    async def find(self, name: str, scope: Scope) -> StreamInfo:
        """Return the stream of a name, if the token is good for that."""
        self.allow(scope, name)
        try:
            return await self.run(self.backend.catalog.find, name)
        except UnknownStream as unknown:
            if self._token is None or "" in self._token.prefixes:
                raise
            # The guess must not tell of streams that the token may not see.
            seen = [info.name for info in await self.run(self.backend.catalog.all) if self.may_see(info.name)]
            otherwise = "Create it with create_stream()."
            remedy = did_you_mean(name, seen, otherwise=otherwise)
            raise UnknownStream(unknown.fact, rule=unknown.rule, remedy=remedy, **unknown.fields) from None

    async def _gone(self, number: int, name: str | None, scope: Scope) -> Exception:
        if name is None:
            self.allow_some(scope)
            return UnknownStream(
                f"There is no stream with the id {number}.",
                rule="A stream has its id from its creation to its end.",
                remedy="Look it up by its name.",
                stream_id=number,
            )
        self.allow(scope, check_stream_name(name))
        ghost = StreamInfo(number, name, 0, make_settings(), Layout.create(), False, 0, 0)
        try:
            await self.run(self.backend.catalog.refresh, ghost)
        except StreamDeleted as deleted:
            return deleted
        return AssertionError("a stream that was gone is there")


async def context_of(request: Request) -> RequestContext:
    """Return what a request may use. It waits for nothing; but what is no coroutine would be run in another thread."""
    context: RequestContext = request.scope[CONTEXT_KEY]
    return context


Context = Annotated[RequestContext, Depends(context_of)]
