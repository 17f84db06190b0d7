"""A request: how a range and a unit are written into it, what authenticates it, and when it is sent again.

A range is asked for exactly or not at all: an end that a format cannot say, as 10:37 where only the day is written,
would be asked for as another one, and what lies between would be lost.

| failure | GET | POST |
|---|---|---|
| no connection | again | again: it has not arrived |
| a connection that broke, a body that was cut, no answer in time | again | fails: it may have had an effect |
| 429, 503 | again | again: it was turned away |
| 408, 500, 502, 504 | again | fails: it may have had an effect |
| another 4xx or 5xx | fails | fails |

What fails here fails the cell, and the next run asks again.
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
    """One request, without what proves who asks."""

    method: str
    url: str
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes | None = None

    def with_param(self, name: str, value: str) -> "Request":
        """Return it with a parameter, in place of one of the same name."""
        return replace(self, url=with_param(self.url, name, value))


def with_param(url: str, name: str, value: str | None) -> str:
    """Return a URL with a parameter in place of one of the same name; None takes it out.

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


def is_same_service(known: str, other: str) -> bool:
    """Return whether what is sent to one URL may be sent to another: the same host and port, or the same under TLS.

    >>> is_same_service("http://api.example/a", "https://API.example:443/b")
    True
    >>> is_same_service("https://api.example/a", "http://api.example/a")
    False
    """
    try:
        a, b = urlsplit(known), urlsplit(other)
        ports = [one.port or _PORTS.get(one.scheme) for one in (a, b)]
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
    url = values.into(source.url, _in_url)
    try:
        urlsplit(url)
    except ValueError:
        raise invalid_request_error(url) from None
    for name, text in source.params.items():
        url = with_param(url, name, values.into(text, _plain))
    headers = {name: _header(name, values.into(text, _plain)) for name, text in source.headers.items()}
    given = {name.lower() for name in headers}
    body = None if source.body is None else _body(source.body, headers, values)
    if body is not None and "content-type" not in given:
        headers["Content-Type"] = "application/json" if _is_json(source.body) else "text/plain; charset=utf-8"
    for name, value in (("Accept", "application/json"), ("User-Agent", "floodmark")):
        if name.lower() not in given:
            headers[name] = value
    return Request(source.method, urldefrag(url).url, tuple(headers.items()), body)


def invalid_request_error(url: str) -> RestRequestInvalid:
    """Return the error of a URL or header that HTTP does not know."""
    return RestRequestInvalid(
        f"No request can be made of {url} and its headers.",
        rule="An address has a host that can be, and a header a name of letters, digits and dashes.",
        remedy="Correct url, headers, or the value of the unit that stands in them.",
        url=url,
    )


@dataclass(frozen=True, slots=True)
class _TemplateValues:
    source: RestSource
    zone: str
    row: PlannedRange

    def into(self, text: str, write: Callable[[Any, str], str]) -> str:
        return _REFERENCE.sub(lambda match: write(self._value(match[1]), match[1]), text)

    def _value(self, name: str) -> Any:
        ends: Mapping[str, int] = {"range.from": self.row.range.lo, "range.to": self.row.range.hi}
        if name in ends:
            return format_range_end(ends[name], self.source.time_format, self.source.zone or self.zone)
        known = {f"unit.{field}": value for field, value in self.row.unit.fields.items()}
        if name not in known:
            raise UnknownVariable(
                f"There is no variable {name!r}.",
                rule="A request may name range.from, range.to and the fields of the unit.",
                remedy=did_you_mean(name, (*ends, *known), otherwise=f"There are {', '.join((*ends, *known))}."),
                variable=name,
            )
        return known[name]


def _plain(value: Any, _name: str) -> str:
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _in_url(value: Any, name: str) -> str:
    text = _plain(value, name)
    if text in ("", ".", ".."):
        raise RestRequestInvalid(
            f"{name} is {text!r}, and stands in the URL.",
            rule="What stands in a URL is a name of its own; this would lead to another address.",
            remedy="Leave this unit out, or give the value as one of params.",
            variable=name,
        )
    return quote(text, safe="")


def _header(name: str, value: str) -> str:
    if _CONTROL.search(value) or not value.isascii():
        raise RestRequestInvalid(
            f"The header {name} has a line break or a letter that no header can have.",
            rule="A header is one line of ASCII.",
            remedy="Give the value as one of params, or in the body.",
            header=name,
        )
    return value


def _is_json(body: str | None) -> bool:
    return (body or "").lstrip()[:1] in ("{", "[")


def _body(template: str, headers: Mapping[str, str], values: _TemplateValues) -> bytes:
    kind = next((value for name, value in headers.items() if name.lower() == "content-type"), "")
    if "x-www-form-urlencoded" in kind.lower():
        return values.into(template, lambda value, name: quote_plus(_plain(value, name))).encode()
    if not _is_json(template):
        return values.into(template, _plain).encode()
    text = values.into(template, _in_json)
    try:
        json.loads(text)
    except ValueError as error:
        raise RestRequestInvalid(
            f"The body is no JSON: {error}.",
            rule="A body that begins with a brace or a bracket is JSON, also with the values of the cell in it.",
            remedy='Put quotes around texts, as in {"since": "{{range.from}}"}.',
            field="body",
        ) from error
    return text.encode()


def _in_json(value: Any, _name: str) -> str:
    written = json.dumps(value, ensure_ascii=False)
    return written[1:-1] if isinstance(value, str) else written


