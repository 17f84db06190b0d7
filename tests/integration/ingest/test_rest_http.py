"""Services that fail, are slow, send elsewhere, or want to know who asks."""

import base64
import gzip
import json
import pickle
import socket
import time
import traceback
import tracemalloc
import zlib
from threading import Thread
from typing import Any
from urllib.parse import quote

import pytest

from floodmark.errors import (
    FloodmarkError,
    RestAnswerInvalid,
    RestRequestInvalid,
    SecretMissing,
    SourceAway,
    SourceRefused,
)
from floodmark.ingest import Auth, Pagination, RestSource, Secret
from floodmark.ingest.extract.rest.client import Pace, RestClock
from floodmark.ingest.extract.rest.request import Credentials, is_retriable
from support.ingest.rest_reading import NoWaiting, part_of, rows_of
from support.ingest.rest_server import Asked, Says, Script, free_port, in_turn, rest_service

ROWS = [{"id": 1}, {"id": 2}]
TOKEN = "s3cr3t/t+k&n"


@pytest.fixture(autouse=True)
def _token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REST_TOKEN", TOKEN)


def auth(by: Any, **more: str) -> Auth:
    return Auth(by=by, secret=Secret("env", "REST_TOKEN"), **more)


# Answers that are too large


def bomb(size: int, layers: int = 1) -> Says:
    """Return an answer of this many bytes of JSON, compressed so many times."""
    packed = zlib.compressobj(1, wbits=31)
    blanks = b" " * min(size - 2, 1 << 20)
    pieces = [packed.compress(b"[")] + [packed.compress(blanks) for _ in range((size - 2) // len(blanks))]
    pieces += [packed.compress(b" " * ((size - 2) % len(blanks)) + b"]"), packed.flush()]
    body = b"".join(pieces)
    for _ in range(layers - 1):
        body = gzip.compress(body)
    return Says(body, headers={"Content-Encoding": ", ".join(["gzip"] * layers)})


@pytest.mark.parametrize(
    ("answer", "is_read"),
    [
        (lambda: Says(b"[" + b" " * 98 + b"]"), True),
        (lambda: Says(b"[" + b" " * 99 + b"]"), False),
        (lambda: Says(b"[" + b" " * 99 + b"]", chunked=True), False),
        (lambda: bomb(100), True),
        (lambda: bomb(101), False),
        (lambda: bomb(100, 2), True),
        (lambda: bomb(101, 2), False),
    ],
)
def test_an_answer_has_so_many_bytes_after_decompression_and_no_more(answer: Any, is_read: bool) -> None:
    with rest_service(in_turn(answer())) as service:
        source = RestSource(url=service.url, max_response_bytes=100)
        if is_read:
            assert rows_of(source) == []
            return
        with pytest.raises(RestAnswerInvalid, match="more than 100 bytes") as caught:
            rows_of(source)
    assert caught.value.fields["most"] == 100
    assert len(service.asked) == 1


@pytest.mark.parametrize("layers", [1, 2])
def test_a_small_answer_that_becomes_a_large_one_takes_no_memory(layers: int) -> None:
    with rest_service(in_turn(bomb(256 << 20, layers))) as service:
        tracemalloc.start()
        try:
            with pytest.raises(RestAnswerInvalid, match="bytes after decompression"):
                rows_of(RestSource(url=service.url, max_response_bytes=8 << 20))
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert peak < 64 << 20


def test_a_large_answer_of_an_error_is_known_by_its_status() -> None:
    refusal, failure = bomb(10 << 20), bomb(10 << 20)
    refusal.status, failure.status = 403, 503
    with rest_service(in_turn(failure, refusal)) as service, pytest.raises(SourceRefused, match="responds with 403"):
        rows_of(RestSource(url=service.url))
    assert len({asked.port for asked in service.asked}) == 2, "what is left of a body is not read as the next answer"


# Trouble and trying again


@pytest.mark.parametrize(
    "trouble",
    [
        *(Says("no", status=status) for status in (408, 429, 500, 502, 503, 504)),
        Says(ROWS, cut_at=5),
        Says(ROWS, cut_at=0),
        Says(ROWS, cut_at=8, chunked=True),
        Says(ROWS, cut_at=12, gzipped=True),
        Says(ROWS, drop=True),
    ],
    ids=lambda says: f"{says.status}-{says.cut_at}-{says.drop}",
)
def test_what_passes_is_asked_again_and_the_answer_counted_once(trouble: Says) -> None:
    clock = NoWaiting()
    with rest_service(in_turn(trouble, trouble, ROWS)) as service:
        assert rows_of(RestSource(url=service.url), clock=clock) == ROWS
    assert len(service.asked) == 3
    assert clock.waits == [0.5, 1.0]


def test_a_cut_in_the_middle_of_the_pages_repeats_only_that_page() -> None:
    left = [Says({"items": ROWS}, cut_at=9)]

    def script(asked: Asked) -> Any:
        if asked.query["p"] == "2" and left:
            return left.pop()
        return {"items": [{"id": int(asked.query["p"])}] if int(asked.query["p"]) < 4 else []}

    with rest_service(script) as service:
        source = RestSource(url=service.url, records="items", pagination=Pagination(by="page", param="p"))
        assert rows_of(source) == [{"id": 1}, {"id": 2}, {"id": 3}]
    assert [asked.query["p"] for asked in service.asked] == ["1", "2", "2", "3", "4"]


@pytest.mark.parametrize("retries", [0, 2])
def test_after_so_many_attempts_the_cell_fails(retries: int) -> None:
    with (
        rest_service(lambda asked: Says("overloaded", status=503)) as service,
        pytest.raises(SourceAway, match=r"responds with 503 .*overloaded.*stays due") as caught,
    ):
        rows_of(RestSource(url=f"{service.url}/x", retries=retries))
    assert len(service.asked) == retries + 1
    assert caught.value.fields == {"url": f"{service.url}/x"}


def test_attempts_are_counted_for_each_request() -> None:
    def script(asked: Asked) -> Any:
        if service.asked.count(asked) and len(service.asked) % 2:
            return Says("no", status=500)
        return [{"id": 1}] if int(asked.query["p"]) < 4 else []

    with rest_service(script) as service:
        source = RestSource(url=service.url, retries=1, pagination=Pagination(by="page", param="p"))
        assert len(rows_of(source)) == 3
    assert len(service.asked) == 8


def test_a_service_that_is_not_there_is_tried_and_named() -> None:
    clock = NoWaiting()
    with pytest.raises(SourceAway, match=r"cannot be reached .* sent 3 times"):
        rows_of(RestSource(url=f"http://127.0.0.1:{free_port()}/x", retries=2), clock=clock)
    assert clock.waits == [0.5, 1.0]


@pytest.mark.parametrize("status", [400, 404, 405, 409, 410, 422])
def test_what_the_service_refuses_fails_at_once(status: int) -> None:
    with (
        rest_service(lambda asked: Says({"error": "no such shop"}, status=status)) as service,
        pytest.raises(SourceRefused, match=f"responds with {status} .*no such shop") as caught,
    ):
        rows_of(RestSource(url=service.url))
    assert (len(service.asked), caught.value.fields["status"]) == (1, status)


@pytest.mark.parametrize("status", [501, 505])
def test_what_no_repetition_helps_fails_at_once(status: int) -> None:
    with rest_service(lambda asked: Says("no", status=status)) as service, pytest.raises(SourceAway):
        rows_of(RestSource(url=service.url))
    assert len(service.asked) == 1


@pytest.mark.parametrize(
    ("trouble", "requests"),
    [
        (Says("no", status=429), 2),
        (Says("no", status=503), 2),
        (Says("no", status=500), 1),
        (Says("no", status=502), 1),
        (Says("no", status=504), 1),
        (Says("no", status=408), 1),
        (Says(ROWS, cut_at=3), 1),
        (Says(ROWS, drop=True), 1),
    ],
    ids=lambda value: str(getattr(value, "status", value)),
)
def test_a_post_is_repeated_only_if_it_had_no_effect(trouble: Says, requests: int) -> None:
    source_body = '{"since": "{{range.from}}"}'
    with rest_service(in_turn(trouble, ROWS)) as service:
        source = RestSource(url=service.url, method="POST", body=source_body)
        if requests == 1:
            with pytest.raises((SourceAway, SourceRefused)):
                rows_of(source)
        else:
            assert rows_of(source) == ROWS
    assert [asked.body for asked in service.asked] == [b'{"since": "1970-01-01T00:00:00+00:00"}'] * requests


def test_a_post_that_was_never_received_is_repeated() -> None:
    assert is_retriable("POST", "unreached")
    clock = NoWaiting()
    with pytest.raises(SourceAway, match="sent 2 times"):
        rows_of(RestSource(url=f"http://127.0.0.1:{free_port()}", method="POST", retries=1), clock=clock)


# Retry-After


@pytest.mark.parametrize(
    ("headers", "waits"),
    [
        ({"Retry-After": "7"}, [7.0]),
        ({"Retry-After": "0"}, [0.5]),
        ({"Retry-After": "soon"}, [0.5]),
        ({"Retry-After": "Thu, 01 Jan 1970 00:01:40 GMT"}, [60.0]),  # the clock shows 40 seconds
        ({"Retry-After": "Thu, 01 Jan 1970 00:01:40 GMT", "Date": "Thu, 01 Jan 1970 00:01:10 GMT"}, [30.0]),
        ({"Retry-After": "Thu, 01 Jan 1970 00:00:00 GMT"}, [0.5]),
        ({"Retry-After": "300"}, [300.0]),
    ],
)
@pytest.mark.parametrize("status", [429, 503])
def test_a_service_is_left_alone_as_long_as_it_says(status: int, headers: dict[str, str], waits: list[float]) -> None:
    clock = NoWaiting(40.0)
    with rest_service(in_turn(Says("wait", status=status, headers=headers), ROWS)) as service:
        assert rows_of(RestSource(url=service.url), clock=clock) == ROWS
    assert clock.waits == waits


@pytest.mark.parametrize("after", ["301", "Thu, 01 Jan 1970 01:00:00 GMT", "9" * 400])
def test_a_service_that_wants_longer_fails_the_cell(after: str) -> None:
    clock = NoWaiting()
    with (
        rest_service(lambda asked: Says("wait", status=429, headers={"Retry-After": after})) as service,
        pytest.raises(SourceAway, match=r"Retry-After is [0-9]+ seconds"),
    ):
        rows_of(RestSource(url=service.url), clock=clock)
    assert (len(service.asked), clock.waits) == (1, [])


# Time


@pytest.mark.parametrize("slow", [Says(ROWS, wait=5.0), Says(ROWS, trickle=0.2)], ids=["silent", "trickling"])
def test_an_answer_that_takes_too_long_is_given_up(slow: Says) -> None:
    started = time.monotonic()
    with rest_service(lambda asked: slow) as service:
        with pytest.raises(SourceAway, match=r"has not responded within 0.3 seconds"):
            rows_of(RestSource(url=service.url, timeout=300_000, retries=0), clock=RestClock())
        assert time.monotonic() - started < 4.0  # the whole answer takes longer


def test_what_is_left_of_an_answer_that_was_given_up_is_no_part_of_the_next() -> None:
    with rest_service(in_turn(Says([{"id": n} for n in range(9)], trickle=0.05), ROWS)) as service:
        assert rows_of(RestSource(url=service.url, timeout=400_000, retries=1), clock=RestClock()) == ROWS
    assert len({asked.port for asked in service.asked}) == 2


def test_a_slow_answer_is_asked_for_again() -> None:
    with rest_service(in_turn(Says(ROWS, wait=0.6), ROWS)) as service:
        assert rows_of(RestSource(url=service.url, timeout=250_000), clock=RestClock()) == ROWS


@pytest.mark.parametrize("concurrency", [1, 2])
def test_requests_come_no_faster_than_the_rate_by_the_services_own_clock(concurrency: int) -> None:
    failing = [Says("no", status=500)]

    def script(asked: Asked) -> Any:
        if asked.query["p"] == "3" and failing:
            return failing.pop()
        return [{"id": 1}] if int(asked.query["p"]) < 8 else []

    class Hasty(RestClock):
        """Does not back off by itself: all pauses are those of the rate."""

        def chance(self) -> float:
            return -1.0

    with rest_service(script) as service:
        source = RestSource(url=service.url, rate=50 * concurrency, pagination=Pagination(by="page", param="p"))
        started = time.monotonic()
        assert len(rows_of(source, clock=Hasty(), concurrency=concurrency)) == 7
    moments = [started, *(asked.at for asked in service.asked)]
    assert len(moments) == 10
    assert moments[-1] - moments[0] >= 9 * 0.02 * 0.98


def test_one_part_after_the_other_keeps_to_the_rate_as_well() -> None:
    clock = NoWaiting()
    with rest_service(lambda asked: ROWS) as service:
        for _ in range(3):
            rows_of(RestSource(url=service.url, rate=4.0), clock=clock)
    assert clock.waits == [0.25] * 3


def test_a_pause_that_has_passed_already_is_not_waited_for() -> None:
    clock = NoWaiting()
    pace = Pace(clock, 2.0)
    clock.time = 10.0
    pace.wait()
    pace.wait()
    assert clock.waits == [0.5]


# Who asks


@pytest.mark.parametrize(
    ("who", "header", "expected"),
    [
        (auth("bearer"), "Authorization", f"Bearer {TOKEN}"),
        (auth("basic", user="ann"), "Authorization", "Basic " + base64.b64encode(f"ann:{TOKEN}".encode()).decode()),
        (auth("header", name="X-Key"), "X-Key", TOKEN),
    ],
)
def test_each_request_says_who_asks(who: Auth, header: str, expected: str) -> None:
    def script(asked: Asked) -> Any:
        return ROWS if asked.query["p"] == "1" else []

    with rest_service(script) as service:
        rows_of(RestSource(url=service.url, auth=who, pagination=Pagination(by="page", param="p")))
    assert [asked.headers[header] for asked in service.asked] == [expected, expected]


def test_a_secret_in_the_query_is_there_once_also_if_links_carry_it() -> None:
    def script(asked: Asked) -> Any:
        at = int(asked.query.get("at", 0))
        link = f"<{service.url}/x?at={at + 1}&key=s3cr3t%2Ft%2Bk%26n>; rel=next"
        return Says([{"at": at}], headers={"Link": link} if at < 2 else {})

    with rest_service(script) as service:
        source = RestSource(url=f"{service.url}/x", auth=auth("query", name="key"), pagination=Pagination(by="link"))
        assert rows_of(source) == [{"at": 0}, {"at": 1}, {"at": 2}]
    assert [asked.query["key"] for asked in service.asked] == [TOKEN] * 3


def test_the_secret_is_looked_up_when_it_is_read_and_not_before(monkeypatch: pytest.MonkeyPatch) -> None:
    with rest_service(lambda asked: ROWS) as service:
        part = part_of(RestSource(url=service.url, auth=auth("bearer")))
        assert TOKEN.encode() not in pickle.dumps(part)
        monkeypatch.setenv("REST_TOKEN", "another")
        assert sum(batch.num_rows for batch in pickle.loads(pickle.dumps(part)).read()) == 2
        assert service.asked[0].headers["Authorization"] == "Bearer another"
        monkeypatch.delenv("REST_TOKEN")
        with pytest.raises(SecretMissing):
            list(part.read())


@pytest.mark.parametrize("status", [401, 403])
def test_a_service_that_does_not_let_in_is_told_with_the_secrets_reference(status: int) -> None:
    with rest_service(lambda asked: Says("who?", status=status)) as service:
        with pytest.raises(SourceRefused, match="the secret env:REST_TOKEN is valid"):
            rows_of(RestSource(url=service.url, auth=auth("bearer")))
        with pytest.raises(SourceRefused, match=r"Add \[source.auth\]"):
            rows_of(RestSource(url=service.url))


@pytest.mark.parametrize("by", ["bearer", "header"])
@pytest.mark.parametrize("secret", ["a\nb", "ü"])
def test_a_secret_that_no_header_can_have_is_refused_unseen(
    by: str, secret: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REST_TOKEN", secret)
    who = auth(by, **({"name": "X-Key"} if by == "header" else {}))
    with pytest.raises(RestRequestInvalid, match="env:REST_TOKEN") as caught:
        rows_of(RestSource(url="http://127.0.0.1:1", auth=who))
    assert secret not in str(caught.value)


def echo(asked: Asked) -> str:
    """Return all that a request carries, as careless services do."""
    return f"{asked.path} {asked.query} {asked.headers}"


LEAKS: dict[str, Script] = {
    "refused": lambda asked: Says({"error": echo(asked)}, status=400),
    "not let in": lambda asked: Says(echo(asked), status=401),
    "failing": lambda asked: Says(echo(asked), status=500),
    "no json": lambda asked: Says(echo(asked).encode()),
    "no records": lambda asked: {echo(asked): 1},
    "no record": lambda asked: [echo(asked)],
    "elsewhere": lambda asked: Says("", status=302, headers={"Location": f"http://127.0.0.2/?{asked.query}"}),
    "link": lambda asked: Says(ROWS, headers={"Link": f"<http://127.0.0.2/{TOKEN}?key={TOKEN}>; rel=next"}),
    "too long": lambda asked: Says(echo(asked), status=429, headers={"Retry-After": "999"}),
}


@pytest.mark.parametrize("leak", LEAKS)
@pytest.mark.parametrize(
    "who", [auth("bearer"), auth("basic", user="ann"), auth("header", name="X-Key"), auth("query", name="key")]
)
def test_no_error_has_the_secret_in_it(who: Auth, leak: str) -> None:
    with rest_service(LEAKS[leak]) as service:
        source = RestSource(url=service.url, auth=who, retries=0, pagination=Pagination(by="link"))
        with pytest.raises(FloodmarkError) as caught:
            rows_of(source)
    said = "".join(traceback.format_exception(caught.value)) + repr(caught.value.fields) + str(caught.value)
    forms = [TOKEN, "s3cr3t", base64.b64encode(f"ann:{TOKEN}".encode()).decode()]
    assert [form for form in forms if form in said] == []


@pytest.mark.parametrize("by", ["link", "redirection"])
def test_a_secret_that_the_service_writes_in_its_own_way_is_not_shown(by: str) -> None:
    there = "http://127.0.0.2/x?key=s3cr3t%2ft%2bk%26n"
    says = {
        "link": Says(ROWS, headers={"Link": f"<{there}>; rel=next"}),
        "redirection": Says("", status=302, headers={"Location": there}),
    }[by]
    with rest_service(lambda asked: says) as service, pytest.raises(SourceRefused, match=r"127\.0\.0\.2/x") as caught:
        rows_of(RestSource(url=service.url, auth=auth("query", name="key"), pagination=Pagination(by="link")))
    assert "%2bk" not in f"{caught.value} {caught.value.fields}"


def test_a_service_that_is_not_there_shows_no_secret() -> None:
    source = RestSource(url=f"http://127.0.0.1:{free_port()}", auth=auth("query", name="key"), retries=0)
    with pytest.raises(SourceAway) as caught:
        rows_of(source)
    assert "s3cr3t" not in "".join(traceback.format_exception(caught.value))


# Redirections


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirection_within_the_host_is_followed(status: int) -> None:
    def script(asked: Asked) -> Any:
        if asked.path == "/old":
            return Says("", status=status, headers={"Location": "/new?a=1&key=x"})
        return ROWS

    with rest_service(script) as service:
        assert rows_of(RestSource(url=f"{service.url}/old", auth=auth("query", name="key"))) == ROWS
    assert [asked.path for asked in service.asked] == ["/old", "/new"]
    assert service.asked[1].query == {"a": "1", "key": TOKEN}


def test_a_redirection_to_another_host_is_not_followed() -> None:
    with (
        rest_service(lambda asked: ROWS) as other,
        rest_service(lambda asked: Says("", status=302, headers={"Location": f"{other.url}/x"})) as service,
        pytest.raises(SourceRefused, match="redirects a GET to"),
    ):
        rows_of(RestSource(url=service.url, auth=auth("bearer")))
    assert other.asked == []


@pytest.mark.parametrize(("status", "is_followed"), [(302, False), (303, False), (307, True), (308, True)])
def test_a_post_stays_a_post(status: int, is_followed: bool) -> None:
    def script(asked: Asked) -> Any:
        return Says("", status=status, headers={"Location": "/new"}) if asked.path == "/old" else ROWS

    with rest_service(script) as service:
        source = RestSource(url=f"{service.url}/old", method="POST", body="[]")
        if is_followed:
            assert rows_of(source) == ROWS
            assert [(asked.method, asked.body) for asked in service.asked] == [("POST", b"[]")] * 2
        else:
            with pytest.raises(SourceRefused, match="redirects a POST"):
                rows_of(source)


def test_redirections_in_a_circle_end() -> None:
    with (
        rest_service(lambda asked: Says("", status=302, headers={"Location": "/again"})) as service,
        pytest.raises(SourceRefused, match="redirects again"),
    ):
        rows_of(RestSource(url=service.url))
    assert len(service.asked) == 6


# What else a service may do


def test_a_service_that_hangs_up_while_it_proves_itself_is_asked_again() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def hang_up() -> None:
            for _ in range(2):
                connection, _ = server.accept()
                connection.recv(65536)
                connection.close()

        thread = Thread(target=hang_up, daemon=True)
        thread.start()
        clock = NoWaiting()
        with pytest.raises(SourceAway, match="sent 2 times"):
            rows_of(RestSource(url=f"https://127.0.0.1:{server.getsockname()[1]}", retries=1), clock=clock)
        thread.join(10)
    assert (clock.waits, thread.is_alive()) == ([0.5], False)


@pytest.mark.parametrize("secret", ['it\'s \\ "quoted"', "ünïcödé-secret", "a" * 500, "short"])
def test_a_secret_is_hidden_however_it_is_quoted_or_cut(secret: str) -> None:
    given = Credentials.of(auth("query", name="key"), {"REST_TOKEN": secret})
    for text in (secret, repr(secret), json.dumps(secret), quote(secret), f"it said {secret}"[:100], secret[:70]):
        hidden = given.redact(f"fact {text} fact")
        assert hidden.startswith(("fact ***", "fact '***", 'fact "***', "fact it said ***"))
        assert hidden.endswith((" fact", "' fact", '" fact'))
        assert secret[:6] not in hidden


@pytest.mark.parametrize("says", [Says(ROWS, gzipped=True), Says(ROWS, chunked=True), Says(ROWS, status=206)])
def test_answers_may_be_packed_or_in_pieces(says: Says) -> None:
    with rest_service(lambda asked: says) as service:
        assert rows_of(RestSource(url=service.url)) == ROWS


def test_one_connection_serves_all_pages() -> None:
    def script(asked: Asked) -> Any:
        return [{"id": 1}] if int(asked.query["p"]) < 5 else []

    with rest_service(script) as service:
        rows_of(RestSource(url=service.url, pagination=Pagination(by="page", param="p")))
    assert len({asked.port for asked in service.asked}) == 1


@pytest.mark.parametrize(
    "source", [{"url": "http://127.0.0.1:99999/x"}, {"url": "http://[::1/x"}, {"headers": {"bad:name": "x"}}]
)
def test_what_is_no_request_is_refused(source: dict[str, Any]) -> None:
    with rest_service(lambda asked: ROWS) as service, pytest.raises(RestRequestInvalid, match="The request to"):
        rows_of(RestSource(**{"url": service.url, **source}))
    assert service.asked == []


def test_a_service_that_speaks_no_tls_is_refused() -> None:
    with rest_service(lambda asked: ROWS) as service, pytest.raises(SourceRefused, match="cannot be trusted"):
        rows_of(RestSource(url=service.url.replace("http:", "https:")))


def test_an_answer_may_be_read_again_and_is_what_the_service_has_then() -> None:
    with rest_service(in_turn([{"id": 1}], [{"id": 2}])) as service:
        part = part_of(RestSource(url=service.url))
        assert [batch.to_pylist() for batch in part.read()] == [[{"id": 1}]]
        assert [batch.to_pylist() for batch in part.read()] == [[{"id": 2}]]
