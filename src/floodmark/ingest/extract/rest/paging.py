"""Paging: what an answer says, what is asked next, and where that ends.

| by | goes on with | ends |
|---|---|---|
| none | nothing | after the first page |
| cursor | the cursor of the answer | on a cursor that is null, empty or absent |
| offset | as many records further as there were | when `total` is reached |
| page | the next number | when `total` is reached |
| link | the Link header's rel=next | without one |

A page without records ends each of them; one with fewer than `size` does not, since a service may give fewer than it
was asked for. A record that moves to a page that was read already is missed, whatever one does; a `total` that changes
while pages are read, or that does not come out, shows it, and fails the cell.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from decimal import Decimal
from hashlib import blake2b
from typing import Any, Final
from urllib.parse import urljoin

from floodmark.errors import RestAnswerInvalid, RestPagingEndless, SourceChanged, SourceRefused
from floodmark.ingest.extract.rest.request import Request, is_same_service
from floodmark.ingest.job.source import Pagination, RestSource


@dataclass(frozen=True, slots=True)
class Page:
    """One page."""

    records: list[dict[str, Any]]
    cursor: str | None = None
    total: int | None = None
    link: str | None = None


class Pager:
    """The pages of one cell: what is asked first, and after each answer what is asked then.

    >>> pages = Pager(Pagination(by="page", param="p"), Request("GET", "http://api/x"))
    >>> pages.first.url
    'http://api/x?p=1'
    >>> pages.after(Page([{"id": 1}]), pages.first.url).url
    'http://api/x?p=2'
    >>> pages.after(Page([]), "http://api/x?p=2") is None
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
        self._seen = 0
        self._total: int | None = None
        self._places: set[bytes] = set()
        if paging.by == "link":
            self._note_place(request.url, "the link")

    def after(self, answer: Page, url: str) -> Request | None:
        """Return what to ask after an answer, which `url` has given in the end; None after the last."""
        self._pages += 1
        self._seen += len(answer.records)
        self._compare_total(answer.total)
        request = self._next(answer, url) if answer.records else None
        if request is None:
            self._compare_end()
            return None
        if self._pages >= self._paging.max_pages:
            raise RestPagingEndless(
                f"There is another page after {self._pages} pages with {self._seen} records.",
                rule="A cell has at most pagination.max_pages pages.",
                remedy="See whether the service knows the parameters that lead to the next page, and does not give the "
                "first again and again; if there are so many, raise max_pages, or cut time into smaller cells.",
                pages=self._pages,
            )
        self._request = request
        return request

    def _next(self, answer: Page, url: str) -> Request | None:
        paging = self._paging
        if paging.by == "cursor":
            assert paging.param is not None
            if answer.cursor is None:
                return None
            self._note_place(answer.cursor, "the cursor")
            return self._request.with_param(paging.param, answer.cursor)
        if paging.by == "link":
            return None if answer.link is None else self._linked(urljoin(url, answer.link), url)
        if paging.by == "none" or (self._total is not None and self._seen >= self._total):
            return None
        assert paging.param is not None
        assert paging.first is not None
        place = paging.first + (self._seen if paging.by == "offset" else self._pages)
        return self._request.with_param(paging.param, str(place))

    def _linked(self, link: str, url: str) -> Request:
        link = link.partition("#")[0]
        if not is_same_service(url, link):
            raise SourceRefused(
                f"The next page of {url} is at {link}.",
                rule="Pages are asked of the service that the source names; what proves who asks goes nowhere else.",
                remedy="If that service is meant, name it in url.",
                url=url,
                link=link,
            )
        self._note_place(link, "the link")
        return replace(self._request, url=link)

    def _note_place(self, place: str, what: str) -> None:
        mark = blake2b(place.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        if mark in self._places:
            raise RestPagingEndless(
                f"After page {self._pages}, {what} to the next page is one that has been followed already.",
                rule="Each page leads to one that was not read before.",
                remedy="See whether pagination.param is the parameter that the service knows; if so, ask who runs it.",
                pages=self._pages,
            )
        self._places.add(mark)

    def _compare_total(self, total: int | None) -> None:
        if self._total is not None and total is not None and total != self._total:
            raise self._changed(f"First there were {self._total} records, and {total} after page {self._pages}.")
        self._total = self._total if total is None else total
        if self._total is not None and self._seen > self._total:
            raise self._changed(f"The service speaks of {self._total} records and has given {self._seen}.")

    def _compare_end(self) -> None:
        if self._total is None or self._seen == self._total:
            return
        if self._paging.by == "none":
            raise RestAnswerInvalid(
                f"The service speaks of {self._total} records and has given {self._seen}.",
                rule="Without pagination, one answer has them all.",
                remedy="Say how one page leads to the next, in [source.pagination].",
                total=self._total,
            )
        raise self._changed(f"The service speaks of {self._total} records and has given {self._seen}.")

    def _changed(self, fact: str) -> SourceChanged:
        return SourceChanged(
            f"{fact} The source changed while it was read.",
            rule="What is landed is what the service had at one time; with pages that move, records would be missed.",
            remedy="Nothing was landed, and the next run reads it again. If it always happens, end the range earlier "
            "than now (settle), or correct pagination.",
            pages=self._pages,
        )


_SHOWN: Final = 8
_EXCERPT: Final = 80
_MISSING: Final = object()


def read_records(body: bytes, source: RestSource, url: str, *, exact: bool = False) -> list[dict[str, Any]]:
    """Return only the records of a body that was read before; `exact` keeps all digits of fractions."""
    return _records(_parsed(body, url, Decimal if exact else None), source, url)


def read_page(body: bytes, link: str | None, source: RestSource, url: str) -> Page:
    """Return what a body and its Link header say, or refuse it with what it has instead.

    >>> source = RestSource(url="http://api", records="data.items")
    >>> read_page(b'{"data": {"items": [{"id": 1}]}}', None, source, "http://api").records
    [{'id': 1}]
    >>> read_page(b'{"data": {"rows": []}}', None, source, "http://api")
    Traceback (most recent call last):
    floodmark.errors.RestAnswerInvalid: The answer of http://api has no 'data.items': ... has rows. ...
    """
    answer = _parsed(body, url, None)
    records = _records(answer, source, url)
    pages = source.pagination
    return Page(
        records,
        cursor=_cursor(answer, pages.next, url) if pages.by == "cursor" and pages.next else None,
        total=_total(answer, pages.total, url, is_last=not records) if pages.total else None,
        link=next_link(link) if pages.by == "link" and link else None,
    )


def _parsed(body: bytes, url: str, parse_float: Callable[[str], Any] | None) -> Any:
    try:
        return json.loads(body, parse_float=parse_float)
    except (ValueError, RecursionError) as error:
        why = f"{error.msg}, at byte {error.pos}" if isinstance(error, json.JSONDecodeError) else type(error).__name__
        raise _invalid_answer(
            f"The answer of {url} is no JSON: {why}. It begins with {_excerpt(body)}.",
            "A REST service answers in JSON.",
            "Look at the answer; if the service can write JSON, ask for it with headers or params.",
            url,
        ) from None


def _records(answer: Any, source: RestSource, url: str) -> list[dict[str, Any]]:
    path = source.records
    records = answer if path is None else _at(answer, path)
    if not isinstance(records, list):
        if path is None:
            fact = f"The answer of {url} is no list of records, it is {_described(answer)}."
            remedy = "Say where in the answer the records are, as records = 'NAME' or 'NAME.NAME'."
        else:
            fact = f"The answer of {url} has no {path!r}: {_where(answer, path)}."
            remedy = "Correct records; it names the list of records, with dots between the names."
            if records is not _MISSING:
                fact = f"{path!r} in the answer of {url} is no list of records, it is {_described(records)}."
        raise _invalid_answer(fact, "Records are a list of objects.", remedy, url)
    if set(map(type, records)) - {dict}:
        at = next(n for n, record in enumerate(records) if not isinstance(record, dict))
        raise _invalid_answer(
            f"Record {at + 1} in the answer of {url} is {_described(records[at])}.",
            "Each record is an object with names and values.",
            "Correct records, if it names another list.",
            url,
        )
    return records


def _cursor(answer: Any, path: str, url: str) -> str | None:
    found = _at(answer, path)
    if found is _MISSING or found is None or found is False or found == "":
        return None
    if isinstance(found, str | int) and not isinstance(found, bool):
        return str(found)
    raise _invalid_answer(
        f"The cursor {path!r} in the answer of {url} is {_described(found)}.",
        "A cursor is a text or a whole number; null, an empty text or none at all ends the pages.",
        "Correct pagination.next.",
        url,
    )


def _total(answer: Any, path: str, url: str, *, is_last: bool) -> int | None:
    found = _at(answer, path)
    if isinstance(found, str) and found.isascii() and found.isdigit():
        return int(found)
    if isinstance(found, int) and not isinstance(found, bool) and found >= 0:
        return found
    if is_last and (found is _MISSING or found is None):
        return None
    had = _where(answer, path) if found is _MISSING else f"it is {_described(found)}"
    raise _invalid_answer(
        f"The total {path!r} in the answer of {url} is no number of records: {had}.",
        "Where pagination.total is given, each answer says how many records there are.",
        "Correct pagination.total, or leave it out: then an empty page is the last.",
        url,
    )


def _at(answer: Any, path: str) -> Any:
    for name in path.split("."):
        if not isinstance(answer, dict) or name not in answer:
            return _MISSING
        answer = answer[name]
    return answer


def _where(answer: Any, path: str) -> str:
    """Say how far a path leads, and what is there."""
    come = "the answer"
    for name in path.split("."):
        if not isinstance(answer, dict):
            return f"{come} is {_described(answer)}"
        if name not in answer:
            return f"{come} has {_names(answer)}"
        answer, come = answer[name], f"{name!r}"
    return f"{come} is {_described(answer)}"


def _names(table: dict[str, Any]) -> str:
    names = [name[:_EXCERPT] for name in list(table)[:_SHOWN]]
    return ", ".join(names) + (", ..." if len(table) > _SHOWN else "") if table else "nothing"


def _described(value: Any) -> str:
    if isinstance(value, dict):
        return f"an object with {_names(value)}"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    return f"the text {value[:_EXCERPT]!r}" if isinstance(value, str) else f"the number {str(value)[:_EXCERPT]}"


def _excerpt(body: bytes) -> str:
    return repr(body[:_EXCERPT].decode("utf-8", "replace")) if body else "nothing at all"


def _invalid_answer(fact: str, rule: str, remedy: str, url: str) -> RestAnswerInvalid:
    return RestAnswerInvalid(fact, rule=rule, remedy=remedy, url=url)


_LINK: Final = re.compile(r"\s*,*\s*<([^>]*)>((?:\s*;\s*[^\s=;,]+\s*(?:=\s*(?:\"(?:[^\"\\]|\\.)*\"|[^\s;,\"]*))?)*)")
_PARAM: Final = re.compile(r";\s*([^\s=;,]+)\s*(?:=\s*(?:\"((?:[^\"\\]|\\.)*)\"|([^\s;,\"]*)))?")


def next_link(header: str) -> str | None:
    """Return where the next page is, as it is written, if a header says so.

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
            params.setdefault(name.lower(), quoted or bare)  # a second rel counts for nothing
        # A link with an anchor speaks of something else than what was asked for.
        if "next" in params.get("rel", "").lower().split() and "anchor" not in params:
            return link[1].strip()
    return None
