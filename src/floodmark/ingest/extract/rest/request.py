"""Requests: how a range and a unit are filled in, how a request is authenticated, and when it is sent again.

The ends of a range are requested exactly or not at all. If time_format cannot represent an end, such as 10:37 with a
format of days, the request is refused: it would silently miss rows.

| failure | GET | POST |
|---|---|---|
| no connection | retried | retried: it has not arrived |
| broken connection, incomplete body, timeout | retried | fails: it may have had an effect |
| 429, 503 | retried | retried: it was rejected |
| 408, 500, 502, 504 | retried | fails: it may have had an effect |
| any other 4xx or 5xx | fails | fails |

A failure fails the cell, and the next run reads it again.
"""

import json
import re
from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any, Final, Literal
from urllib.parse import quote, quote_plus, unquote_plus, urldefrag, urlsplit, urlunsplit

from floodmark._util.codec import parse_json
from floodmark._util.text import did_you_mean
from floodmark.errors import RestRequestInvalid, UnknownVariable
from floodmark.ingest.calendar.clock import EPOCH, MICROSECOND, format_moment, wall_to_micros, zone_of
from floodmark.ingest.job.source import EPOCH_UNITS, Auth, RestSource
from floodmark.ingest.planning.plan import PlannedRange

_REFERENCE: Final = re.compile(r"\{\{\s*([^{}]*?)\s*\}\}")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_PORTS: Final = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Request:
    """One request, without authentication."""

    method: str
    url: str
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes | None = None

    def with_param(self, name: str, value: str) -> "Request":
        """Return the request with a query parameter set."""
        return replace(self, url=with_param(self.url, name, value))


def with_param(url: str, name: str, value: str | None) -> str:
    """Return a URL with a query parameter set; None removes it.

    >>> with_param("http://api/x?page=1&flag", "page", "a b")
    'http://api/x?flag&page=a%20b'
    >>> with_param("http://api/x?key=1", "key", None)
    'http://api/x'
    """
    parts = urlsplit(url)
    kept = [pair for pair in parts.query.split("&") if pair and unquote_plus(pair.partition("=")[0]) != name]
    if value is not None:
        kept.append(f"{quote(name, safe='')}={quote(value, safe='')}")
    return urlunsplit((parts.scheme, parts.netloc, parts.path, "&".join(kept), ""))


def is_same_service(url: str, other: str) -> bool:
    """Return whether a secret for one URL may be sent to another: same host and port, or the same host now with TLS.

    >>> is_same_service("http://api.example/a", "https://API.example:443/b")
    True
    >>> is_same_service("https://api.example/a", "http://api.example/a")
    False
    """
    try:
        a, b = urlsplit(url), urlsplit(other)
        ports = [parts.port or _PORTS.get(parts.scheme) for parts in (a, b)]
    except ValueError:
        return False
    if (a.hostname or "").lower() != (b.hostname or "").lower():
        return False
    is_same = (a.scheme, ports[0]) == (b.scheme, ports[1])
    return is_same or (a.scheme, ports[0], b.scheme, ports[1]) == ("http", 80, "https", 443)


def first_request(source: RestSource, zone: str, row: PlannedRange) -> Request:
    """Return the first request of a cell.

    >>> from floodmark.ingest import Range, Unit
    >>> source = RestSource(
    ...     url="https://api.example/shops/{{unit.shop}}/orders", params={"since": "{{range.from}}"}, zone="UTC"
    ... )
    >>> first_request(
    ...     source, "UTC", PlannedRange(Unit.of({"shop": "a/b"}), Range(0, 1), Range(0, 1), "new", ("new",))
    ... ).url
    'https://api.example/shops/a%2Fb/orders?since=1970-01-01T00%3A00%3A00%2B00%3A00'
    """
    values = _TemplateValues(source, zone, row)
    url = values.fill(source.url, _url_text)
    try:
        urlsplit(url)
    except ValueError:
        raise invalid_request_error(url) from None
    for name, text in source.params.items():
        url = with_param(url, name, values.fill(text, _plain_text))
    headers = {name: _checked_header(name, values.fill(text, _plain_text)) for name, text in source.headers.items()}
    set_by_source = {name.lower() for name in headers}
    body = None if source.body is None else _fill_body(source.body, headers, values)
    if body is not None and "content-type" not in set_by_source:
        headers["Content-Type"] = "application/json" if _is_json(source.body) else "text/plain; charset=utf-8"
    for name, value in (("Accept", "application/json"), ("User-Agent", "floodmark")):
        if name.lower() not in set_by_source:
            headers[name] = value
    return Request(source.method, urldefrag(url).url, tuple(headers.items()), body)


