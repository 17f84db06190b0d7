"""Requests that are wrong, too large, too slow or too many: each has its own error, and nothing is stored."""

import json
import socket
import threading
import time
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa
import pytest

from floodmark.errors import Conflict, RequestTooLarge, ServiceBusy
from floodmark.service import Service, ServiceLimits
from floodmark.streams import StreamHome, connect
from floodmark.streams.events import Events
from floodmark.streams.groups.requests import GroupRef, Subscription
from floodmark.streams.local.catalog import Catalog
from floodmark.streams.local.log import TableLog
from floodmark.streams.remote.wire import ARROW, pack_events
from support.service.service_tools import JSON, Served
from support.waiting import wait_until

MARK = {"writer": "w", "instance": 1, "position": {"0": 0}, "key": "time", "time": 5}
EVENTS = "/v1/streams/{id}/events?writer=w&instance=1&first=0"
MARKS = "/v1/streams/{id}/marks"
NEW = "/v1/streams"
ONE = "/v1/streams/{id}"
BAD = (400, "request-invalid")
OPTION = (422, "invalid-option")
POINT = pa.field("floodmark.point", pa.float64(), nullable=False)


def body_of(columns: dict[str, Any], schema: Any, compression: str | None = None) -> bytes:
    sink = pa.BufferOutputStream()
    arrays = [pa.array(column, field.type) for column, field in zip(columns.values(), schema, strict=True)]
    batch = pa.record_batch(arrays, schema=schema)
    with pa.ipc.new_stream(sink, schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_batch(batch)
    raw: bytes = sink.getvalue().to_pybytes()
    return raw


SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("name", pa.string()), POINT])
ROW = {"id": [1], "name": ["x"], "p": [0.5]}
GOOD = body_of(ROW, SCHEMA)


def broken_text() -> bytes:
    """Return a body whose text is no UTF-8, and one whose offsets lead out of it would crash who believes them."""
    body = bytearray(body_of({"id": [1], "name": ["abcdefgh"], "p": [0.5]}, SCHEMA))
    place = bytes(body).index(b"abcdefgh")
    body[place : place + 2] = b"\xff\xfe"
    return bytes(body)


def broken_offsets() -> bytes:
    body = bytearray(body_of({"id": [1], "name": ["abcdefgh"], "p": [0.5]}, SCHEMA))
    place = bytes(body).index((8).to_bytes(4, "little") + b"\0", 250)
    body[place : place + 4] = (2**30).to_bytes(4, "little")
    return bytes(body)


def bare(value: Any) -> Any:
    return {"value": value}


def arrow(body: bytes, kind: str = ARROW) -> Any:
    return {"body": body, "headers": {"Content-Type": kind}}


