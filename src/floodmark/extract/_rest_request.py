"""A request, and how a cell is written into it: each value as its place demands."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import quote, quote_plus, unquote_plus, urldefrag, urlsplit, urlunsplit

from floodmark._util.text import did_you_mean
from floodmark.errors import RestRequestInvalid, UnknownVariable
from floodmark.extract._rest_times import written_time
from floodmark.ingest import RestSource, Row

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


def request_of(source: RestSource, zone: str, row: Row) -> Request:
    """Return the first request of a cell.

    >>> from floodmark.ingest import Range, Unit
    >>> source = RestSource(
    ...     url="https://api.example/shops/{{unit.shop}}/orders", params={"since": "{{range.from}}"}, zone="UTC"
    ... )
    >>> request_of(source, "UTC", Row(Unit.of({"shop": "a/b"}), Range(0, 1), Range(0, 1), "new", ("new",))).url
    'https://api.example/shops/a%2Fb/orders?since=1970-01-01T00%3A00%3A00%2B00%3A00'
    """
    values = _Values(source, zone, row)
    url = values.into(source.url, _in_url)
    try:
        urlsplit(url)
    except ValueError:
        raise not_a_request(url) from None
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


def not_a_request(url: str) -> RestRequestInvalid:
    """Return the error of a URL or header that HTTP does not know."""
    return RestRequestInvalid(
        f"No request can be made of {url} and its headers.",
        rule="An address has a host that can be, and a header a name of letters, digits and dashes.",
        remedy="Correct url, headers, or the value of the unit that stands in them.",
        url=url,
    )


@dataclass(frozen=True, slots=True)
class _Values:
    source: RestSource
    zone: str
    row: Row

    def into(self, text: str, write: Callable[[Any, str], str]) -> str:
        return _REFERENCE.sub(lambda match: write(self._value(match[1]), match[1]), text)

    def _value(self, name: str) -> Any:
        ends: Mapping[str, int] = {"range.from": self.row.range.lo, "range.to": self.row.range.hi}
        if name in ends:
            return written_time(ends[name], self.source.time_format, self.source.zone or self.zone)
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


def _body(template: str, headers: Mapping[str, str], values: _Values) -> bytes:
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
