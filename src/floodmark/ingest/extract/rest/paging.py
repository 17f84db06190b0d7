"""Paging: what a response contains, which request follows it, and which page is the last.

| by | next request | last page |
|---|---|---|
| none | none | the first |
| cursor | the cursor of the response | one whose cursor is null, empty or absent |
| offset | the offset plus the number of records | the one that reaches `total` |
| page | the next page number | the one that reaches `total` |
| link | rel=next of the Link header | one without such a link |

A page without records is always the last. A page with fewer than `size` records is not, since a service may return
fewer than requested. A record that moves to an earlier page while pages are read is missed. To detect that, name
`total`: if it changes, or differs from the number of records read, the cell fails.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from decimal import Decimal
from hashlib import blake2b
from typing import Any, Final
from urllib.parse import urljoin

from floodmark._util.codec import parse_json
from floodmark.errors import RestAnswerInvalid, RestPagingEndless, SourceChanged, SourceRefused
from floodmark.ingest.extract.rest.request import Request, is_same_service
from floodmark.ingest.job.source import Pagination, RestSource


@dataclass(frozen=True, slots=True)
class Page:
    """The content of one response."""

    records: list[dict[str, Any]]
    cursor: str | None = None
    total: int | None = None
    link: str | None = None


class Pager:
    """The sequence of requests for the pages of one cell.

    >>> pager = Pager(Pagination(by="page", param="p"), Request("GET", "http://api/x"))
    >>> pager.first.url
    'http://api/x?p=1'
    >>> pager.next_request(Page([{"id": 1}]), pager.first.url).url
    'http://api/x?p=2'
    >>> pager.next_request(Page([]), "http://api/x?p=2") is None
    True
    """

    def __init__(self, paging: Pagination, request: Request) -> None:
        if paging.size is not None and paging.size_param is not None:
            request = request.with_param(paging.size_param, str(paging.size))
        if paging.by in ("offset", "page"):
            assert paging.param is not None
            request = request.with_param(paging.param, str(paging.first))
        self.first = request
        self._paging = paging
        self._request = request
        self._pages = 0
        self._records = 0
        self._total: int | None = None
        self._visited: set[bytes] = set()
        if paging.by == "link":
            self._check_not_visited(request.url, "link")

    def next_request(self, page: Page, url: str) -> Request | None:
        """Return the request that follows a page; None after the last. `url` is where the page came from."""
        self._pages += 1
        self._records += len(page.records)
        self._check_total(page.total)
        request = self._request_after(page, url) if page.records else None
        if request is None:
            self._check_all_read()
            return None
        if self._pages >= self._paging.max_pages:
            raise RestPagingEndless(
                f"There is another page after {self._pages} pages with {self._records} records.",
                rule="A cell has at most pagination.max_pages pages.",
                remedy="Check that the service knows pagination.param and does not return the first page each time. If "
                'there are that many pages, raise max_pages, or write a finer grid in [time], such as grid = "hourly".',
                pages=self._pages,
            )
        self._request = request
        return request

    def _request_after(self, page: Page, url: str) -> Request | None:
        paging = self._paging
        if paging.by == "cursor":
            assert paging.param is not None
            if page.cursor is None:
                return None
            self._check_not_visited(page.cursor, "cursor")
            return self._request.with_param(paging.param, page.cursor)
        if paging.by == "link":
            return None if page.link is None else self._link_request(urljoin(url, page.link), url)
        if paging.by == "none" or (self._total is not None and self._records >= self._total):
            return None
        assert paging.param is not None
        assert paging.first is not None
        value = paging.first + (self._records if paging.by == "offset" else self._pages)
        return self._request.with_param(paging.param, str(value))

    def _link_request(self, link: str, url: str) -> Request:
        link = link.partition("#")[0]
        if not is_same_service(url, link):
            raise SourceRefused(
                f"The next page of {url} is at {link}.",
                rule="Pages are requested only from the service in url, since each request carries the secret.",
                remedy="If that service is right, set url in [source] to it.",
                url=url,
                link=link,
            )
        self._check_not_visited(link, "link")
        return replace(self._request, url=link)

    def _check_not_visited(self, value: str, kind: str) -> None:
        digest = blake2b(value.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        if digest in self._visited:
            raise RestPagingEndless(
                f"The {kind} after page {self._pages} is one that has been followed already.",
                rule="Each page leads to a page that was not read before.",
                remedy="Check that pagination.param is the parameter that the service expects.",
                pages=self._pages,
            )
        self._visited.add(digest)

    def _check_total(self, total: int | None) -> None:
        if self._total is not None and total is not None and total != self._total:
            raise self._changed_error(f"The total was {self._total} at first, and is {total} on page {self._pages}.")
        self._total = self._total if total is None else total
        if self._total is not None and self._records > self._total:
            raise self._changed_error(self._total_differs())

    def _check_all_read(self) -> None:
        if self._total is None or self._records == self._total:
            return
        if self._paging.by == "none":
            raise RestAnswerInvalid(
                self._total_differs(),
                rule="Without pagination, one response has all records.",
                remedy='Describe the pages of the service in [source.pagination], such as by = "cursor".',
                total=self._total,
            )
        raise self._changed_error(self._total_differs())

    def _total_differs(self) -> str:
        return f"The total is {self._total}, and the service has returned {self._records} records."

    def _changed_error(self, fact: str) -> SourceChanged:
        return SourceChanged(
            f"{fact} The source changed while it was read.",
            rule="The pages of a cell are of one state of the source; otherwise records would be missed.",
            remedy="Nothing was landed, and the next run reads it again. If it always happens, end the range earlier "
            "than now (settle), or correct pagination.",
            pages=self._pages,
        )


_MOST_NAMES: Final = 8
_EXCERPT: Final = 80
_MISSING: Final = object()


def read_records(body: bytes, source: RestSource, url: str, *, exact: bool = False) -> list[dict[str, Any]]:
    """Return the records of a body; `exact` keeps all digits of fractions."""
    return _find_records(_parse_json(body, url, Decimal if exact else None), source, url)


def read_page(body: bytes, link: str | None, source: RestSource, url: str) -> Page:
    """Return the page in a body and its Link header; refuse a body without the list of records.

    >>> source = RestSource(url="http://api", records="data.items")
    >>> read_page(b'{"data": {"items": [{"id": 1}]}}', None, source, "http://api").records
    [{'id': 1}]
    >>> read_page(b'{"data": {"rows": []}}', None, source, "http://api")
    Traceback (most recent call last):
    floodmark.errors.RestAnswerInvalid: The response of http://api has no 'data.items': ... has rows. ...
    """
    response = _parse_json(body, url, None)
    records = _find_records(response, source, url)
    pages = source.pagination
    return Page(
        records,
        cursor=_find_cursor(response, pages.next, url) if pages.by == "cursor" and pages.next else None,
        total=_find_total(response, pages.total, url, is_last=not records) if pages.total else None,
        link=next_link(link) if pages.by == "link" and link else None,
    )


def _parse_json(body: bytes, url: str, parse_float: Callable[[str], Any] | None) -> Any:
    try:
        return parse_json(body, parse_float=parse_float)
    except ValueError as error:
        why = f"{error.msg}, at byte {error.pos}" if isinstance(error, json.JSONDecodeError) else str(error)
        raise _invalid_response(
            f"The response of {url} is no JSON: {why}. It begins with {_excerpt(body)}.",
            "A REST service responds with JSON.",
            "Check url in [source]; if the service has several formats, request JSON with headers or params.",
            url,
        ) from None


def _find_records(response: Any, source: RestSource, url: str) -> list[dict[str, Any]]:
    path = source.records
    records = response if path is None else _value_at(response, path)
    if not isinstance(records, list):
        if path is None:
            fact = f"The response of {url} is no list of records, it is {_describe(response)}."
            remedy = "Set records in [source] to the path of the list, as records = 'NAME' or 'NAME.NAME'."
        else:
            fact = f"The response of {url} has no {path!r}: {_describe_path(response, path)}."
            remedy = "Set records in [source] to the path of the list of records, with dots between the names."
            if records is not _MISSING:
                fact = f"{path!r} in the response of {url} is no list of records, it is {_describe(records)}."
        raise _invalid_response(fact, "Records are a list of objects.", remedy, url)
    if set(map(type, records)) - {dict}:
        index = next(n for n, record in enumerate(records) if not isinstance(record, dict))
        raise _invalid_response(
            f"Record {index + 1} in the response of {url} is {_describe(records[index])}.",
            "Each record is an object.",
            "Set records in [source] to the path of a list of objects.",
            url,
        )
    return records


def _find_cursor(response: Any, path: str, url: str) -> str | None:
    cursor = _value_at(response, path)
    if cursor is _MISSING or cursor is None or cursor is False or cursor == "":
        return None
    if isinstance(cursor, str | int) and not isinstance(cursor, bool):
        return str(cursor)
    raise _invalid_response(
        f"The cursor {path!r} in the response of {url} is {_describe(cursor)}.",
        "A cursor is a text or a whole number; null, an empty text or no cursor ends the pages.",
        "Set pagination.next to the path of the cursor in the response.",
        url,
    )


def _find_total(response: Any, path: str, url: str, *, is_last: bool) -> int | None:
    total = _value_at(response, path)
    if isinstance(total, str) and total.isascii() and total.isdigit():
        return int(total)
    if isinstance(total, int) and not isinstance(total, bool) and total >= 0:
        return total
    if is_last and (total is _MISSING or total is None):
        return None
    actual = _describe_path(response, path) if total is _MISSING else f"it is {_describe(total)}"
    raise _invalid_response(
        f"The total {path!r} in the response of {url} is no number of records: {actual}.",
        "With pagination.total, each response has the number of records.",
        "Set pagination.total to the path of that number, or leave it out: then an empty page is the last.",
        url,
    )


def _value_at(response: Any, path: str) -> Any:
    for name in path.split("."):
        if not isinstance(response, dict) or name not in response:
            return _MISSING
        response = response[name]
    return response


def _describe_path(response: Any, path: str) -> str:
    """Describe the value at which a path ends or stops."""
    parent = "the response"
    for name in path.split("."):
        if not isinstance(response, dict):
            return f"{parent} is {_describe(response)}"
        if name not in response:
            return f"{parent} has {_names(response)}"
        response, parent = response[name], f"{name!r}"
    return f"{parent} is {_describe(response)}"


def _names(table: dict[str, Any]) -> str:
    names = [name[:_EXCERPT] for name in list(table)[:_MOST_NAMES]]
    return ", ".join(names) + (", ..." if len(table) > _MOST_NAMES else "") if table else "nothing"


def _describe(value: Any) -> str:
    if isinstance(value, dict):
        return f"an object with {_names(value)}"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    return f"the text {value[:_EXCERPT]!r}" if isinstance(value, str) else f"the number {str(value)[:_EXCERPT]}"


def _excerpt(body: bytes) -> str:
    return repr(body[:_EXCERPT].decode("utf-8", "replace")) if body else "nothing at all"


def _invalid_response(fact: str, rule: str, remedy: str, url: str) -> RestAnswerInvalid:
    return RestAnswerInvalid(fact, rule=rule, remedy=remedy, url=url)


_LINK: Final = re.compile(r"\s*,*\s*<([^>]*)>((?:\s*;\s*[^\s=;,]+\s*(?:=\s*(?:\"(?:[^\"\\]|\\.)*\"|[^\s;,\"]*))?)*)")
_PARAM: Final = re.compile(r";\s*([^\s=;,]+)\s*(?:=\s*(?:\"((?:[^\"\\]|\\.)*)\"|([^\s;,\"]*)))?")


def next_link(header: str) -> str | None:
    """Return the URL of the next page in a Link header, which may be relative; None if there is none.

    >>> next_link('</x?page=1>; rel="prev", </x?page=3>; title="a, b"; rel="next last"')
    '/x?page=3'
    >>> next_link("</x>; rel=last") is None
    True
    """
    at = 0
    while link := _LINK.match(header, at):
        at = link.end()
        params: dict[str, str] = {}
        for name, quoted, bare in _PARAM.findall(link[2]):
            params.setdefault(name.lower(), quoted or bare)  # only the first rel counts
        # A link with an anchor is about another resource.
        if "next" in params.get("rel", "").lower().split() and "anchor" not in params:
            return link[1].strip()
    return None