def invalid_request_error(url: str) -> RestRequestInvalid:
    """Return the error for a URL or header that is invalid in HTTP."""
    return RestRequestInvalid(
        f"The request to {url} is invalid.",
        rule="A URL has a valid host name, and the name of a header has only letters, digits and dashes.",
        remedy="Correct url or headers in [source], or the unit's values that are filled into them.",
        url=url,
    )


@dataclass(frozen=True, slots=True)
class _TemplateValues:
    """The values of the variables in a request."""

    source: RestSource
    zone: str
    row: PlannedRange

    def fill(self, text: str, write: Callable[[Any, str], str]) -> str:
        """Return a text with each variable replaced by what `write` returns for its value and name."""
        return _REFERENCE.sub(lambda match: write(self._value(match[1]), match[1]), text)

    def _value(self, name: str) -> Any:
        ends: Mapping[str, int] = {"range.from": self.row.range.lo, "range.to": self.row.range.hi}
        if name in ends:
            return format_range_end(ends[name], self.source.time_format, self.source.zone or self.zone)
        fields = {f"unit.{field}": value for field, value in self.row.unit.fields.items()}
        if name not in fields:
            names = (*ends, *fields)
            raise UnknownVariable(
                f"There is no variable {name!r}.",
                rule="The variables of a request are range.from, range.to and the fields of the unit.",
                remedy=did_you_mean(name, names, otherwise=f"Use one of {', '.join(names)}."),
                variable=name,
            )
        return fields[name]


def _plain_text(value: Any, _name: str) -> str:
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _url_text(value: Any, name: str) -> str:
    text = _plain_text(value, name)
    if text in ("", ".", ".."):
        raise RestRequestInvalid(
            f"{name} is {text!r}, and is part of the URL.",
            rule="A value in the path of a URL is not empty, '.' or '..': these would change the address.",
            remedy="Remove this unit from the job, or use the variable in params instead of url.",
            variable=name,
        )
    return quote(text, safe="")


def _checked_header(name: str, value: str) -> str:
    if _CONTROL.search(value) or not value.isascii():
        raise RestRequestInvalid(
            f"The header {name} has a line break or a character that is not ASCII.",
            rule="The value of a header is one line of ASCII.",
            remedy="Move the value to params or to body.",
            header=name,
        )
    return value


def _is_json(body: str | None) -> bool:
    return (body or "").lstrip()[:1] in ("{", "[")


def _fill_body(template: str, headers: Mapping[str, str], values: _TemplateValues) -> bytes:
    kind = next((value for name, value in headers.items() if name.lower() == "content-type"), "")
    if "x-www-form-urlencoded" in kind.lower():
        return values.fill(template, lambda value, name: quote_plus(_plain_text(value, name))).encode()
    if not _is_json(template):
        return values.fill(template, _plain_text).encode()
    try:
        # A word in place of each text: outside quotes it is no JSON, while a text such as null would be.
        parse_json(
            values.fill(template, lambda value, name: "x" if isinstance(value, str) else _json_text(value, name))
        )
    except ValueError as error:
        raise RestRequestInvalid(
            f"The body is no JSON: {error}.",
            rule="A body that begins with a brace or a bracket is JSON, and variables that are texts stand in quotes.",
            remedy='Put quotes around variables that are texts, as in {"since": "{{range.from}}"}.',
            field="body",
        ) from error
    return values.fill(template, _json_text).encode()


def _json_text(value: Any, _name: str) -> str:
    written = json.dumps(value, ensure_ascii=False)
    return written[1:-1] if isinstance(value, str) else written


