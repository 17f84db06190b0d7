"""Streams: created, found, altered, scaled, sealed, deleted, and refused where something is wrong."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest

import floodmark
from floodmark.errors import FloodmarkError, StreamDeleted
from floodmark.streams import StreamHome
from floodmark.testing import ManualClock
from support.streams.reading import code_of, rows

ORDERS = "id BIGINT NOT NULL, customer STRING, at TIMESTAMP, paid TIMESTAMP"


def test_a_stream_is_what_it_was_created_as(home: StreamHome, clock: ManualClock) -> None:
    made = home.create_stream(
        "shop/orders",
        ORDERS,
        segments=2,
        time_columns={"order": "at", "paid": "paid"},
        unit="ms",
        writer_timeout="5 seconds",
        first_mark_delay=timedelta(seconds=1),
        marks_retention="1 day",
    )
    for info in (made.info, home.stream("shop/orders").info):
        assert (info.name, info.settings.unit, info.settings.keys) == ("shop/orders", "ms", ("order", "paid"))
        assert info.settings.ddl == ORDERS
        assert (info.settings.writer_timeout, info.settings.first_mark_delay) == (5_000_000, 1_000_000)
        assert info.settings.marks_retention == 86_400_000_000
        assert len(info.layout.current) == 2
        assert (info.created_at, info.is_sealed, info.version) == (clock.now(), False, 1)


def test_the_defaults(home: StreamHome) -> None:
    settings = home.create_stream("plain").settings
    assert (settings.schema, settings.keys, settings.unit) == (None, ("time",), "us")
    assert (settings.writer_timeout, settings.first_mark_delay, settings.marks_retention) == (60_000_000, 0, None)
    assert home.create_stream("two", ORDERS, time_columns=["at", "paid"]).settings.keys == ("at", "paid")
    schema = pa.schema([("a", pa.int64())])
    assert home.create_stream("arrow", schema).schema == schema


def test_streams_are_listed_by_name_and_deleted_ones_are_not(home: StreamHome) -> None:
    for name in ("b", "a/x", "c"):
        home.create_stream(name)
    home.delete_stream("b")
    assert [stream.name for stream in home.streams()] == ["a/x", "c"]
    home.create_stream("b")


def test_the_root_has_connect(location: str) -> None:
    with floodmark.connect(location) as home:
        assert home.streams() == []


REFUSED: dict[str, tuple[Callable[[StreamHome], Any], str]] = {
    "unknown stream": (lambda home: home.stream("order"), "unknown-stream"),
    "unknown stream to delete": (lambda home: home.delete_stream("order"), "unknown-stream"),
    "name twice": (lambda home: home.create_stream("orders"), "stream-exists"),
    "empty name": (lambda home: home.create_stream(""), "invalid-name"),
    "name with a gap": (lambda home: home.create_stream("a b"), "invalid-name"),
    "name as number": (lambda home: home.create_stream(7), "invalid-name"),  # type: ignore[arg-type]
    "no segments": (lambda home: home.create_stream("x", segments=0), "invalid-option"),
    "timeout of 0": (lambda home: home.create_stream("x", writer_timeout="0 seconds"), "invalid-option"),
    "timeout as number": (lambda home: home.create_stream("x", writer_timeout=60), "invalid-option"),  # type: ignore[arg-type]
    "no timeout": (lambda home: home.create_stream("x", writer_timeout=None), "invalid-option"),
    "unknown option": (lambda home: home.create_stream("x", timeout="1 minute"), "invalid-option"),
    "unknown unit": (lambda home: home.create_stream("x", unit="min"), "invalid-option"),
    "schema of a kind": (lambda home: home.create_stream("x", schema=["id"]), "invalid-option"),
    "schema that is none": (lambda home: home.create_stream("x", schema="id"), "schema-invalid"),
    "type that Spark lacks": (lambda h: h.create_stream("x", pa.schema([("a", pa.uint8())])), "schema-invalid"),
    "unknown time column": (lambda home: home.create_stream("x", "a INT", time_columns="b"), "unknown-column"),
    "no time column": (lambda home: home.create_stream("x", time_columns=[]), "invalid-option"),
    "time column twice": (lambda home: home.create_stream("x", time_columns=["a", "a"]), "invalid-option"),
    "overlapping ranges": (lambda h: h.stream("orders").scale([0], [(0, 0.6), (0.5, 1)]), "ranges-overlap"),
    "missing range": (lambda home: home.stream("orders").scale([0], [(0, 0.5)]), "ranges-missing"),
    "range outside": (lambda home: home.stream("orders").scale([0], [(0, 1.5)]), "range-out-of-space"),
    "unknown segment": (lambda home: home.stream("orders").split(7), "unknown-segment"),
    "unknown segment to read": (lambda home: home.stream("orders").read(7), "unknown-segment"),
    "offset below 0": (lambda home: home.stream("orders").read(0, -1), "offset-out-of-range"),
    "backward read": (lambda home: home.stream("orders").read(0, 5, 3), "offset-out-of-range"),
    "unknown key": (lambda home: home.stream("orders").marks("x"), "unknown-key"),
    "time as float": (lambda home: home.stream("orders").cut_at(1.5), "not-int64"),  # type: ignore[arg-type]
    "cut with a foreign segment": (lambda home: home.stream("orders").time_at({7: 1}), "foreign-segment"),
    "cut with a gap": (lambda home: home.stream("orders").time_at({}), "cut-invalid"),
    "empty writer id": (lambda home: home.stream("orders").writer(""), "invalid-name"),
    "reserved writer id": (lambda home: home.stream("orders").writer("~x"), "invalid-name"),
    "automatic without id": (lambda home: home.stream("orders").writer(automatic=True), "invalid-name"),
    "automatic of 0": (lambda h: h.stream("orders").writer("w", automatic="0 seconds"), "invalid-option"),
    "key that is no option": (lambda home: home.stream("orders").alter(segments=3), "invalid-option"),
}


@pytest.mark.parametrize(("action", "code"), REFUSED.values(), ids=REFUSED)
def test_bad_input_has_its_own_error_and_changes_nothing(home: StreamHome, action: Any, code: str) -> None:
    stream = home.create_stream("orders")
    before = stream.info
    assert code_of(lambda: action(home)) == code
    assert [one.name for one in home.streams()] == ["orders"]
    assert stream.info == before
    assert stream.why().writers == ()


def test_settings_are_altered(home: StreamHome) -> None:
    stream = home.create_stream("orders", ORDERS, time_columns="at")
    stream.alter(writer_timeout="1 hour", time_columns=["at", "paid"], unit="ns")
    settings = home.stream("orders").settings
    assert (settings.writer_timeout, settings.keys, settings.unit) == (3_600_000_000, ("at", "paid"), "ns")
    with stream.writer("w") as writer:
        writer.note_time(5, key="paid")
        assert code_of(lambda: stream.alter(time_columns=["at"])) == "invalid-option"
        assert code_of(lambda: stream.alter(unit="s")) == "invalid-option"
        stream.alter(time_columns=["paid"])
        assert code_of(lambda: writer.note_time(6, key="at")) == "unknown-key"
    assert stream.settings.keys == ("paid",)


def test_a_writer_finds_a_key_that_was_added(home: StreamHome) -> None:
    stream = home.create_stream("orders", ORDERS, time_columns="at")
    with stream.writer("w") as writer:
        home.stream("orders").alter(time_columns=["at", "paid"])
        assert writer.note_time(5, key="paid").value == "accepted"


def test_a_sealed_stream_takes_no_more_and_is_read_as_before(home: StreamHome) -> None:
    stream = home.create_stream("orders", "id BIGINT")
    writer = stream.writer("w")
    writer.write({"id": 1})
    writer.flush()
    stream.seal()
    stream.seal()
    writer.write({"id": 2})
    assert code_of(writer.flush) == "stream-sealed"
    assert code_of(lambda: stream.split(0)) == "stream-sealed"
    assert code_of(writer.close) == "stream-sealed"
    assert rows(stream, 0) == [{"id": 1}]
    assert stream.why().closed == ("w",)


def test_what_was_opened_on_a_deleted_stream_says_so_and_stores_nothing(home: StreamHome) -> None:
    old = home.create_stream("orders", "id BIGINT")
    writer, other = old.writer("w"), old.transactional_writer("t")
    transaction = other.begin()
    writer.write({"id": 1})
    home.delete_stream("orders")
    for anew in (False, True):
        if anew:
            home.create_stream("orders", "id BIGINT")
        for action in (writer.flush, old.tail, old.why, lambda: old.split(0), lambda: old.alter(unit="s"), old.delete):
            with pytest.raises(StreamDeleted) as refusal:
                action()
            assert refusal.value.fields == {"stream": "orders", "created_anew": anew}
        assert code_of(lambda: writer.note_time(5)) == "stream-deleted"
        assert code_of(other.begin) == "stream-deleted"
        assert code_of(lambda: list(old.read(0, 0, 10))) == "stream-deleted"
    with pytest.raises(FloodmarkError):
        transaction.commit()
    new = home.stream("orders")
    assert (new.tail(), new.why().writers, new.marks()) == ({0: 0}, (), [])
    with pytest.raises(StreamDeleted):
        writer.close()
    other.close()


def test_after_a_deletion_nothing_is_left(home: StreamHome, local: StreamHome) -> None:
    from floodmark.streams.local.tables import ALL_TABLES

    stream = home.create_stream("orders")
    with stream.writer("w") as writer:
        writer.write("x")
        writer.note_time(5)
    transaction = stream.transactional_writer("t").begin()
    transaction.write("y")
    transaction.flush()
    stream.delete()
    with local.home.read() as connection:
        assert [connection.execute(table.select()).all() for table in ALL_TABLES] == [[] for _ in ALL_TABLES]
