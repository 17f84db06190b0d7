"""Requests to the services of a home: what is not answered is asked again, of the next one, within a time budget."""

import json
import os
import random
import re
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import SplitResult, urlencode, urlsplit

import urllib3
from urllib3.exceptions import HTTPError, NewConnectionError, ReadTimeoutError, SSLError
from urllib3.util import Timeout

from floodmark.errors import (
    AnswerInvalid,
    FloodmarkError,
    HomeClosed,
    InvalidOption,
    ServiceUnavailable,
    ServiceUntrusted,
)
from floodmark.streams.definition import StreamInfo
from floodmark.streams.remote.wire import JSON, STREAMS_PATH, load_error

BUDGET_SECONDS: Final = 30.0
"""For how long the services are asked before the caller is told that none has answered."""

T = TypeVar("T")

_CONNECT_SECONDS: Final = 5.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0
_TRY_ELSEWHERE: Final = (502, 503, 504)


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of a request: a value, or a refusal.

    `was_repeated` says that an earlier try may have been carried out too, though its answer was lost.
    """

    value: Any
    refusal: FloodmarkError | None
    was_repeated: bool

    def taken(self) -> Any:
        """Return the value, or raise the refusal."""
        if self.refusal is not None:
            raise self.refusal
        return self.value


@dataclass(frozen=True, slots=True)
class Addresses:
    """The services of one home, in the order in which they were named."""

    urls: tuple[str, ...]

    def __str__(self) -> str:
        """Return them as they can be named again."""
        return ",".join(self.urls)


Query = Mapping[str, str | int | None]


@dataclass(frozen=True, slots=True)
class Request:
    """One request. It may be sent several times, so what it asks for must be the same when it is done twice."""

    method: str
    path: str
    query: Query = field(default_factory=dict)
    body: Any = None
    content_type: str = JSON

    @classmethod
    def about(
        cls,
        stream: StreamInfo,
        method: str,
        *parts: str | int,
        query: Query | None = None,
        value: Any = None,
        body: Any = None,
        content_type: str = JSON,
    ) -> "Request":
        """Return a request about a stream, with a JSON value or another body.

        The path has the stream's id, since names have slashes, and may pass to another stream. The name goes along
        for the case that the stream is gone: the refusal then says which it was.
        """
        path = "/".join([STREAMS_PATH, str(stream.id), *map(str, parts)])
        sent = body if value is None else json.dumps(value)
        return cls(method, path, {**(query or {}), "name": stream.name}, sent, content_type)


class Client:
    """Speaks to the services of one home. Many threads may use it; a child of a fork gets connections of its own."""

    __slots__ = (
        "_addresses",
        "_budget",
        "_ca",
        "_current",
        "_is_closed",
        "_lock",
        "_pool",
        "_process",
        "_token",
    )

    def __init__(
        self, addresses: Addresses, *, token: str | None = None, ca: Path | None = None, budget: float = BUDGET_SECONDS
    ) -> None:
        """Connect to nothing yet."""
        self._addresses = addresses
        self._token = token
        self._ca = None if ca is None else _check_ca(os.fspath(ca))
        self._budget = budget
        # Any one to begin with, so that many clients share the work among the services.
        self._current = random.randrange(len(addresses.urls))
        self._lock = threading.Lock()
        self._is_closed = False
        self._process = os.getpid()
        self._pool = self._new_pool()

    def ask(self, request: Request) -> Answer:
        """Send a request until it is answered, and return the answer."""
        tries = _Attempts(self, request)
        for response, address in tries:
            with _released(response):
                status, body = response.status, tries.read(response, address)
            if body is None:
                continue
            value = _read_json(body, address, status)
            if status < 300:
                return Answer(value, None, tries.may_be_done)
            refusal = _refusal(value, address, status)
            if status not in _TRY_ELSEWHERE:
                return Answer(None, refusal, tries.may_be_done)
            tries.refused(refusal)
        raise AssertionError("tries end by returning or raising")

    def call(self, request: Request, load: Callable[[Any], T]) -> T:
        """Return what a request is answered, as it is loaded, or raise what it is refused with."""
        return self.loaded(self.ask(request).taken(), load)

    def loaded(self, value: Any, load: Callable[[Any], T]) -> T:
        """Return what a value stands for, or refuse one that is not of the form that it should have."""
        try:
            return load(value)
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            raise _answer_invalid(self.current(), 200) from error

    @contextmanager
    def reading(self, request: Request) -> Iterator[Any]:
        """Give a file-like source with the body of an answer, which need not come to its end."""
        tries = _Attempts(self, request)
        for response, address in tries:
            if response.status == 200:
                try:
                    yield response
                    # To its very end, or the connection could not be used again.
                    response.drain_conn()
                finally:
                    if response.closed:
                        response.release_conn()
                    else:
                        response.close()
                return
            with _released(response):
                status, body = response.status, tries.read(response, address)
            if body is None:
                continue
            refusal = _refusal(_read_json(body, address, status), address, status)
            if status not in _TRY_ELSEWHERE:
                raise refusal
            tries.refused(refusal)

    def close(self) -> None:
        """Let go of all connections."""
        self._is_closed = True
        self._pool.clear()

    def __repr__(self) -> str:
        return f"Client({str(self._addresses)!r})"

    @property
    def addresses(self) -> Addresses:
        """Where the services are."""
        return self._addresses

    @property
    def budget(self) -> float:
        """For how many seconds a request is tried."""
        return self._budget

    def current(self) -> str:
        """Return the address that is in use."""
        return self._addresses.urls[self._current]

    def go_on(self, from_address: str) -> None:
        """Use the next address from now on, unless another thread has gone on already."""
        with self._lock:
            if self.current() == from_address:
                self._current = (self._current + 1) % len(self._addresses.urls)

    def send(self, request: Request, address: str, seconds: float) -> Any:
        """Send a request once."""
        self._check_open()
        headers = {"Accept": "*/*"}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        if request.body is not None:
            headers["Content-Type"] = request.content_type
        fields = {name: str(value) for name, value in request.query.items() if value is not None}
        path = f"{address}{request.path}" + (f"?{urlencode(fields)}" if fields else "")
        return self._pool.request(
            request.method,
            path,
            body=request.body,
            headers=headers,
            timeout=Timeout(connect=min(_CONNECT_SECONDS, seconds), read=seconds),
            retries=False,
            redirect=False,
            preload_content=False,
        )

    def _check_open(self) -> None:
        if self._is_closed:
            raise HomeClosed(
                f"The home {self._addresses} has been closed.",
                rule="A home is used between open and close.",
                remedy="Open it again.",
                path=str(self._addresses),
            )
        if self._process != os.getpid():
            # The connections of the parent are the parent's.
            self._pool = self._new_pool()
            self._process = os.getpid()

    def _new_pool(self) -> urllib3.PoolManager:
        return urllib3.PoolManager(maxsize=32, cert_reqs="CERT_REQUIRED", ca_certs=self._ca)


class _Attempts:
    """The tries of one request: responses that came, from one address after the other, until there is no time left."""

    def __init__(self, client: Client, request: Request) -> None:
        self._client = client
        self._request = request
        self._until = time.monotonic() + client.budget
        self._problems: dict[str, str] = {}
        self._last: FloodmarkError | None = None
        self.may_be_done = False
        self._number = 0

    def __iter__(self) -> Iterator[tuple[Any, str]]:
        while True:
            address = self._client.current()
            # No try takes all of the time, or a service that hangs would be the only one that is asked.
            seconds = max(min(self._until - time.monotonic(), self._client.budget / 2), 0.1)
            try:
                response = self._client.send(self._request, address, seconds)
            except HTTPError as error:
                self._failed(address, error)
            else:
                yield response, address
            self._pause(address)

    def read(self, response: Any, address: str) -> bytes | None:
        """Return the whole body of a response, or None if it was cut off."""
        try:
            body: bytes = response.read()
        except HTTPError as error:
            self._failed(address, error)
            return None
        return body

    def refused(self, refusal: FloodmarkError) -> None:
        """Remember why a service could not do it now."""
        self._last = refusal
        self._problems[self._client.current()] = refusal.fact

    def _failed(self, address: str, error: HTTPError) -> None:
        if isinstance(error, SSLError) or "CERTIFICATE_VERIFY_FAILED" in str(error):
            raise ServiceUntrusted(
                f"The service at {address} is not to be trusted: {_error_text(error)}.",
                rule="A service shows a certificate for its own name, which is in date and signed by who is trusted.",
                remedy="Renew the certificate, or name the authority that signed it with ca=... or FLOODMARK_CA.",
                address=address,
            ) from error
        # A connection that was never made has carried no request.
        self.may_be_done |= not isinstance(error, NewConnectionError)
        self._last = None
        self._problems[address] = _error_text(error)

    def _pause(self, address: str) -> None:
        """Go to the next address at once; when all of them have been tried, wait a little before going round again."""
        self._client.go_on(address)
        self._number += 1
        rounds = self._number // len(self._client.addresses.urls)
        pause = 0.0 if self._number <= len(self._client.addresses.urls) else _FIRST_PAUSE * 2 ** min(rounds, 10)
        pause = min(pause, _LONGEST_PAUSE) * random.uniform(0.5, 1.0)
        if time.monotonic() + pause < self._until:
            time.sleep(pause)
            return
        if self._last is not None:
            raise self._last
        tried = "; ".join(f"{address}: {problem}" for address, problem in self._problems.items())
        raise ServiceUnavailable(
            f"No service of the home has answered within {self._client.budget:g} s: {tried}.",
            rule="One of the services that were named must run, and be reachable from here.",
            remedy="Start one with `floodmark serve`, or name others.",
            tried=dict(self._problems),
        )


@contextmanager
def _released(response: Any) -> Iterator[None]:
    try:
        yield
    finally:
        response.release_conn()


def _read_json(body: bytes, address: str, status: int) -> Any:
    try:
        return json.loads(body) if body else None
    except ValueError as error:
        if status in _TRY_ELSEWHERE:
            return None
        raise _answer_invalid(address, status) from error


def _refusal(value: Any, address: str, status: int) -> FloodmarkError:
    try:
        return load_error(value, status)
    except (KeyError, TypeError, ValueError, AttributeError):
        return _answer_invalid(address, status)


def _answer_invalid(address: str, status: int) -> AnswerInvalid:
    return AnswerInvalid(
        f"What answers at {address} is no service of Floodmark's: status {status}.",
        rule="A service answers with JSON of its own form.",
        remedy="Check the address, and what lies between it and this process.",
        address=address,
        status=status,
    )


def _error_text(error: HTTPError) -> str:
    if isinstance(error, ReadTimeoutError):
        return "no answer in time"
    cause: BaseException = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    if isinstance(cause, OSError) and cause.strerror:
        return cause.strerror
    return " ".join(str(cause).split())[:200] or type(cause).__name__


def _check_ca(path: str) -> str:
    """Return the path of a file with authorities, or refuse one that cannot be read; later it would look like a cut."""
    try:
        ssl.create_default_context(cafile=path)
    except OSError as error:
        raise InvalidOption(
            f"The file {path} with certificates cannot be read: {error}.",
            rule="It is a PEM file with the certificates of the authorities to trust.",
            remedy="Check ca=... or FLOODMARK_CA.",
            option="ca",
            path=path,
        ) from error
    return path


SCHEMES: Final = ("http", "https")
_RULE: Final = "It is http://HOST:PORT or https://HOST:PORT; several services of one home are separated by commas."
_TOKEN: Final = re.compile(r"[!-~]+")


def read_addresses(location: str) -> Addresses:
    """Return the services that a location names, or refuse it without showing what may be a secret.

    >>> print(read_addresses("http://a:8787,b:8788/"))
    http://a:8787,http://b:8788
    >>> read_addresses("http://someone:secret@a:8787")
    Traceback (most recent call last):
    floodmark.errors.InvalidOption: The URL of the service has a user or a password. ... [invalid-option]
    """
    parts = [part.strip() for part in location.split(",")]
    scheme = parts[0].partition("://")[0].lower()
    urls: list[str] = []
    for part in parts:
        url = part if "://" in part else f"{scheme}://{part}"
        try:
            read = urlsplit(url)
            port = read.port
        except ValueError as error:
            raise _unreadable() from error
        if "@" in read.netloc:
            raise InvalidOption(
                "The URL of the service has a user or a password.",
                rule="A service is opened by a token, which is never a part of a URL: URLs end up in logs.",
                remedy="Pass it as connect(..., token=...), or set FLOODMARK_TOKEN.",
            )
        if read.scheme != scheme or not _is_whole(read):
            raise _unreadable()
        host = f"[{read.hostname}]" if read.hostname and ":" in read.hostname else read.hostname
        urls.append(f"{scheme}://{host}" + ("" if port is None else f":{port}"))
    return Addresses(tuple(dict.fromkeys(urls)))


def check_token(token: object) -> str:
    """Return a token that can be sent, or refuse it without showing it."""
    if isinstance(token, str) and _TOKEN.fullmatch(token):
        return token
    raise InvalidOption(
        "The token cannot be sent.",
        rule="It is the text that `floodmark token create` has printed, without spaces or line ends.",
        remedy="Check connect(..., token=...), or FLOODMARK_TOKEN.",
        option="token",
    )


def _is_whole(read: SplitResult) -> bool:
    return bool(read.hostname) and read.path in ("", "/") and not read.query and not read.fragment


def _unreadable() -> InvalidOption:
    return InvalidOption(
        "The URL of the service cannot be read.",
        rule=_RULE,
        remedy="Write for example 'http://127.0.0.1:8787', or 'https://a.example:8787,b.example:8787'.",
    )
