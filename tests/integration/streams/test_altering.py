"""Columns that are added to a stream: what writers and readers from before and after see."""

from typing import Any

import pytest

from floodmark.errors import EventInvalid, SchemaChangeRefused
from floodmark.streams import Controller, StreamHome
from support.streams.group_tools import NOW

BEFORE, AFTER = "id BIGINT NOT NULL", "id BIGINT NOT NULL, note STRING, tags ARRAY<STRING>"


def rows(home: StreamHome, name: str = "s") -> list[dict[str, Any]]:
    stream = home.stream(name)
    return [row for segment in stream.ends() for chunk in stream.read(segment) for row in chunk.batch.to_pylist()]


def test_events_from_before_have_null_in_new_columns(home: StreamHome) -> None:
    stream = home.create_stream("s", schema=BEFORE)
    with stream.writer() as writer:
        writer.write_batch([{"id": 1}, {"id": 2}])
    stream.alter(schema=AFTER)
    with stream.writer() as writer:
        writer.write_batch([{"id": 3, "note": "x", "tags": ["a"]}, {"id": 4}])
    expected = [
        {"id": 1, "note": None, "tags": None},
        {"id": 2, "note": None, "tags": None},
        {"id": 3, "note": "x", "tags": ["a"]},
        {"id": 4, "note": None, "tags": None},
    ]
    assert rows(home) == expected
    assert stream.schema.names == ["id", "note", "tags"]
    # One read over the boundary, and reads that begin inside of a batch.
    assert [row for chunk in stream.read(0, 1, 3) for row in chunk.batch.to_pylist()] == expected[1:3]


def test_an_open_writer_continues_with_the_columns_it_knows(home: StreamHome) -> None:
    stream = home.create_stream("s", schema=BEFORE)
    with stream.writer("w") as writer:
        writer.write({"id": 1})
        writer.flush()
        home.stream("s").alter(schema=AFTER)
        writer.write({"id": 2})
        writer.flush()
        with pytest.raises(EventInvalid, match="'note'"):
            writer.write({"id": 3, "note": "x"})
    with home.stream("s").writer("w") as writer:
        writer.write({"id": 3, "note": "x"})
    assert [(row["id"], row["note"]) for row in rows(home)] == [(1, None), (2, None), (3, "x")]


def test_a_transaction_that_spans_the_change_is_committed_whole(home: StreamHome) -> None:
    stream = home.create_stream("s", schema=BEFORE)
    with stream.transactional_writer("t") as writer:
        transaction = writer.begin()
        transaction.write({"id": 1})
        transaction.flush()
        home.stream("s").alter(schema=AFTER)
        transaction.write({"id": 2})
        transaction.commit()
    with home.stream("s").transactional_writer("t") as writer, writer.begin() as transaction:
        transaction.write({"id": 3, "note": "x"})
    assert [(row["id"], row["note"]) for row in rows(home)] == [(1, None), (2, None), (3, "x")]


def test_a_commit_that_another_process_carries_out_keeps_the_new_columns(home: StreamHome, new_home: Any) -> None:
    home.create_stream("s", schema=BEFORE)
    other = new_home()
    controller = Controller(other)
    # The other process has the stream in its cache, with the old columns.
    assert other.stream("s").schema.names == ["id"]
    controller.step()
    home.stream("s").alter(schema=AFTER)
    writer = home.stream("s").transactional_writer("t")
    transaction = writer.begin()
    transaction.write({"id": 1, "note": "x"})
    transaction.request_commit()
    other.local.transactions.finish(other.local.catalog.cached(other.stream("s").info.id), transaction.id)
    assert [(row["id"], row["note"]) for row in rows(home)] == [(1, "x")]
    writer.close()


def test_a_reader_sees_new_columns_with_the_events_that_have_them(home: StreamHome, new_home: Any) -> None:
    stream = home.create_stream("s", schema=BEFORE)
    group = home.create_group("g", "s")
    with group.reader("r", ttl="1 hour") as reader, stream.writer() as writer:
        writer.write({"id": 1})
        writer.flush()
        batch = reader.read(NOW)
        assert batch is not None
        assert batch.batch.to_pylist() == [{"id": 1}]
        # Another process adds the columns, and writes at once.
        other = new_home()
        other.stream("s").alter(schema=AFTER)
        with other.stream("s").writer() as newer:
            newer.write({"id": 2, "note": "x"})
        batch = reader.read("5 seconds")
        assert batch is not None
        assert batch.batch.to_pylist() == [{"id": 2, "note": "x", "tags": None}]


def test_other_changes_are_refused_and_two_programs_may_add_the_same_columns(home: StreamHome, new_home: Any) -> None:
    stream = home.create_stream("s", schema=BEFORE)
    stale = home.stream("s")
    new_home().stream("s").alter(schema=AFTER)
    stale.alter(schema=AFTER)
    for schema in (BEFORE, "id STRING NOT NULL", f"{AFTER}, new INT NOT NULL"):
        with pytest.raises(SchemaChangeRefused):
            stream.alter(schema=schema)
    assert home.stream("s").settings.ddl == AFTER


def test_settings_of_retention_are_altered_and_taken_back(home: StreamHome) -> None:
    stream = home.create_stream("s", retention="1 day")
    stream.alter(retention="2 days", retention_bytes=10)
    assert (stream.settings.retention, stream.settings.retention_bytes) == (2 * 86_400 * 10**6, 10)
    stream.alter(retention=None, retention_bytes=None)
    assert not home.stream("s").settings.has_retention
