"""From page to page, as services lead, and where that ends."""

from typing import Any

import pytest

from floodmark.errors import (
    FloodmarkError,
    RestAnswerInvalid,
    RestPagingEndless,
    SourceChanged,
    SourceRefused,
)
from floodmark.ingest import Pagination, RestSource
from floodmark.ingest.extract.rest.paging import next_link
from support.ingest.rest_reading import rows_of
from support.ingest.rest_server import Asked, Says, Script, rest_service

DATA = [{"id": n} for n in range(25)]


def by_offset(asked: Asked) -> Any:
    at = int(asked.query["skip"])
    return {"items": DATA[at : at + int(asked.query.get("take", 10))], "total": len(DATA)}


def by_page(asked: Asked) -> Any:
    at = int(asked.query["p"]) * 10
    return {"items": DATA[at : at + 10], "total": str(len(DATA))}


def by_cursor(asked: Asked) -> Any:
    at = int(asked.query.get("after", "x0")[1:])
    more = at + 10 < len(DATA)
    return {"items": DATA[at : at + 10], "meta": {"next": f"x{at + 10}" if more else None}}


def by_link(asked: Asked) -> Any:
    at = int(asked.query.get("at", 0))
    link = f'</y?at={at + 10}>; rel="next", </y>; rel=first'
    return Says({"items": DATA[at : at + 10]}, headers={"Link": link} if at + 10 < len(DATA) else {})


@pytest.mark.parametrize(
    ("script", "pagination", "requests"),
    [
        (by_offset, Pagination(by="offset", param="skip", size=10), 4),
        (by_offset, Pagination(by="offset", param="skip", size=10, total="total"), 3),
        (by_offset, Pagination(by="offset", param="skip", size=7, size_param="take", total="total"), 4),
        (by_offset, Pagination(by="offset", param="skip", size=100), 4),  # the service gives fewer than it is asked for
        (by_page, Pagination(by="page", param="p", first=0), 4),
        (by_page, Pagination(by="page", param="p", first=0, total="total"), 3),
        (by_cursor, Pagination(by="cursor", param="after", next="meta.next"), 3),
        (by_link, Pagination(by="link"), 3),
    ],
)
def test_all_records_of_all_pages_are_read_in_order(script: Script, pagination: Pagination, requests: int) -> None:
    with rest_service(script) as service:
        rows = rows_of(RestSource(url=f"{service.url}/x", records="items", pagination=pagination))
    assert rows == DATA
    assert len(service.asked) == requests


def test_pages_begin_at_one() -> None:
    with rest_service(lambda asked: []) as service:
        assert rows_of(RestSource(url=service.url, pagination=Pagination(by="page", param="p"))) == []
    assert [asked.query for asked in service.asked] == [{"p": "1"}]


def test_without_pages_there_is_one_request() -> None:
    with rest_service(lambda asked: DATA) as service:
        assert rows_of(RestSource(url=service.url)) == DATA
    assert len(service.asked) == 1


@pytest.mark.parametrize("end", [None, "", False, "absent"])
def test_a_cursor_that_says_nothing_ends_the_pages(end: Any) -> None:
    def script(asked: Asked) -> Any:
        return {"items": DATA[:1], **({} if end == "absent" else {"next": end})}

    with rest_service(script) as service:
        paging = Pagination(by="cursor", param="after", next="next")
        assert len(rows_of(RestSource(url=service.url, records="items", pagination=paging))) == 1


def test_a_cursor_may_be_zero_and_a_number() -> None:
    def script(asked: Asked) -> Any:
        at = asked.query.get("after")
        return {"items": DATA[:2], "next": {None: 0, "0": 7, "7": None}[at]}

    with rest_service(script) as service:
        paging = Pagination(by="cursor", param="after", next="next")
        assert len(rows_of(RestSource(url=service.url, records="items", pagination=paging))) == 6


