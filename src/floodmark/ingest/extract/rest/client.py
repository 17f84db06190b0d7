"""The HTTP client of a REST service: one request at a time, paced, retried, and redirected only within one host.

A response is held in memory as a whole, so the number of its bytes is limited, counted after decompression.
"""

import logging
import random
import ssl
import time
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import urljoin

import urllib3
from urllib3.exceptions import (
    ConnectTimeoutError,
    HTTPError,
    LocationValueError,
    NameResolutionError,
    NewConnectionError,
    SSLError,
    TimeoutError,  # noqa: A004 - of urllib3, and only here
)

from floodmark.errors import FloodmarkError, RestAnswerInvalid, SourceAway, SourceRefused
from floodmark.ingest.extract.rest.request import (
    LONGEST_WAIT,
    ConnectionFailure,
    Credentials,
    Request,
    backoff_seconds,
    invalid_request_error,
    is_retriable,
    is_same_service,
    retry_after_seconds,
)
from floodmark.ingest.job.source import RestSource

_CLOSED_BY_SERVICE: Final = (ssl.SSLEOFError, ssl.SSLZeroReturnError)
_REDIRECTS: Final = (301, 302, 303, 307, 308)
_KEEPS_METHOD: Final = (307, 308)
_MOST_REDIRECTS: Final = 5
_CHUNK: Final = 1 << 16
_EXCERPT: Final = 200
_LONGEST_ERROR_BODY: Final = 1 << 16
"""How many bytes of a body are read to describe an error or a redirect."""
_LONGEST_URL: Final = 300


@dataclass(frozen=True, slots=True)
class Reply:
    """A successful response."""

    url: str
    """The URL that responded, after redirects and without the secret."""
    body: bytes
    link: str | None
    """The Link header."""
    is_empty: bool = False
    """Whether the status is 204, No Content."""


@dataclass(frozen=True, slots=True)
class _FailedRequest:
    """A request that got an error status, or no complete response."""

    status: int | None
    text: str
    is_unreached: bool = False
    """Whether no connection was made, so that the request has not arrived."""
    wait: float | None = None
    """How many seconds the service asks to wait before a retry."""


_CONNECTION_LOG: Final = logging.getLogger("urllib3.connectionpool")


def mask_queries(record: logging.LogRecord) -> bool:
    """Mask the queries of URLs in a record: urllib3 logs each URL at DEBUG, and a query may hold a secret."""
    if isinstance(record.args, tuple):
        record.args = tuple(
            f"{value.partition('?')[0]}?***" if isinstance(value, str) and "?" in value else value
            for value in record.args
        )
    return True