WRONG: dict[str, tuple[str, str, Any, int, str]] = {
    "no JSON": ("POST", MARKS, {"body": "{"}, *BAD),
    "JSON of another kind": ("POST", MARKS, {"body": "[]"}, *BAD),
    "no body": ("POST", MARKS, {"body": "", "headers": {"Content-Type": JSON}}, *BAD),
    "not said to be JSON": ("POST", MARKS, {"body": json.dumps(MARK), "headers": {"Content-Type": "text/plain"}}, *BAD),
    "field missing": ("POST", MARKS, bare({"writer": "w"}), *BAD),
    "field too much": ("POST", MARKS, bare({**MARK, "x": 1}), *BAD),
    "time as text": ("POST", MARKS, bare({**MARK, "time": "5"}), *BAD),
    "time as truth": ("POST", MARKS, bare({**MARK, "time": True}), *BAD),
    "time as fraction": ("POST", MARKS, bare({**MARK, "time": 5.5}), *BAD),
    "time beyond 64 bits": ("POST", MARKS, bare({**MARK, "time": 2**63}), *BAD),
    "time that ends time": ("POST", MARKS, bare({**MARK, "time": 2**63 - 1}), 422, "reserved-time"),
    "position with a name": ("POST", MARKS, bare({**MARK, "position": {"x": 1}}), *BAD),
    "position below 0": ("POST", MARKS, bare({**MARK, "position": {"0": -1}}), 422, "position-invalid"),
    "position elsewhere": ("POST", MARKS, bare({**MARK, "position": {"7": 1}}), 404, "foreign-segment"),
    "unknown key": ("POST", MARKS, bare({**MARK, "key": "x"}), 404, "unknown-key"),
    "key that no store keeps": ("POST", MARKS, bare({**MARK, "key": "a\0"}), 422, "invalid-value"),
    "unknown writer": ("POST", MARKS, bare({**MARK, "writer": "x"}), 404, "unknown-writer"),
    "writer that no store keeps": ("POST", MARKS, bare({**MARK, "writer": "a\0"}), 422, "invalid-value"),
    "older instance": ("POST", MARKS, bare({**MARK, "instance": 0}), 409, "writer-superseded"),
    "unknown stream": ("POST", "/v1/streams/7/marks", bare(MARK), 404, "unknown-stream"),
    "deleted stream": ("POST", "/v1/streams/7/marks?name=x", bare(MARK), 409, "stream-deleted"),
    "stream as text": ("POST", "/v1/streams/x/marks", bare(MARK), *BAD),
    "stream beyond 64 bits": ("POST", f"/v1/streams/{2**63}/marks", bare(MARK), *BAD),
    "no marks": ("POST", "/v1/marks", bare({"marks": []}), *BAD),
    "too many marks": ("POST", "/v1/marks", bare({"marks": [{**MARK, "stream": 7}] * 4}), 413, "request-too-large"),
    "name of a stream": ("POST", NEW, bare({"name": "a b"}), 422, "invalid-name"),
    "name with half a character": ("POST", NEW, {"body": '{"name": "\\ud800"}'}, *BAD),
    "id below 0": ("POST", NEW, bare({"name": "x", "id": -1}), *BAD),
    "no segments": ("POST", NEW, bare({"name": "x", "segments": 0}), *BAD),
    "far too many segments": ("POST", NEW, bare({"name": "x", "segments": 10**9}), *BAD),
    "timeout of 0": ("POST", NEW, bare({"name": "x", "settings": {"writer_timeout": 0}}), *OPTION),
    "no timeout": ("POST", NEW, bare({"name": "x", "settings": {"writer_timeout": None}}), *OPTION),
    "unknown setting": ("POST", NEW, bare({"name": "x", "settings": {"timeout": 1}}), *BAD),
    "unknown unit": ("POST", NEW, bare({"name": "x", "settings": {"unit": "min"}}), *OPTION),
    "unreadable schema": ("POST", NEW, bare({"name": "x", "settings": {"schema": "AAAA"}}), 422, "schema-invalid"),
    "no base64": ("POST", NEW, bare({"name": "x", "settings": {"schema": "*"}}), 422, "schema-invalid"),
    "schema twice": ("POST", NEW, bare({"name": "x", "settings": {"schema": "AAAA", "ddl": "a INT"}}), *BAD),
    "time column twice": ("POST", NEW,
                          bare({"name": "x", "settings": {"time_columns": [["a", "a"], ["a", "b"]]}}),
                          *OPTION),
    "id of another stream": ("POST", NEW, "same id", 422, "invalid-value"),
    "schema altered": ("PATCH", ONE, bare({"ddl": "a INT"}), 422, "schema-change-refused"),
    "ranges with a hole": ("POST", f"{ONE}/scale", bare({"seal": [0], "ranges": [[0, 0.5]]}), 422, "ranges-missing"),
    "another epoch": ("POST", f"{ONE}/scale", bare({"epoch": 3, "seal": [0], "ranges": [[0, 1]]}), 409, "conflict"),
    "range that is none": ("POST", f"{ONE}/scale", {"body": '{"seal": [0], "ranges": [[0, NaN]]}'}, *BAD),
    "backward read": ("GET", f"{ONE}/segments/0/events?start=5&end=3", {}, 422, "offset-out-of-range"),
    "read below 0": ("GET", f"{ONE}/segments/0/events?start=-1&end=3", {}, *BAD),
    "unknown segment": ("GET", f"{ONE}/segments/7/events?start=0&end=3", {}, 404, "unknown-segment"),
    "no such entry": ("GET", f"{ONE}/entries/7", {}, 404, "unknown-name"),
    "place without a time": ("GET", f"{ONE}/entries/find?by=newest-with-lower-at-most", {}, *BAD),
    "place of another kind": ("GET", f"{ONE}/entries/find?by=x", {}, *BAD),
    "unknown transaction": ("POST", f"{ONE}/transactions/x/finish", {}, 404, "unknown-transaction"),
    "commit with half a mark": ("POST", f"{ONE}/transactions/x/request", bare({"time": 5}), *BAD),
    "transaction that no store keeps": ("POST", f"{ONE}/transactions/a%00/finish", {}, *BAD),
    "no such path": ("GET", "/v1/nonsense", {}, 404, "unknown-name"),
    "no such version": ("GET", "/v2/streams", {}, 404, "unknown-name"),
    "no such method": ("PUT", "/v1/streams", {}, 405, "request-invalid"),
    "reserved writer": ("POST", f"{ONE}/writers", bare({"writer": "~x"}), 422, "invalid-name"),
    "writer for no key": ("POST", f"{ONE}/writers", bare({"writer": "x", "keys": ["y"]}), 404, "unknown-key"),
    "events that are none": ("POST", EVENTS, arrow(b"nonsense"), *BAD),
    "no events": ("POST", EVENTS, arrow(b""), *BAD),
    "events cut off": ("POST", EVENTS, arrow(GOOD[:-60]), *BAD),
    "events of another kind": ("POST", EVENTS, arrow(GOOD, "application/json"), *BAD),
    "compressed events": ("POST", EVENTS, arrow(body_of(ROW, SCHEMA, "zstd")), *BAD),
    "events with broken text": ("POST", EVENTS, arrow(broken_text()), *BAD),
    "events with broken offsets": ("POST", EVENTS, arrow(broken_offsets()), *BAD),
    "an empty batch": ("POST", EVENTS, arrow(body_of({"id": [], "name": [], "p": []}, SCHEMA)), *BAD),
    "events of other columns": ("POST", EVENTS, arrow(body_of({"id": [1], "p": [0.5]}, SCHEMA.remove(1))), 422,
                                "event-invalid"),
    "key outside of the space": ("POST", EVENTS, arrow(body_of({**ROW, "p": [1.0]}, SCHEMA)), 422, "key-out-of-space"),
    "key nowhere": ("POST", EVENTS, arrow(body_of({**ROW, "p": [float("nan")]}, SCHEMA)), 422, "key-out-of-space"),
    "event without a value": ("POST", EVENTS, arrow(body_of({"id": [None], "name": ["x"], "p": [0.5]}, SCHEMA)), 422,
                              "event-invalid"),
    "numbers with a gap": ("POST", EVENTS.replace("first=0", "first=5"), arrow(GOOD), 409, "conflict"),
    "group of a kind": ("POST", "/v1/groups", bare({"kind": "x"}), *BAD),
    "unknown group": ("POST", "/v1/groups/7/tend?name=x", {}, 409, "group-deleted"),
    "group without a name": ("POST", "/v1/groups/7/tend", {}, *BAD),
}  # fmt: skip