def test_an_empty_page_ends_a_cursor_that_goes_on() -> None:
    with rest_service(lambda asked: {"items": [], "next": "more"}) as service:
        paging = Pagination(by="cursor", param="after", next="next")
        assert rows_of(RestSource(url=service.url, records="items", pagination=paging)) == []
    assert len(service.asked) == 1


def test_a_cursor_that_comes_again_is_an_error_and_no_endless_loop() -> None:
    turns = {None: "a", "a": "b", "b": "a"}
    with rest_service(lambda asked: {"items": DATA[:1], "next": turns[asked.query.get("after")]}) as service:
        paging = Pagination(by="cursor", param="after", next="next")
        with pytest.raises(RestPagingEndless, match=r"cursor .* followed already") as caught:
            rows_of(RestSource(url=service.url, records="items", pagination=paging))
    assert caught.value.fields == {"pages": 3}


@pytest.mark.parametrize("link", ["</x>; rel=next", "</x?a=1>; rel=next"])
def test_a_link_in_a_circle_is_an_error(link: str) -> None:
    with (
        rest_service(lambda asked: Says(DATA[:1], headers={"Link": link})) as service,
        pytest.raises(RestPagingEndless, match="link"),
    ):
        rows_of(RestSource(url=f"{service.url}/x", pagination=Pagination(by="link")))
    assert len(service.asked) <= 2


def test_more_pages_than_allowed_are_an_error_that_says_what_to_do() -> None:
    with rest_service(lambda asked: DATA[:2]) as service:
        paging = Pagination(by="page", param="p", max_pages=3)
        with pytest.raises(RestPagingEndless, match=r"3 pages with 6 records.*max_pages"):
            rows_of(RestSource(url=service.url, pagination=paging))
    assert len(service.asked) == 3


def test_exactly_as_many_pages_as_allowed_are_read() -> None:
    with rest_service(by_offset) as service:
        paging = Pagination(by="offset", param="skip", size=10, total="total", max_pages=3)
        assert rows_of(RestSource(url=service.url, records="items", pagination=paging)) == DATA


@pytest.mark.parametrize("where", ["http://127.0.0.2:1/x", "https://elsewhere.example/x", "//elsewhere.example/x"])
def test_a_link_to_another_host_is_refused(where: str) -> None:
    with (
        rest_service(lambda asked: Says(DATA, headers={"Link": f"<{where}>; rel=next"})) as service,
        pytest.raises(SourceRefused, match="carries the secret"),
    ):
        rows_of(RestSource(url=service.url, pagination=Pagination(by="link")))
    assert len(service.asked) == 1


@pytest.mark.parametrize("totals", [(25, 26), (25, 24)])
def test_a_total_that_changes_fails_the_cell(totals: tuple[int, int]) -> None:
    def script(asked: Asked) -> Any:
        at = int(asked.query["skip"])
        return {"items": DATA[at : at + 10], "total": totals[at > 0]}

    with rest_service(script) as service:
        paging = Pagination(by="offset", param="skip", size=10, total="total")
        with pytest.raises(SourceChanged, match=r"The total was 25 at first.*changed while it was read"):
            rows_of(RestSource(url=service.url, records="items", pagination=paging))


@pytest.mark.parametrize("total", [20, 30])
def test_a_total_that_does_not_come_out_fails_the_cell(total: int) -> None:
    def script(asked: Asked) -> Any:
        at = int(asked.query["skip"])
        return {"items": DATA[at : at + 15], "total": total}

    with rest_service(script) as service:
        paging = Pagination(by="offset", param="skip", size=15, total="total")
        with pytest.raises(SourceChanged, match=f"total is {total}, and the service has returned 25 records"):
            rows_of(RestSource(url=service.url, records="items", pagination=paging))


def test_an_empty_page_need_not_say_the_total() -> None:
    with rest_service(lambda asked: {"items": []}) as service:
        paging = Pagination(by="offset", param="skip", size=15, total="total")
        assert rows_of(RestSource(url=service.url, records="items", pagination=paging)) == []


