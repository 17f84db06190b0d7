"""HTTP requests to the services of a home, retried with the next service within a time budget."""

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

from floodmark._util.codec import parse_json
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
"""How long a request is retried before it fails."""

T = TypeVar("T")

_CONNECT_SECONDS: Final = 5.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0
_RETRIABLE_STATUSES: Final = (502, 503, 504)


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a request: a value, or an error.

    `was_repeated` means that an earlier attempt, whose answer was lost, may have been carried out too.
    """

    value: Any
    refusal: FloodmarkError | None
    was_repeated: bool

    def unwrap(self) -> Any:
        """Return the value, or raise the error."""
        if self.refusal is not None:
            raise self.refusal
        return self.value


@dataclass(frozen=True, slots=True)
class Addresses:
    """The URLs of the services of one home."""

    urls: tuple[str, ...]

    def __str__(self) -> str:
        """Return them in the form that `read_addresses` takes."""
        return ",".join(self.urls)


Query = Mapping[str, str | int | None]


@dataclass(frozen=True, slots=True)
class Request:
    """One request. It may be sent several times, so it must be idempotent."""

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
        """Create a request about a stream, with a JSON value or another body.

        The path has the stream's id, because names contain slashes and can be reused. The name is sent too, for the
        error if the stream was deleted.
        """
        path = "/".join([STREAMS_PATH, str(stream.id), *map(str, parts)])
        content = body if value is None else json.dumps(value)
        return cls(method, path, {**(query or {}), "name": stream.name}, content, content_type)


class Client:
    """HTTP client of the services of one home. Thread-safe; after a fork the child opens its own connections."""

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
        """Connect on the first request."""
        self._addresses = addresses
        self._token = token
        self._ca = None if ca is None else _check_ca(os.fspath(ca))
        self._budget = budget
        # Start with a random service to spread the load.
        self._current = random.randrange(len(addresses.urls))
        self._lock = threading.Lock()
        self._is_closed = False
        self._process = os.getpid()
        self._pool = self._new_pool()

    def ask(self, request: Request) -> Answer:
        """Send a request, with retries, and return the answer."""
        attempts = _Attempts(self, request)
        for response, address in attempts:
            with _released(response):
                status, body = response.status, attempts.read(response, address)
            if body is None:
                continue
            value = _read_json(body, address, status)
            if status < 300:
                return Answer(value, None, attempts.may_be_repeated)
            refusal = _load_refusal(value, address, status)
            if status not in _RETRIABLE_STATUSES:
                return Answer(None, refusal, attempts.may_be_repeated)
            attempts.record_refusal(refusal)
        raise AssertionError("attempts end by returning or raising")

    def call(self, request: Request, load: Callable[[Any], T]) -> T:
        """Send a request and return its loaded answer, or raise its error."""
        return self.load(self.ask(request).unwrap(), load)

    def load(self, value: Any, load: Callable[[Any], T]) -> T:
        """Load an answer, or raise `AnswerInvalid` if it does not have the expected form."""
        try:
            return load(value)
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            raise _answer_invalid(self.current(), 200) from error

    @contextmanager
    def reading(self, request: Request) -> Iterator[Any]:
        """Open the body of an answer as a file-like source."""
        attempts = _Attempts(self, request)
        for response, address in attempts:
            if response.status == 200:
                try:
                    yield response
                    # Read to the end, so that the connection can be reused.
                    response.drain_conn()
                finally:
                    if response.closed:
                        response.release_conn()
                    else:
                        response.close()
                return
            with _released(response):
                status, body = response.status, attempts.read(response, address)
            if body is None:
                continue
            refusal = _load_refusal(_read_json(body, address, status), address, status)
            if status not in _RETRIABLE_STATUSES:
                raise refusal
            attempts.record_refusal(refusal)

    def close(self) -> None:
        """Close all connections."""
        self._is_closed = True
        self._pool.clear()

    def __repr__(self) -> str:
        return f"Client({str(self._addresses)!r})"

    @property
    def addresses(self) -> Addresses:
        """The URLs of the services."""
        return self._addresses

    @property
    def budget(self) -> float:
        """For how many seconds a request is retried."""
        return self._budget

    def current(self) -> str:
        """Return the service in use."""
        return self._addresses.urls[self._current]

    def switch(self, from_address: str) -> None:
        """Switch to the next service, unless another thread has already done so."""
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
                rule="A closed home cannot be used.",
                remedy="Open it again with connect().",
                path=str(self._addresses),
            )
        if self._process != os.getpid():
            # After a fork: the child must not use the connections of its parent.
            self._pool = self._new_pool()
            self._process = os.getpid()

    def _new_pool(self) -> urllib3.PoolManager:
        return urllib3.PoolManager(maxsize=32, cert_reqs="CERT_REQUIRED", ca_certs=self._ca)


class _Attempts:
    """The attempts at one request: yields responses, switching between services, until the budget is used up."""

    def __init__(self, client: Client, request: Request) -> None:
        self._client = client
        self._request = request
        self._deadline = time.monotonic() + client.budget
        self._problems: dict[str, str] = {}
        self._last_refusal: FloodmarkError | None = None
        self.may_be_repeated = False
        self._number = 0

    def __iter__(self) -> Iterator[tuple[Any, str]]:
        while True:
            address = self._client.current()
            # No attempt takes the whole budget, so that a hanging service does not use it up.
            seconds = max(min(self._deadline - time.monotonic(), self._client.budget / 2), 0.1)
            try:
                response = self._client.send(self._request, address, seconds)
            except HTTPError as error:
                self._record_failure(address, error)
            else:
                yield response, address
            self._pause(address)

    def read(self, response: Any, address: str) -> bytes | None:
        """Return the whole body of a response, or None if the connection broke."""
        try:
            body: bytes = response.read()
        except HTTPError as error:
            self._record_failure(address, error)
            return None
        return body

    def record_refusal(self, refusal: FloodmarkError) -> None:
        """Record a refusal that another service or a later attempt may not repeat."""
        self._last_refusal = refusal
        self._problems[self._client.current()] = refusal.fact

    def _record_failure(self, address: str, error: HTTPError) -> None:
        if isinstance(error, SSLError) or "CERTIFICATE_VERIFY_FAILED" in str(error):
            raise ServiceUntrusted(
                f"The certificate of the service at {address} is not trusted: {_error_text(error)}.",
                rule="The certificate must be valid for the host name, not expired, and signed by a trusted authority.",
                remedy="Renew the certificate, or set ca=... or FLOODMARK_CA to a PEM file of the authority that "
                "signed it.",
                address=address,
            ) from error
        # Without a connection the request was not sent.
        self.may_be_repeated |= not isinstance(error, NewConnectionError)
        self._last_refusal = None
        self._problems[address] = _error_text(error)

    def _pause(self, address: str) -> None:
        """Switch to the next service at once; pause after all of them were tried."""
        self._client.switch(address)
        self._number += 1
        rounds = self._number // len(self._client.addresses.urls)
        pause = 0.0 if self._number <= len(self._client.addresses.urls) else _FIRST_PAUSE * 2 ** min(rounds, 10)
        pause = min(pause, _LONGEST_PAUSE) * random.uniform(0.5, 1.0)
        if time.monotonic() + pause < self._deadline:
            time.sleep(pause)
            return
        if self._last_refusal is not None:
            raise self._last_refusal
        tried = "; ".join(f"{address}: {problem}" for address, problem in self._problems.items())
        raise ServiceUnavailable(
            f"No service of the home answered within {self._client.budget:g} s: {tried}.",
            rule="At least one of the services must be running and reachable.",
            remedy="Start one with `floodmark serve`, or pass the URL of a running one to connect().",
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
        return parse_json(body) if body else None
    except ValueError as error:
        if status in _RETRIABLE_STATUSES:
            return None
        raise _answer_invalid(address, status) from error


def _load_refusal(value: Any, address: str, status: int) -> FloodmarkError:
    try:
        return load_error(value, status)
    except (KeyError, TypeError, ValueError, AttributeError):
        return _answer_invalid(address, status)


def _answer_invalid(address: str, status: int) -> AnswerInvalid:
    return AnswerInvalid(
        f"The server at {address} did not answer like a Floodmark service: status {status}.",
        rule="A Floodmark service answers with JSON as described by its /v1/openapi.json.",
        remedy=f"Check that {address} is the URL of `floodmark serve`, and that no proxy changes its answers.",
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
    """Return the path of a readable CA file; an unreadable one would later look like a broken connection."""
    try:
        ssl.create_default_context(cafile=path)
    except OSError as error:
        raise InvalidOption(
            f"The CA file {path} cannot be read: {error}.",
            rule="A CA file is a PEM file with the certificates of the trusted authorities.",
            remedy="Set ca=... or FLOODMARK_CA to such a file.",
            option="ca",
            path=path,
        ) from error
    return path


_URL_RULE: Final = "The form is http://HOST:PORT or https://HOST:PORT; separate several services of a home by commas."
_TOKEN_CHARACTERS: Final = re.compile(r"[!-~]+")


def read_addresses(location: str) -> Addresses:
    """Parse the URLs of services, or raise an error that shows no secrets.

    >>> print(read_addresses("http://a:8787,b:8788/"))
    http://a:8787,http://b:8788
    >>> read_addresses("http://someone:secret@a:8787")
    Traceback (most recent call last):
    floodmark.errors.InvalidOption: The URL of the service contains a user or password. ... [invalid-option]
    """
    parts = [part.strip() for part in location.split(",")]
    scheme = parts[0].partition("://")[0].lower()
    urls: list[str] = []
    for part in parts:
        url = part if "://" in part else f"{scheme}://{part}"
        try:
            parsed = urlsplit(url)
            port = parsed.port
        except ValueError as error:
            raise _url_unreadable() from error
        if "@" in parsed.netloc:
            raise InvalidOption(
                "The URL of the service contains a user or password.",
                rule="A service is accessed with a token, which must not be in a URL, because URLs end up in logs.",
                remedy="Pass the token as connect(..., token=...), or set FLOODMARK_TOKEN.",
            )
        if parsed.scheme != scheme or not _is_address(parsed):
            raise _url_unreadable()
        host = f"[{parsed.hostname}]" if parsed.hostname and ":" in parsed.hostname else parsed.hostname
        urls.append(f"{scheme}://{host}" + ("" if port is None else f":{port}"))
    return Addresses(tuple(dict.fromkeys(urls)))


def check_token(token: object) -> str:
    """Return the token if it can be sent in a header; the error for another one does not show it."""
    if isinstance(token, str) and _TOKEN_CHARACTERS.fullmatch(token):
        return token
    raise InvalidOption(
        "The token has characters that cannot be sent.",
        rule="A token is the text that `floodmark token create` printed, without spaces or line ends.",
        remedy="Set connect(..., token=...) or FLOODMARK_TOKEN to that text.",
        option="token",
    )


def _is_address(parsed: SplitResult) -> bool:
    return bool(parsed.hostname) and parsed.path in ("", "/") and not parsed.query and not parsed.fragment


def _url_unreadable() -> InvalidOption:
    return InvalidOption(
        "The URL of the service cannot be read.",
        rule=_URL_RULE,
        remedy="Use for example 'http://127.0.0.1:8787' or 'https://a.example:8787,b.example:8787'.",
    )
