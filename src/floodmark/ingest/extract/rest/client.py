"""The client of a REST service: one request at a time, paced, retried, and redirected within one host only."""

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

from floodmark.errors import FloodmarkError, SourceAway, SourceRefused
from floodmark.ingest.extract.rest.request import (
    LONGEST_WAIT,
    ConnectionTrouble,
    Credentials,
    Request,
    backoff_seconds,
    invalid_request_error,
    is_retriable,
    is_same_service,
    retry_after_seconds,
)
from floodmark.ingest.job.source import RestSource

_HUNG_UP: Final = (ssl.SSLEOFError, ssl.SSLZeroReturnError)
_REDIRECTS: Final = (301, 302, 303, 307, 308)
_KEEPS_METHOD: Final = (307, 308)
_MOST_REDIRECTS: Final = 5
_CHUNK: Final = 1 << 16
_EXCERPT: Final = 200
_LONGEST_URL: Final = 300


@dataclass(frozen=True, slots=True)
class Reply:
    """What a service has answered in the end."""

    url: str
    """Where from, without what proves who asks."""
    body: bytes
    link: str | None
    is_empty: bool = False
    """Whether it says that there is nothing (204)."""


@dataclass(frozen=True, slots=True)
class _FailedRequest:
    """What came instead of a good answer: a status, or none."""

    status: int | None
    text: str
    is_unreached: bool = False
    wait: float | None = None