class RestClock:
    """The system's clocks, its sleep and its random numbers; tests replace it."""

    def now(self) -> float:
        """Return the seconds since the epoch."""
        return time.time()

    def elapsed(self) -> float:
        """Return the seconds of a monotonic clock."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)

    def chance(self) -> float:
        """Return a number from 0 to 1."""
        return random.random()


class RestClient:
    """Sends the requests of one source. Close it after use."""

    def __init__(self, source: RestSource, credentials: Credentials, clock: RestClock, concurrency: int) -> None:
        self._source = source
        self._credentials = credentials
        self._clock = clock
        self._timeout = source.timeout / 1_000_000
        self._pace = Pace(clock, None if source.rate is None else source.rate / concurrency)
        _CONNECTION_LOG.addFilter(mask_queries)
        self._pool = urllib3.PoolManager(num_pools=2, maxsize=1, retries=False)

    def send(self, request: Request) -> Reply:
        """Send a request, with retries and redirects, and return the response."""
        failures = 0
        while True:
            result = self._send_following_redirects(request)
            if isinstance(result, Reply):
                return result
            failures += 1
            self._clock.sleep(self._seconds_before_retry(request, result, failures))

    def close(self) -> None:
        """Close all connections."""
        self._pool.clear()

    def _seconds_before_retry(self, request: Request, failure: _FailedRequest, failures: int) -> float:
        """Return how long to wait before the request is sent again; raise if it must not be."""
        cause: int | ConnectionFailure = failure.status or ("unreached" if failure.is_unreached else "broken")
        if not is_retriable(request.method, cause):
            raise self._not_retriable_error(request, failure)
        if failure.wait is not None and failure.wait > LONGEST_WAIT:
            raise self._away_error(
                request,
                f"{failure.text} Its Retry-After is {failure.wait:.0f} seconds.",
                f"A cell waits at most {LONGEST_WAIT:.0f} seconds for a service.",
                "Run the job again after that time. If it happens often, lower rate in [source].",
            )
        if failures > self._source.retries:
            raise self._away_error(
                request,
                f"{failure.text} The request was sent {failures} times." if failures > 1 else failure.text,
                f"A request is sent again at most {self._source.retries} times.",
                "The cell stays due, and the next run reads it again. If the service is slow, raise timeout or retries "
                "in [source].",
            )
        return max(failure.wait or 0.0, backoff_seconds(failures, self._clock.chance()))

    def _send_following_redirects(self, request: Request) -> Reply | _FailedRequest:
        for _ in range(_MOST_REDIRECTS + 1):
            result = self._send_once(request)
            if not isinstance(result, str):
                return result
            request = replace(request, url=result)
        raise SourceRefused(
            f"{self._shown(request.url)} is the end of {_MOST_REDIRECTS} redirects, and redirects again.",
            rule=f"At most {_MOST_REDIRECTS} redirects are followed.",
            remedy="Set url in [source] to the address that responds itself.",
            url=self._shown(request.url),
        )

    def _send_once(self, request: Request) -> Reply | _FailedRequest | str:
        """Send a request and return its response, its failure, or the URL that it is redirected to."""
        self._pace.wait()
        authenticated = self._credentials.authenticate(request)
        deadline = self._clock.elapsed() + self._timeout
        try:
            response = self._pool.urlopen(
                authenticated.method,
                authenticated.url,
                body=authenticated.body,
                headers={"Accept-Encoding": "gzip, deflate", **dict(authenticated.headers)},
                timeout=urllib3.Timeout(total=self._timeout),
                redirect=False,
                preload_content=False,
            )
            is_success = 200 <= response.status < 300
            most = self._source.max_response_bytes if is_success else _LONGEST_ERROR_BODY
            try:
                body = self._read_body(response, deadline, most)
            except BaseException:
                response.close()  # the rest of the body would be taken for the next response
                raise
            if len(body) <= most:
                response.release_conn()
            else:
                response.close()
                if is_success:
                    raise self._too_large_error(request)
        except (LocationValueError, ValueError):
            raise invalid_request_error(self._shown(request.url)) from None
        except SSLError as error:
            if not isinstance(error.args[0], _CLOSED_BY_SERVICE):
                raise self._certificate_error(request, error) from None
            return _FailedRequest(None, f"{self._shown(request.url)} closed the connection.")
        except (NewConnectionError, NameResolutionError, ConnectTimeoutError) as error:
            return _FailedRequest(None, f"{self._shown(request.url)} cannot be reached ({type(error).__name__}).", True)
        except (TimeoutError, _TooSlow):
            return _FailedRequest(
                None, f"{self._shown(request.url)} has not responded within {self._timeout:g} seconds."
            )
        except (HTTPError, OSError) as error:
            return _FailedRequest(
                None, f"The response of {self._shown(request.url)} broke off ({type(error).__name__})."
            )
        return self._classify(request, response, body)

    def _read_body(self, response: urllib3.BaseHTTPResponse, deadline: float, most: int) -> bytes:
        """Return the decompressed body; if it has more than `most` bytes, a part of it that is longer than that."""
        chunks, size = [], 0
        while size <= most and (chunk := response.read1(_CHUNK, decode_content=True)):
            chunks.append(chunk)
            size += len(chunk)
            # The timeout of urllib3 is per read; this one is for the whole body.
            if self._clock.elapsed() > deadline:
                raise _TooSlow
        return b"".join(chunks)

    def _classify(
        self, request: Request, response: urllib3.BaseHTTPResponse, body: bytes
    ) -> Reply | _FailedRequest | str:
        status = response.status
        url = self._credentials.remove_from_url(request.url)
        if 200 <= status < 300:
            return Reply(url, body, response.headers.get("Link"), is_empty=status == 204)
        location = response.headers.get("Location")
        if status in _REDIRECTS and location:
            return self._redirect_url(request, status, urljoin(request.url, location))
        text = f"{self._shown(request.url)} responds with {status}{_reason(response)}."
        if body:
            text += f" The body is {self._excerpt(body)}."
        after = retry_after_seconds(
            response.headers.get("Retry-After"), response.headers.get("Date"), self._clock.now()
        )
        return _FailedRequest(status, text, wait=after)

    def _redirect_url(self, request: Request, status: int, location: str) -> str:
        url = location.partition("#")[0]
        if is_same_service(request.url, url) and (request.method == "GET" or status in _KEEPS_METHOD):
            return url
        raise SourceRefused(
            f"{self._shown(request.url)} redirects a {request.method} to {self._shown(url)} ({status}).",
            rule="A redirect is followed only within the same host, and only if it does not turn a POST into a GET.",
            remedy="If that address is right, set url in [source] to it.",
            url=self._shown(request.url),
            status=status,
        )

    def _not_retriable_error(self, request: Request, failure: _FailedRequest) -> FloodmarkError:
        status = failure.status
        if status is None or status >= 500:
            rule = "A POST is sent again only if it has not arrived, or after 429 or 503."
            if request.method == "GET":
                rule = "A GET is sent again after 500, 502, 503 and 504."
            remedy = "Check that the service works; the cell stays due, and the next run reads it again."
            return self._away_error(request, failure.text, rule, remedy)
        auth = self._source.auth
        remedy = "Correct url, params, headers or body in [source] as the response says."
        if status in (401, 403):
            remedy = "Add [source.auth] with a secret."
            if auth:
                remedy = f"Check that the secret {auth.secret} is valid and has the permission for this request."
        elif status == 404:
            remedy = "Check url in [source], and that the service knows the values of the unit in it."
        return SourceRefused(
            failure.text,
            rule="A request that the service refuses is not sent again.",
            remedy=remedy,
            url=self._shown(request.url),
            status=status,
        )

    def _away_error(self, request: Request, fact: str, rule: str, remedy: str) -> SourceAway:
        return SourceAway(fact, rule=rule, remedy=remedy, url=self._shown(request.url))

    def _too_large_error(self, request: Request) -> RestAnswerInvalid:
        most = self._source.max_response_bytes
        return RestAnswerInvalid(
            f"The response of {self._shown(request.url)} has more than {most} bytes after decompression.",
            rule="A response is held in memory as a whole, and has at most max_response_bytes bytes.",
            remedy=f"Request smaller pages in [source.pagination], or write max_response_bytes = {2 * most} or more in "
            "[source].",
            url=self._shown(request.url),
            most=most,
        )

    def _certificate_error(self, request: Request, error: SSLError) -> SourceRefused:
        return SourceRefused(
            f"{self._shown(request.url)} cannot be trusted: {self._credentials.redact(str(error))}.",
            rule="The certificate of a service is signed by an authority that this system trusts.",
            remedy="If it is signed by your own authority, set SSL_CERT_FILE to the certificate of that authority.",
            url=self._shown(request.url),
        )

    def _excerpt(self, body: bytes) -> str:
        return repr(self._credentials.redact(body.decode("utf-8", "replace"))[:_EXCERPT])

    def _shown(self, url: str) -> str:
        """Return a URL for messages: without the secret, and not too long."""
        text = self._credentials.redact(self._credentials.remove_from_url(url))
        return text if len(text) <= _LONGEST_URL else f"{text[:_LONGEST_URL]}..."


class _TooSlow(Exception):
    """The body is not complete when the timeout ends."""


def _reason(response: urllib3.BaseHTTPResponse) -> str:
    reason = (response.reason or "").strip()
    return f" ({reason[:60]})" if reason and reason.isprintable() else ""


class Pace:
    """Spaces requests evenly: each one a pause after the one before, and the first one a pause after the start.

    Because of the first pause, a task that reads many short splits is as slow as one that reads a long split.
    """

    def __init__(self, clock: RestClock, rate: float | None) -> None:
        self._clock = clock
        self._pause = 0.0 if rate is None else 1.0 / rate
        self._next = clock.elapsed() + self._pause

    def wait(self) -> None:
        """Wait until the next request may be sent."""
        if not self._pause:
            return
        while (ahead := self._next - self._clock.elapsed()) > 0:
            self._clock.sleep(ahead)
        self._next = self._clock.elapsed() + self._pause
