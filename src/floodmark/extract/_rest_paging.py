"""From one page to the next, and where that ends.

| by | goes on with | ends |
|---|---|---|
| none | nothing | after the first page |
| cursor | the cursor of the answer | on a cursor that is null, empty or absent |
| offset | as many records further as there were | when `total` is reached |
| page | the next number | when `total` is reached |
| link | the Link header's rel=next | without one |

A page without records ends each of them; one with fewer than `size` does not, since a service may give fewer than it
was asked for. A record that moves to a page that was read already is missed, whatever one does; a `total` that
changes while pages are read, or that does not come out, shows it, and fails the cell.
"""

from dataclasses import replace
from hashlib import blake2b
from urllib.parse import urljoin

from floodmark.errors import RestAnswerInvalid, RestPagingEndless, SourceChanged, SourceRefused
from floodmark.extract._rest_answer import Answer
from floodmark.extract._rest_request import Request, is_same_service
from floodmark.ingest import Pagination


class Pages:
    """The pages of one cell: what is asked first, and after each answer what is asked then.

    >>> pages = Pages(Pagination(by="page", param="p"), Request("GET", "http://api/x"))
    >>> pages.first.url
    'http://api/x?p=1'
    >>> pages.after(Answer([{"id": 1}]), pages.first.url).url
    'http://api/x?p=2'
    >>> pages.after(Answer([]), "http://api/x?p=2") is None
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

    def after(self, answer: Answer, url: str) -> Request | None:
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

    def _next(self, answer: Answer, url: str) -> Request | None:
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