class RestClock:
    """The system's clocks, its sleep and its dice."""

    def now(self) -> float:
        """Return the seconds since the epoch."""
        return time.time()

    def elapsed(self) -> float:
        """Return seconds that only ever rise."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)

    def chance(self) -> float:
        """Return a number from 0 to 1."""
        return random.random()


class RestClient:
    """Asks one service, as its source says. To be closed."""

    def __init__(self, source: RestSource, credentials: Credentials, clock: RestClock, share: int) -> None:
        self._source = source
        self._credentials = credentials
        self._clock = clock
        self._timeout = source.timeout / 1_000_000
        self._pace = Pace(clock, None if source.rate is None else source.rate / share)
        self._pool = urllib3.PoolManager(num_pools=2, maxsize=1, retries=False)

    def ask(self, request: Request) -> Reply:
        """Return the answer to a request, after as many attempts as it may take."""
        failed = 0
        while True:
            found = self._followed(request)
            if isinstance(found, Reply):
                return found
            failed += 1
            wait = self._wait(request, found, failed)
            self._clock.sleep(wait)

    def close(self) -> None:
        """Let go of all connections."""
        self._pool.clear()

    def _wait(self, request: Request, trouble: _FailedRequest, failed: int) -> float:
        what: int | ConnectionTrouble = trouble.status or ("unreached" if trouble.is_unreached else "broken")
        if not is_retriable(request.method, what):
            raise self._refusal(request, trouble)
        if trouble.wait is not None and trouble.wait > LONGEST_WAIT:
            raise self._unavailable(
                request,
                f"{trouble.text} It asks to be left alone for {trouble.wait:.0f} seconds.",
                f"A cell waits at most {LONGEST_WAIT:.0f} seconds for a service.",
                "Run the job again then, or ask for less: a smaller rate, fewer cells.",
            )
        if failed > self._source.retries:
            raise self._unavailable(
                request,
                f"{trouble.text} It was asked {failed} times." if failed > 1 else trouble.text,
                f"A request is sent again at most {self._source.retries} times.",
                "The cell stays due, and the next run asks again. If the service is slow, raise timeout or retries.",
            )
        return max(trouble.wait or 0.0, backoff_seconds(failed, self._clock.chance()))

    def _followed(self, request: Request) -> Reply | _FailedRequest:
        """Return what comes of a request, wherever in the same service it leads."""
        for _ in range(_MOST_REDIRECTS + 1):
            found = self._once(request)
            if not isinstance(found, str):
                return found
            request = replace(request, url=found)
        raise SourceRefused(
            f"{self._shown(request.url)} is the end of {_MOST_REDIRECTS} redirections, and leads further.",
            rule="An address leads to an answer.",
            remedy="Write the address that answers into url.",
            url=self._shown(request.url),
        )

    def _once(self, request: Request) -> Reply | _FailedRequest | str:
        """Send a request: an answer, a trouble, or the URL that it is redirected to."""
        self._pace.wait()
        signed = self._credentials.signed(request)
        deadline = self._clock.elapsed() + self._timeout
        try:
            response = self._pool.urlopen(
                signed.method,
                signed.url,
                body=signed.body,
                headers={"Accept-Encoding": "gzip, deflate", **dict(signed.headers)},
                timeout=urllib3.Timeout(total=self._timeout),
                redirect=False,
                preload_content=False,
            )
            try:
                body = self._body(response, deadline)
            except BaseException:
                response.close()  # what is left of the body would be taken for the next answer
                raise
            response.release_conn()
        except (LocationValueError, ValueError):
            raise invalid_request_error(self._shown(request.url)) from None
        except SSLError as error:
            if not isinstance(error.args[0], _HUNG_UP):
                raise self._untrusted(request, error) from None
            return _FailedRequest(None, f"{self._shown(request.url)} has hung up.")
        except (NewConnectionError, NameResolutionError, ConnectTimeoutError) as error:
            return _FailedRequest(None, f"{self._shown(request.url)} cannot be reached ({type(error).__name__}).", True)
        except (TimeoutError, _TooSlow):
            return _FailedRequest(
                None, f"{self._shown(request.url)} has not answered within {self._timeout:g} seconds."
            )
        except (HTTPError, OSError) as error:
            return _FailedRequest(None, f"The answer of {self._shown(request.url)} broke off ({type(error).__name__}).")
        return self._judged(request, response, body)

    def _body(self, response: urllib3.BaseHTTPResponse, deadline: float) -> bytes:
        chunks = []
        while chunk := response.read1(_CHUNK, decode_content=True):
            chunks.append(chunk)
            # Each byte in time is not the whole in time.
            if self._clock.elapsed() > deadline:
                raise _TooSlow
        return b"".join(chunks)

    def _judged(
        self, request: Request, response: urllib3.BaseHTTPResponse, body: bytes
    ) -> Reply | _FailedRequest | str:
        status = response.status
        url = self._credentials.unsigned(request.url)
        if 200 <= status < 300:
            return Reply(url, body, response.headers.get("Link"), is_empty=status == 204)
        location = response.headers.get("Location")
        if status in _REDIRECTS and location:
            return self._redirected(request, status, urljoin(request.url, location))
        text = f"{self._shown(request.url)} answers {status}{_reason(response)}."
        if body:
            text += f" It says {self._excerpt(body)}."
        after = retry_after_seconds(
            response.headers.get("Retry-After"), response.headers.get("Date"), self._clock.now()
        )
        return _FailedRequest(status, text, wait=after)

    def _redirected(self, request: Request, status: int, location: str) -> str:
        target = location.partition("#")[0]
        if is_same_service(request.url, target) and (request.method == "GET" or status in _KEEPS_METHOD):
            return target
        raise SourceRefused(
            f"{self._shown(request.url)} redirects a {request.method} to {self._shown(target)} ({status}).",
            rule="A redirection is followed within the same host, and without making a POST a GET.",
            remedy="If that address is meant, write it into url.",
            url=self._shown(request.url),
            status=status,
        )

    def _refusal(self, request: Request, trouble: _FailedRequest) -> FloodmarkError:
        status = trouble.status
        if status is None or status >= 500:
            rule = "A POST is sent again only if it has not arrived, or was turned away with 429 or 503."
            if request.method == "GET":
                rule = "A GET is sent again after 500, 502, 503 and 504."
            return self._unavailable(request, trouble.text, rule, "The cell stays due, and the next run asks again.")
        auth = self._source.auth
        remedy = "See what the service says, and correct url, params, headers or body."
        if status in (401, 403):
            remedy = f"See whether the secret {auth.secret} is right and may do this." if auth else "Add [source.auth]."
        elif status == 404:
            remedy = "See whether url is right, and whether the unit is there."
        return SourceRefused(
            trouble.text,
            rule="A request that the service refuses is not sent again.",
            remedy=remedy,
            url=self._shown(request.url),
            status=status,
        )

    def _unavailable(self, request: Request, fact: str, rule: str, remedy: str) -> SourceAway:
        return SourceAway(fact, rule=rule, remedy=remedy, url=self._shown(request.url))

    def _untrusted(self, request: Request, error: SSLError) -> SourceRefused:
        return SourceRefused(
            f"{self._shown(request.url)} cannot be trusted: {self._credentials.hidden(str(error))}.",
            rule="A service proves itself with a certificate that the system knows.",
            remedy="If it has one of your own authority, set SSL_CERT_FILE to that authority's certificate.",
            url=self._shown(request.url),
        )

    def _excerpt(self, body: bytes) -> str:
        return repr(self._credentials.hidden(body.decode("utf-8", "replace"))[:_EXCERPT])

    def _shown(self, url: str) -> str:
        text = self._credentials.hidden(self._credentials.unsigned(url))
        return text if len(text) <= _LONGEST_URL else f"{text[:_LONGEST_URL]}..."


class _TooSlow(Exception):
    """The body is still coming when all of it should be there."""


def _reason(response: urllib3.BaseHTTPResponse) -> str:
    reason = (response.reason or "").strip()
    return f" ({reason[:60]})" if reason and reason.isprintable() else ""


class Pace:
    """Requests at even distances: each a pause after the one before, and the first a pause after the start.

    So that whoever reads one part after the other, as a task does, asks no faster than who reads one long one.
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
