"""Middleware before every route: authentication, body limits, and handling of unexpected errors."""

import asyncio
import logging
import time
from collections.abc import Iterable
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from floodmark.errors import FloodmarkError, RequestInvalid, RequestTimedOut, RequestTooLarge
from floodmark.service.access import HEALTH_PATH, Authenticator
from floodmark.service.connections import Pace
from floodmark.service.context import CONTEXT_KEY, RequestContext, ServiceContext
from floodmark.service.messages import error_response, unexpected_failure
from floodmark.service.workers import service_busy
from floodmark.streams.remote.wire import ARROW

_LOG: Final = logging.getLogger("floodmark.service")


class Guard:
    """Authenticates each request, limits its body, and answers errors that no route has handled."""

    def __init__(self, app: ASGIApp, authenticator: Authenticator, service: ServiceContext) -> None:
        """Wrap this application."""
        self._app = app
        self._authenticator = authenticator
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        has_begun = has_ended = False

        async def tracked_send(message: Message) -> None:
            nonlocal has_begun, has_ended
            has_begun = True
            await send(message)
            has_ended = message["type"] == "http.response.body" and not message.get("more_body", False)

        body = _LimitedBody(receive, scope["headers"], self._service)
        try:
            token = None
            if scope["path"] != HEALTH_PATH:
                client = scope.get("client")
                token = await self._authenticator.admit(scope["headers"], client[0] if client else None)
            scope[CONTEXT_KEY] = RequestContext(self._service, token)
            body.check_length()
            await self._app(scope, body.receive, tracked_send)
        except FloodmarkError as error:
            if has_begun:
                raise
            await error_response(error)(scope, receive, send)
        except Exception:
            # Only to the log: the error may contain data that the caller must not see.
            _LOG.exception("A request failed: %s %s", scope["method"], scope["path"])
            if has_ended:
                return
            if has_begun:
                # Cut the connection, or the client would take the partial answer for a complete one.
                raise
            await error_response(unexpected_failure())(scope, receive, send)
        finally:
            body.end()


class _LimitedBody:
    """Receives the body of a request within the limits of size and time."""

    def __init__(self, receive: Receive, headers: Iterable[tuple[bytes, bytes]], service: ServiceContext) -> None:
        self._receive = receive
        self._headers = headers
        self._limits = service.limits
        self._has_events = any(name == b"content-type" and _is_arrow(value) for name, value in headers)
        self._most = self._limits.max_request
        if not self._has_events:
            self._most = min(self._most, self._limits.max_json)
        self._load = service.load
        self._pace = Pace(self._limits.body_seconds, self._limits.min_rate)
        self._size = 0
        self._has_ended = False

    def check_length(self) -> None:
        """Refuse a body whose Content-Length is too large."""
        for name, value in self._headers:
            if name == b"content-length":
                if not value.isdigit():
                    raise RequestInvalid(
                        f"The Content-Length is {value!r:.50}.",
                        rule="Content-Length is a number of bytes.",
                        remedy="Let the HTTP library set the header.",
                    )
                if int(value) > self._most:
                    raise self._too_large(int(value))

    async def receive(self) -> Message:
        """Return the next piece."""
        if self._has_ended:
            return await self._receive()
        message = await self._wait()
        self._has_ended = message["type"] != "http.request" or not message.get("more_body", False)
        if self._size > self._most:
            raise self._too_large(self._size)
        if self._load.body_bytes > self._limits.max_under_way:
            raise service_busy("bytes", self._limits.max_under_way)
        return message

    def end(self) -> None:
        """Remove the body from the load of the service."""
        self._load.body_bytes -= self._size

    async def _wait(self) -> Message:
        """Wait for the next piece, as long as the client keeps up."""
        while True:
            begun = time.monotonic()
            message: Message | None = None
            try:
                async with asyncio.timeout(self._pace.seconds_left):
                    message = await self._receive()
            except TimeoutError:
                pass
            size = 0 if message is None else len(message.get("body", b""))
            self._size += size
            self._load.body_bytes += size
            if self._pace.is_too_slow(time.monotonic() - begun, size):
                raise self._too_slow()
            if message is not None:
                return message

    def _too_slow(self) -> RequestTimedOut:
        seconds, rate = self._limits.body_seconds, self._limits.min_rate
        return RequestTimedOut(
            f"The request body did not arrive at {rate} bytes a second for {seconds:g} s.",
            rule=f"A body arrives within {seconds:g} s, or at {rate} bytes a second or more.",
            remedy="Retry; on a slow connection, send smaller requests.",
        )

    def _too_large(self, size: int) -> RequestTooLarge:
        return RequestTooLarge(
            f"The request has {size} bytes or more.",
            rule=f"A request {'with events' if self._has_events else 'without events'} has at most {self._most} bytes.",
            remedy="Split it into smaller requests, or start the service with a larger --max-request."
            if self._has_events
            else "Split it into smaller requests; send events as an Arrow IPC stream.",
            size=size,
            most=self._most,
        )


def _is_arrow(content_type: bytes) -> bool:
    return content_type.partition(b";")[0].strip().lower() == ARROW.encode()