def format_range_end(micros: int, time_format: str, zone: str) -> str:
    """Return a time in `time_format` and in a zone; refuse a format that cannot represent it exactly.

    >>> format_range_end(0, "iso", "Asia/Kolkata"), format_range_end(1_000_000, "epoch-millis", "UTC")
    ('1970-01-01T05:30:00+05:30', '1000')
    >>> format_range_end(0, "%d.%m.%Y", "UTC")
    '01.01.1970'
    >>> format_range_end(3_600_000_000, "%d.%m.%Y", "UTC")
    Traceback (most recent call last):
    floodmark.errors.RestRequestInvalid: '%d.%m.%Y' writes 1970-01-01T01:00:00+00:00 as 01.01.1970. ...
    """
    if time_format == "iso":
        return format_moment(micros, zone_of(zone))
    if time_format in EPOCH_UNITS:
        whole, rest = divmod(micros, EPOCH_UNITS[time_format])
        if rest:
            raise _inexact_error(micros, time_format, zone, str(whole))
        return str(whole)
    text = (EPOCH + timedelta(microseconds=micros)).astimezone(zone_of(zone)).strftime(time_format)
    if not _parses_back(text, micros, time_format, zone):
        raise _inexact_error(micros, time_format, zone, text)
    return text


def _parses_back(text: str, micros: int, time_format: str, zone: str) -> bool:
    try:
        parsed = datetime.strptime(text, time_format)  # noqa: DTZ007 - the zone is added below
    except ValueError:
        return True  # strptime lacks a directive such as %s, so this cannot be checked
    if parsed.tzinfo is not None:
        return (parsed.astimezone(UTC) - EPOCH) // MICROSECOND == micros
    return wall_to_micros(parsed, zone_of(zone)) == micros


def _inexact_error(micros: int, time_format: str, zone: str, text: str) -> RestRequestInvalid:
    return RestRequestInvalid(
        f"{time_format!r} writes {format_moment(micros, zone_of(zone))} as {text}.",
        rule="Both ends of a range are requested exactly; else rows would be missed or read twice.",
        remedy='Write time_format = "iso" or another format with all digits, or end the job at whole days, as with '
        'to = "P0D".',
        time_format=time_format,
        time=micros,
    )