@pytest.fixture
def limits() -> ServiceLimits:
    return ServiceLimits(token_seconds=0, max_marks=3, max_request=100_000, body_seconds=0.3, header_seconds=0.3,
                         max_header=5_000)  # fmt: skip


@pytest.mark.parametrize(("method", "path", "options", "status", "code"), WRONG.values(), ids=WRONG)
def test_a_wrong_request_has_its_own_error_and_stores_nothing(
    served: Served, method: str, path: str, options: Any, status: int, code: str
) -> None:
    stream = served.home.create_stream("s", "id BIGINT NOT NULL, name STRING")
    stream.writer("w")
    number = stream.info.id
    if options == "same id":
        options = bare({"name": "x", "id": number})
    before = stream.info
    told = served.ask(method, path.replace("{id}", str(number)), **options)
    assert (told.status, told.code) == (status, code)
    assert set(told.value) == {"code", "fact", "rule", "remedy", "fields"}
    assert told.headers["content-type"] == JSON
    assert [one.name for one in served.home.streams()] == ["s"]
    assert (stream.info, stream.tail(), stream.marks()) == (before, {0: 0}, [])
    assert [(view.writer, view.time) for view in stream.why().writers] == [("w", None)]


def test_the_short_way_for_marks_says_the_same_as_the_long_way(served: Served) -> None:
    """The short way asks for exactly this content type; any other takes the long way."""
    stream = served.home.create_stream("s", "id BIGINT NOT NULL, name STRING")
    stream.writer("w")
    good = {**MARK, "position": {}}
    cases: list[tuple[str, Any]] = [(path, options) for _, path, options, _, _ in WRONG.values() if "/marks" in path]
    cases += [(MARKS, bare({**good, "time": time})) for time in (7, 7, 6, 8)]
    for path, options in cases:
        if not isinstance(options, dict) or "headers" in options or path == "/v1/marks":
            continue
        address = path.replace("{id}", str(stream.info.id))
        short = served.ask("POST", address, **options)
        long = served.ask("POST", address, **options, headers={"Content-Type": "application/json; charset=utf-8"})
        assert (short.status, short.code, set(short.headers)) == (long.status, long.code, set(long.headers)), options
        assert short.value.get("fields") == long.value.get("fields")
        assert short.body == long.body or short.code == "request-invalid"


