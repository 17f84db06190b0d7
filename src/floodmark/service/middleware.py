"""Stands before every route: authentication, limits of the body, and unexpected errors."""

import asyncio
import logging
from collections.abc import Iterable
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from floodmark.errors import FloodmarkError, RequestInvalid, RequestTimedOut, RequestTooLarge
from floodmark.service.access import HEALTH_PATH, Authenticator
from floodmark.service.context import CONTEXT_KEY, MIB, RequestContext, ServiceContext
from floodmark.service.messages import error_response, unexpected_failure
from floodmark.service.workers import service_busy

_LOG: Final = logging.getLogger("floodmark.service")
_MAX_DRAINED: Final = 32 * MIB
_DRAIN_SECONDS: Final = 5.0


class Guard:
    """Lets in what may come in, and answers for what nothing else has answered for."""

    def __init__(self, app: ASGIApp, authenticator: Authenticator, service: ServiceContext) -> None:
        """Stand before this application."""
        self._app = app
        self._authenticator = authenticator
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        has_begun = has_ended = False

        async def sending(message: Message) -> None:
            nonlocal has_begun, has_ended
            has_begun = True
            await send(message)
            has_ended = message["type"] == "http.response.body" and not message.get("more_body", False)

        body = _LimitedBody(receive, self._service)
        try:
            token = None
            if scope["path"] != HEALTH_PATH:
                client = scope.get("client")
                token = await self._authenticator.admit(scope["headers"], client[0] if client else None)
            scope[CONTEXT_KEY] = RequestContext(self._service, token)
            await body.check_length(scope["headers"])
            await self._app(scope, body.receive, sending)
        except FloodmarkError as error:
            if has_begun:
                raise
            await error_response(error)(scope, receive, send)
        except Exception:
            # What it was may tell of more than the caller may know.
            _LOG.exception("A request failed: %s %s", scope["method"], scope["path"])
            if has_ended:
                return
            if has_begun:
                # The line is cut, or what was sent would be taken for all there is.
                raise
            await error_response(unexpected_failure())(scope, receive, send)
        finally:
            body.end()


class _LimitedBody:
    """The body of a request, as it comes: no more of it than is allowed, and not too slowly."""

    def __init__(self, receive: Receive, service: ServiceContext) -> None:
        self._receive = receive
        self._limits = service.limits
        self._load = service.load
        self._size = 0
        self._has_ended = False

    async def check_length(self, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Refuse a body that says by itself that it is too large."""
        for name, value in headers:
            if name == b"content-length":
                if not value.isdigit():
                    raise RequestInvalid(
                        f"The content length is {value!r:.50}.",
                        rule="It is a number of bytes.",
                        remedy="Leave it to the HTTP library.",
                    )
                if int(value) > self._limits.max_request:
                    if not any(name == b"expect" for name, _ in headers):
                        # Who asks first whether to send it has sent nothing yet, and to read on would say yes.
                        await self._drain()
                    raise self._too_large(int(value))

    async def receive(self) -> Message:
        """Return the next piece."""
        if self._has_ended:
            return await self._receive()
        try:
            async with asyncio.timeout(self._limits.body_seconds):
                message = await self._receive()
        except TimeoutError:
            raise RequestTimedOut(
                f"The body of the request has not come on for {self._limits.body_seconds:g} s.",
                rule="A request is sent in one go.",
                remedy="Send it again, over a better line or in smaller pieces.",
            ) from None
        self._take(message)
        if self._size > self._limits.max_request:
            size = self._size
            await self._drain()
            raise self._too_large(size)
        if self._load.body_bytes > self._limits.max_under_way:
            raise service_busy("bytes", self._limits.max_under_way)
        return message

    def end(self) -> None:
        """Say that the body is no longer under way."""
        self._load.body_bytes -= self._size

    async def _drain(self) -> None:
        """Read some of what is left: who is still sending does not listen, and would not hear why it is refused."""
        try:
            async with asyncio.timeout(_DRAIN_SECONDS):
                while not self._has_ended and self._size < self._limits.max_request + _MAX_DRAINED:
                    self._take(await self._receive())
        except TimeoutError:
            return

    def _take(self, message: Message) -> None:
        size = len(message.get("body", b""))
        self._size += size
        self._load.body_bytes += size
        self._has_ended = message["type"] != "http.request" or not message.get("more_body", False)

    def _too_large(self, size: int) -> RequestTooLarge:
        return RequestTooLarge(
            f"The request has {size} bytes or more.",
            rule=f"It has at most {self._limits.max_request}.",
            remedy="Send less at once, or start the service with a larger --max-request.",
            size=size,
            most=self._limits.max_request,
        )
