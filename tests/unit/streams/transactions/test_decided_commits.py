"""Commits that are asked for together with something else: both are true, or neither."""

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Connection

from floodmark.streams import Controller, StreamHome, Transaction, TransactionState
from floodmark.streams.local.transactions import CommitMarks
from support.streams.stream_fixtures import STORES


@pytest.fixture(scope="module", params=STORES)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def decide(home: StreamHome, transaction: Transaction, told: CommitMarks, also: Callable[[Connection], None]) -> None:
    transaction.flush()
    home.local.transactions.decide(home.stream("orders").info, transaction.id, told, also)


def begin(home: StreamHome, **options: Any) -> Transaction:
    stream = home.create_stream("orders", **options)
    return stream.transactional_writer("w").begin()


def test_if_the_other_fails_the_commit_was_not_asked_for(home: StreamHome) -> None:
    def fails(connection: Connection) -> None:
        connection.exec_driver_sql("DELETE FROM stream")
        raise KeyError

    transaction = begin(home)
    transaction.write("a")
    with pytest.raises(KeyError):
        decide(home, transaction, CommitMarks({"time": 5}), fails)
    assert transaction.state is TransactionState.OPEN
    assert transaction.commit().position == {0: 1}


def test_what_was_asked_for_is_not_done_twice(home: StreamHome) -> None:
    asked: list[Connection] = []
    transaction = begin(home)
    for _ in range(2):
        decide(home, transaction, CommitMarks({"time": 5}), asked.append)
    assert len(asked) == 1
    assert transaction.state is TransactionState.COMMITTING


def test_a_commit_tells_several_times_behind_all_that_came_before(home: StreamHome) -> None:
    transaction = begin(home, schema="a TIMESTAMP, b TIMESTAMP", time_columns=["a", "b"], segments=2)
    with home.stream("orders").writer("other") as other:
        other.write_batch([{"a": None, "b": None}] * 4, key=list("abcd"))
    ends = home.stream("orders").tail()
    decide(home, transaction, CommitMarks({"a": 7, "b": 3}, ends), lambda connection: None)
    assert transaction.result().outcome is not None
    Controller(home).step()
    stream = home.stream("orders")
    told = {key: (entry.lower, entry.cut) for key in "ab" for entry in stream.marks(key)[-1:]}
    assert told == {"a": (7, ends), "b": (3, ends)}


def test_without_any_time_events_come_in_all_the_same(home: StreamHome) -> None:
    transaction = begin(home)
    transaction.write("a")
    decide(home, transaction, CommitMarks({}), lambda connection: None)
    result = transaction.result()
    assert (result.position, result.outcome) == ({0: 1}, None)