def test_a_total_shows_pages_that_nobody_asks_for() -> None:
    with (
        rest_service(lambda asked: {"items": DATA[:10], "total": 25}) as service,
        pytest.raises(RestAnswerInvalid, match=r"\[source\.pagination\]"),
    ):
        rows_of(RestSource(url=service.url, records="items", pagination=Pagination(total="total")))


@pytest.mark.parametrize(
    ("body", "records", "expected"),
    [
        ({"rows": []}, "items", "has no 'items': the response has rows"),
        ({"data": {"a": 1, "b": 2}}, "data.items", "'data' has a, b"),
        ({"data": [1]}, "data.items", "'data' is a list of 1"),
        ({}, "items", "the response has nothing"),
        ({"items": None}, "items", "is no list of records, it is null"),
        ({"items": {"id": 1}}, "items", "it is an object with id"),
        ({"items": [1]}, None, "it is an object with items"),
        ([{"id": 1}, "x"], None, "Record 2 .* is the text 'x'"),
        (["x"], "items", "the response is a list of 1"),
        ({str(n): n for n in range(20)}, "items", "the response has 0, 1, 2, 3, 4, 5, 6, 7, ..."),
    ],
)
def test_an_answer_without_records_says_what_it_has(body: Any, records: str | None, expected: str) -> None:
    with rest_service(lambda asked: body) as service, pytest.raises(RestAnswerInvalid, match=expected):
        rows_of(RestSource(url=service.url, records=records))


@pytest.mark.parametrize("body", [b"<html>down</html>", b"", b'[{"id": 1}', b"[" * 100_000, b'["\xff"]'])
def test_what_is_no_json_is_refused_and_shown(body: bytes) -> None:
    with (
        rest_service(lambda asked: Says(body)) as service,
        pytest.raises(RestAnswerInvalid, match=r"is no JSON: .* It begins with"),
    ):
        rows_of(RestSource(url=service.url))
    assert len(service.asked) == 1


@pytest.mark.parametrize("total", ["many", None, -1, True, 1.5, {"of": 3}])
def test_a_total_that_is_no_number_is_refused(total: Any) -> None:
    with rest_service(lambda asked: {"items": DATA, "total": total}) as service:
        paging = Pagination(by="page", param="p", total="total")
        with pytest.raises(RestAnswerInvalid, match=r"'total' .* is no number"):
            rows_of(RestSource(url=service.url, records="items", pagination=paging))


@pytest.mark.parametrize("cursor", [True, {"of": 1}, [1], 1.5])
def test_a_cursor_that_cannot_be_one_is_refused(cursor: Any) -> None:
    with rest_service(lambda asked: {"items": DATA, "next": cursor}) as service:
        paging = Pagination(by="cursor", param="c", next="next")
        with pytest.raises(RestAnswerInvalid, match="The cursor 'next'") as caught:
            rows_of(RestSource(url=service.url, records="items", pagination=paging))
    assert isinstance(caught.value, FloodmarkError)


def test_an_answer_of_no_content_is_an_empty_page() -> None:
    with rest_service(lambda asked: Says(status=204)) as service:
        assert rows_of(RestSource(url=service.url, records="items")) == []


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("<a>; rel=next", "a"),
        ('<a>;rel="next"', "a"),
        ('<a>; rel="last NEXT"', "a"),
        ('<a>; title="x, <b>; rel=next"; rel=prev, <c> ; rel = next', "c"),
        ('<a>; title="q\\"; rel=next"', None),
        ("<a>; rel=prev; rel=next", None),
        ('<a>; rel=next; anchor="#x", <b>; rel=next', "b"),
        ("<a,b;c>; rel=next", "a,b;c"),
        (",, <a>; crossorigin; rel=next", "a"),
        ("", None),
        ("nonsense", None),
        ("<a", None),
    ],
)
def test_a_link_header_is_read_as_rfc_8288_writes_it(header: str, expected: str | None) -> None:
    assert next_link(header) == expected