def format_range_end(micros: int, time_format: str, zone: str) -> str:
    """Return a moment as `time_format` writes it in a zone.

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
            raise _inexact(micros, time_format, zone, str(whole))
        return str(whole)
    text = (EPOCH + timedelta(microseconds=micros)).astimezone(zone_of(zone)).strftime(time_format)
    if not _says(text, micros, time_format, zone):
        raise _inexact(micros, time_format, zone, text)
    return text


def _says(text: str, micros: int, time_format: str, zone: str) -> bool:
    try:
        read = datetime.strptime(text, time_format)  # noqa: DTZ007 - the zone is added below
    except ValueError:
        return True  # a directive that cannot be read back, such as %s: its author knows what it says
    if read.tzinfo is not None:
        return (read.astimezone(UTC) - EPOCH) // MICROSECOND == micros
    return wall_to_micros(read, zone_of(zone)) == micros


def _inexact(micros: int, time_format: str, zone: str, text: str) -> RestRequestInvalid:
    return RestRequestInvalid(
        f"{time_format!r} writes {format_moment(micros, zone_of(zone))} as {text}.",
        rule="Both ends of a range are asked for exactly; else rows between are lost or read twice.",
        remedy='Let time_format say all of it, for example "iso", or let the job end at whole days, as to = "P0D".',
        time_format=time_format,
        time=micros,
    )


_SHOWN_PREFIX: Final = 6
"""So much of a secret gives it away."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """A secret that was looked up. It lives as long as one reading, and is in no repr.

    >>> from floodmark.ingest import Secret
    >>> given = Credentials.of(Auth(by="bearer", secret=Secret("env", "TOKEN")), {"TOKEN": "a-b-c"})
    >>> given.signed(Request("GET", "http://api/x")).headers
    (('Authorization', 'Bearer a-b-c'),)
    >>> given, given.hidden("refused: a-b-c")
    (Credentials(of env:TOKEN), 'refused: ***')
    """

    auth: Auth | None
    value: str

    @classmethod
    def of(cls, auth: Auth | None, environment: dict[str, str] | None = None) -> "Credentials":
        """Look the secret up."""
        if auth is None:
            return cls(None, "")
        value = auth.secret.value(environment)
        if auth.by in ("bearer", "header") and not (value.isascii() and value.isprintable()):
            raise RestRequestInvalid(
                f"The secret {auth.secret} has a line break or a letter that no header can have.",
                rule="What stands in a header is one line of ASCII.",
                remedy="See whether the secret was kept with something else around it.",
                secret=str(auth.secret),
            )
        return cls(auth, value)

    def signed(self, request: Request) -> Request:
        """Return a request with the secret in its place."""
        auth = self.auth
        if auth is None:
            return request
        if auth.by == "query":
            return request.with_param(str(auth.name), self.value)
        if auth.by == "header":
            return replace(request, headers=(*request.headers, (str(auth.name), self.value)))
        proof = f"Bearer {self.value}" if auth.by == "bearer" else f"Basic {self._basic()}"
        return replace(request, headers=(*request.headers, ("Authorization", proof)))

    def unsigned(self, url: str) -> str:
        """Return a URL that a service has written, without the secret that it may have written into it."""
        if self.auth is not None and self.auth.by == "query":
            url = with_param(url, str(self.auth.name), None)
        return url

    def hidden(self, text: str) -> str:
        """Return a text without the secret, however it is written there."""
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
        return f"Credentials(of {self.auth.secret if self.auth else 'nobody'})"


def _redact(text: str, form: str) -> str:
    """Return a text without a secret, also where only its beginning is there because the text was cut short."""
    head = form[:_SHOWN_PREFIX]
    parts, at = [], 0
    while (found := text.find(head, at)) >= 0:
        end = found + len(head)
        while end < len(text) and end - found < len(form) and text[end] == form[end - found]:
            end += 1
        parts += [text[at:found], "***"]
        at = end
    return "".join((*parts, text[at:]))


ConnectionTrouble = Literal["unreached", "broken"]
"""No connection came about; or one did, and gave no whole answer."""

LONGEST_WAIT: Final = 300.0
"""In seconds. A service that wants to be left alone for longer fails the cell."""
_FIRST_WAIT: Final = 0.5
_LARGEST_BACK_OFF: Final = 30.0
_RETRIABLE_STATUS: Final = {
    "GET": frozenset((408, 429, 500, 502, 503, 504)),
    "POST": frozenset((429, 503)),
}


def is_retriable(method: str, what: int | ConnectionTrouble) -> bool:
    """Return whether a request may be sent again after a status or a trouble.

    >>> is_retriable("GET", 500), is_retriable("POST", 500), is_retriable("POST", "unreached")
    (True, False, True)
    """
    if isinstance(what, int):
        return what in _RETRIABLE_STATUS[method]
    return what == "unreached" or method == "GET"


def backoff_seconds(failed: int, chance: float) -> float:
    """Return how many seconds to wait after so many failures; `chance`, from 0 to 1, spreads those who wait.

    >>> [backoff_seconds(failed, 1.0) for failed in (1, 2, 3, 20)], backoff_seconds(1, 0.0)
    ([0.5, 1.0, 2.0, 30.0], 0.25)
    """
    whole = min(_LARGEST_BACK_OFF, _FIRST_WAIT * 2.0 ** min(failed - 1, 16))
    return whole * (0.5 + chance / 2)


def retry_after_seconds(header: str | None, date: str | None, now: float) -> float | None:
    """Return how many seconds a Retry-After header asks for, if it does so in a way that can be read.

    A date is compared with the service's own, if it gives that, and else with `now`, in seconds since the epoch.

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
    until = _seconds(text)
    if until is None:
        return None
    own = None if date is None else _seconds(date)
    return max(0.0, until - (now if own is None else own))


def _seconds(text: str) -> float | None:
    try:
        return parsedate_to_datetime(text).timestamp()
    except (ValueError, OverflowError, OSError):
        return None