def test_a_request_that_says_it_is_too_large_is_refused_before_it_is_read(served: Served) -> None:
    told = served.ask("POST", "/v1/streams", body=b"x" * 100_001)
    assert (told.status, told.code, told.headers["connection"]) == (413, "request-too-large", "close")
    assert told.value["fields"] == {"size": 100_001, "most": 100_000}


def test_who_asks_first_whether_to_send_too_much_is_told_so_at_once(served: Served) -> None:
    with raw(served.url) as connection:
        asks = f"Content-Length: {10**10}\r\nExpect: 100-continue"
        head = f"POST /v1/streams HTTP/1.1\r\nHost: 127.0.0.1\r\n{asks}\r\n\r\n"
        connection.sendall(head.encode())
        start = time.monotonic()
        answer = everything(connection)
    assert answer.startswith(b"HTTP/1.1 413")
    assert time.monotonic() - start < 3


def test_a_request_that_does_not_say_how_large_it_is_is_refused_when_it_is_too_large(served: Served) -> None:
    for size, status in ((1_000, 400), (100_100, 413), (2_000_000, 413)):
        told = served.ask("POST", "/v1/streams", body=iter([b"x" * 100] * (size // 100)))
        assert told.status == status, size
    assert served.home.streams() == []


def test_events_that_do_not_fit_in_one_request_go_in_several(served: Served) -> None:
    stream = served.connect().create_stream("s", segments=3)
    writer = stream.writer("w")
    for number in range(40):
        writer.write(f"{number:05}" * 2_000, key=str(number))
    writer.flush()
    assert (sum(stream.tail().values()), writer.events_written) == (40, 40)
    with stream.transactional_writer("t").begin() as transaction:
        for number in range(40):
            transaction.write(f"{number:05}" * 2_000, key="k")
    rows = [row for segment in range(3) for chunk in stream.read(segment) for row in chunk.batch.to_pylist()]
    found = [row["payload"][:5] for row in rows]
    assert sorted(found) == sorted([f"{number:05}".encode() for number in range(40)] * 2)
    of_transaction = [row["payload"][:5] for row in rows if row["key"] == b"k"]
    assert of_transaction == [f"{number:05}".encode() for number in range(40)]
    writer.write("x" * 200_000)
    with pytest.raises(RequestTooLarge):
        writer.flush()


def test_when_one_of_several_requests_fails_to_flush_again_goes_on_behind_those_before_it(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = served.connect().create_stream("s", segments=2)
    writer = stream.writer("w")
    for number in range(40):
        writer.write([number, "x" * 10_000], key=str(number))
    append, calls = TableLog.append, [0]

    def failing(self: TableLog, *args: Any) -> Any:
        calls[0] += 1
        if calls[0] in (3, 5, 6):
            raise Conflict("No.", rule="So.", remedy="Again.")
        return append(self, *args)

    monkeypatch.setattr(TableLog, "append", failing)
    for _ in range(3):
        with pytest.raises(Conflict):
            writer.flush()
    writer.flush()
    assert writer.events_written == 40
    assert writer.note_time(5).value == "accepted"
    rows = [row for segment in range(2) for chunk in stream.read(segment) for row in chunk.batch.to_pylist()]
    assert sorted(json.loads(row["payload"])[0] for row in rows) == list(range(40))


def test_many_batches_in_one_request_are_kept_in_their_order(served: Served) -> None:
    stream = served.home.create_stream("s", "id BIGINT")
    stream.writer("w")
    schema = pa.schema([pa.field("id", pa.int64()), POINT])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        for number in range(3):
            writer.write_batch(pa.record_batch([pa.array([number]), pa.array([0.5])], schema=schema))
    path = EVENTS.replace("{id}", str(stream.info.id))
    told = served.ask("POST", path, **arrow(sink.getvalue().to_pybytes()))
    assert told.value == {"ends": {"0": 3}}
    assert [row["id"] for chunk in stream.read(0) for row in chunk.batch.to_pylist()] == [0, 1, 2]


def raw(url: str) -> socket.socket:
    host, port = urlsplit(url).netloc.split(":")
    return socket.create_connection((host, int(port)), timeout=10)


def everything(connection: socket.socket) -> bytes:
    found = b""
    try:
        while piece := connection.recv(65536):
            found += piece
    except ConnectionResetError:
        pass
    return found


def test_headers_that_do_not_come_to_an_end_are_cut_off(store: str, limits: ServiceLimits) -> None:
    with connect(store, controller=False) as home, Service(home, limits=limits) as service:
        for sent in (b"", b"GET /v1/health HTTP/1.1\r\nHost: 127.0.0.1\r\nX: "):
            start = time.monotonic()
            with raw(service.url) as connection:
                connection.sendall(sent)
                assert everything(connection) == b""
                assert 0.2 < time.monotonic() - start < 5
        with raw(service.url) as connection:
            connection.sendall(b"GET /v1/health HTTP/1.1\r\nX: " + b"x" * 10_000)
            assert everything(connection).startswith(b"HTTP/1.1 400")
        with raw(service.url) as connection:
            for _ in range(3):
                connection.sendall(b"GET /v1/health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
                assert b"200 OK" in connection.recv(65536)
                time.sleep(0.35)


def test_a_body_that_does_not_come_to_an_end_is_given_up(served: Served) -> None:
    with raw(served.url) as connection:
        head = f"POST /v1/streams HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {JSON}\r\nContent-Length: 100\r\n\r\n"
        connection.sendall(head.encode() + b'{"name":')
        answer = everything(connection)
    assert answer.startswith(b"HTTP/1.1 408")
    assert b"request-timed-out" in answer
    assert served.home.streams() == []


def test_when_too_much_waits_what_comes_is_refused_at_once_and_may_be_asked_again(
    store: str, exchange: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = ServiceLimits(token_seconds=60, threads=1, max_waiting=1)
    held, all_ = threading.Event(), Catalog.all
    with connect(store, controller=False) as home, exchange.serving(home, limits=limits) as url:
        served = Served(home, url)
        assert served.ask("GET", "/v1/streams").status == 200

        def slow(self: Catalog) -> Any:
            held.wait(10)
            return all_(self)

        monkeypatch.setattr(Catalog, "all", slow)
        remotes = [StreamHome(served.connect(budget=0.3)._backend) for _ in range(2)]
        told: list[int] = []
        threads = [
            threading.Thread(target=lambda: told.append(served.ask("GET", "/v1/streams").status)) for _ in range(2)
        ]
        for thread in threads:
            thread.start()
        time.sleep(0.2)
        refused = served.ask("GET", "/v1/streams")
        assert (refused.status, refused.code, refused.headers["retry-after"]) == (503, "service-busy", "1")
        with pytest.raises(ServiceBusy):
            remotes[0].streams()
        held.set()
        for thread in threads:
            thread.join()
        assert told == [200, 200]
        assert remotes[1].streams() == []


def test_bodies_that_are_too_large_together_are_put_off(store: str, exchange: Any) -> None:
    limits = ServiceLimits(max_under_way=50_000)
    with connect(store, controller=False) as home, exchange.serving(home, limits=limits) as url:
        served = Served(home, url)
        told = served.ask("POST", NEW, body=b"x" * 60_000)
        assert (told.status, told.code) == (503, "service-busy")
        for _ in range(3):
            assert served.ask("POST", NEW, body=b"x" * 40_000).status == 400
        assert exchange._app._context.load.body_bytes == 0


def test_who_waits_for_news_does_not_hold_up_the_end(store: str) -> None:
    with connect(store, controller=False) as home:
        home.create_stream("s")
        state = home.create_group("g", "s").state
        service = Service(home)
        service.start()
        wanted = Subscription(GroupRef("g", state.group_id), state.version)
        with connect(service.url) as remote:
            came: list[Any] = []
            waiting = threading.Thread(target=lambda: came.append(remote._backend.news(wanted, 9)))
            waiting.start()
            time.sleep(0.3)
            start = time.monotonic()
            service.stop()
            assert time.monotonic() - start < 3
            waiting.join(10)
        assert [news.state for news in came] == [None]


def test_what_the_service_did_not_expect_is_told_without_details(
    served: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(self: Catalog) -> None:
        raise KeyError("secret detail")

    monkeypatch.setattr(Catalog, "all", fail)
    told = served.ask("GET", "/v1/streams")
    assert (told.status, told.code, told.value["fields"]) == (500, "service-failed", {})
    assert "detail" not in told.body.decode()
    wait_until(lambda: "secret detail" in caplog.text)


def test_events_come_back_as_they_were_packed() -> None:
    from floodmark.streams.remote.wire import unpack_events

    batch = pa.record_batch({"a": [1, 2, 3], "b": ["x", None, "z"]})
    events = Events(batch.slice(1, 2), np.array([0.25, 0.75]))
    again = unpack_events(pack_events(events), batch.schema)
    assert (again.batch.to_pylist(), again.points.tolist()) == (events.batch.to_pylist(), [0.25, 0.75])