_REDACTED_PREFIX: Final = 6
"""The first characters of a secret, which are redacted even if the rest is missing."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """A secret that was looked up. It is kept only while a split is read, and its repr does not show it.

    >>> from floodmark.ingest import Secret
    >>> credentials = Credentials.of(Auth(by="bearer", secret=Secret("env", "TOKEN")), {"TOKEN": "a-b-c"})
    >>> credentials.authenticate(Request("GET", "http://api/x")).headers
    (('Authorization', 'Bearer a-b-c'),)
    >>> credentials, credentials.redact("refused: a-b-c")
    (Credentials(of env:TOKEN), 'refused: ***')
    """

    auth: Auth | None
    value: str

    @classmethod
    def of(cls, auth: Auth | None, environment: dict[str, str] | None = None) -> "Credentials":
        """Look up the secret."""
        if auth is None:
            return cls(None, "")
        value = auth.secret.value(environment)
        if auth.by in ("bearer", "header") and not (value.isascii() and value.isprintable()):
            raise RestRequestInvalid(
                f"The secret {auth.secret} has a line break or a character that is not printable ASCII.",
                rule="The value of a header is one line of ASCII.",
                remedy="Store the secret alone, without a trailing line break or quotes around it.",
                secret=str(auth.secret),
            )
        return cls(auth, value)

    def authenticate(self, request: Request) -> Request:
        """Return a request with the secret in its header or query parameter."""
        auth = self.auth
        if auth is None:
            return request
        if auth.by == "query":
            return request.with_param(str(auth.name), self.value)
        if auth.by == "header":
            return replace(request, headers=(*request.headers, (str(auth.name), self.value)))
        value = f"Bearer {self.value}" if auth.by == "bearer" else f"Basic {self._basic()}"
        return replace(request, headers=(*request.headers, ("Authorization", value)))

    def remove_from_url(self, url: str) -> str:
        """Return a URL without the query parameter of the secret, which a service may have copied into it."""
        if self.auth is not None and self.auth.by == "query":
            url = with_param(url, str(self.auth.name), None)
        return url

    def redact(self, text: str) -> str:
        """Return a text with the secret replaced by ***, also where it is quoted or encoded."""
        if self.auth is None:
            return text
        plain = self.value
        forms = {plain, quote(plain), quote(plain, safe=""), quote_plus(plain)}
        forms |= {repr(plain)[1:-1], json.dumps(plain)[1:-1], json.dumps(plain, ensure_ascii=False)[1:-1]}
        if self.auth.by == "basic":
            forms.add(self._basic())
        for form in sorted(forms, key=len, reverse=True):
            text = _redact(text, form)
        return text

    def _basic(self) -> str:
        assert self.auth is not None
        return b64encode(f"{self.auth.user}:{self.value}".encode()).decode()

    def __repr__(self) -> str:
        return f"Credentials(of {self.auth.secret})" if self.auth else "Credentials(none)"


def _redact(text: str, secret: str) -> str:
    """Return a text without a secret, also where a text cut short has only the beginning of it."""
    head = secret[:_REDACTED_PREFIX]
    kept, position = [], 0
    while (start := text.find(head, position)) >= 0:
        end = start + len(head)
        while end < len(text) and end - start < len(secret) and text[end] == secret[end - start]:
            end += 1
        kept += [text[position:start], "***"]
        position = end
    return "".join((*kept, text[position:]))


ConnectionFailure = Literal["unreached", "broken"]
"""No connection was made; or the connection broke before the response was complete."""

LONGEST_WAIT: Final = 300.0
"""In seconds. A service that asks to wait longer fails the cell."""
_FIRST_WAIT: Final = 0.5
_LONGEST_BACKOFF: Final = 30.0
_RETRIABLE_STATUS: Final = {
    "GET": frozenset((408, 429, 500, 502, 503, 504)),
    "POST": frozenset((429, 503)),
}


def is_retriable(method: str, cause: int | ConnectionFailure) -> bool:
    """Return whether a request may be sent again after a status or a connection failure.

    >>> is_retriable("GET", 500), is_retriable("POST", 500), is_retriable("POST", "unreached")
    (True, False, True)
    """
    if isinstance(cause, int):
        return cause in _RETRIABLE_STATUS[method]
    return cause == "unreached" or method == "GET"


def backoff_seconds(failures: int, chance: float) -> float:
    """Return how many seconds to wait after this many failures, doubling each time.

    `chance`, from 0 to 1, adds jitter, so that tasks do not retry all at once.

    >>> [backoff_seconds(failures, 1.0) for failures in (1, 2, 3, 20)], backoff_seconds(1, 0.0)
    ([0.5, 1.0, 2.0, 30.0], 0.25)
    """
    longest = min(_LONGEST_BACKOFF, _FIRST_WAIT * 2.0 ** min(failures - 1, 16))
    return longest * (0.5 + chance / 2)


def retry_after_seconds(header: str | None, date: str | None, now: float) -> float | None:
    """Return the seconds to wait by a Retry-After header; None if it is missing or invalid.

    A date is compared with the service's Date header, or else with `now`, in seconds since the epoch.

    >>> (
    ...     retry_after_seconds("7", None, 0.0),
    ...     retry_after_seconds("Thu, 01 Jan 1970 00:01:00 GMT", None, 15.0),
    ...     retry_after_seconds("-", None, 0),
    ... )
    (7.0, 45.0, None)
    """
    if header is None:
        return None
    text = header.strip()
    if text.isascii() and text.isdigit():
        return float(text[:12])
    until = _parse_http_date(text)
    if until is None:
        return None
    service_now = None if date is None else _parse_http_date(date)
    return max(0.0, until - (now if service_now is None else service_now))


def _parse_http_date(text: str) -> float | None:
    try:
        return parsedate_to_datetime(text).timestamp()
    except (ValueError, OverflowError, OSError):
        return None
