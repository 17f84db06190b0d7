"""Claims about the counters by which one process learns that another has changed something."""

from time import perf_counter

import pytest
from sqlalchemy import text

from floodmark.control import Home
from floodmark.control.store.change_counters import announce_change
from floodmark.errors import FloodmarkError


def announce(home: Home, *topics: str) -> None:
    with home.write() as connection:
        for topic in topics:
            announce_change(connection, topic)


def test_what_never_changed_has_zero_and_only_what_changed_is_listed(home: Home) -> None:
    assert home.changes("a", "b") == {"a": 0, "b": 0}
    assert home.changes() == {}
    announce(home, "b", "c")
    assert home.changes("a", "b") == {"a": 0, "b": 1}
    assert home.changes() == {"b": 1, "c": 1}


def test_a_transaction_counts_a_topic_once(home: Home) -> None:
    announce(home, "a", "a", "b", "a")
    announce(home, "a")
    assert home.changes() == {"a": 2, "b": 1}


def test_others_see_a_change_and_its_counter_together_and_not_before(home: Home) -> None:
    with Home.open_existing(home.location) as other:
        assert other.changes("a") == {"a": 0}
        with home.write() as connection:
            announce_change(connection, "a")
            connection.execute(text("INSERT INTO watermark_incarnation VALUES ('x', '{}', NULL, NULL, 0)"))
            assert other.changes("a") == {"a": 0}
        assert other.changes("a") == {"a": 1}
        assert home.changes("a") == {"a": 1}


def test_what_is_undone_is_not_counted(home: Home) -> None:
    def fail() -> None:
        with home.write() as connection:
            announce_change(connection, "a")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    announce(home, "b")
    assert home.changes() == {"b": 1}


def test_who_has_the_connection_next_announces_nothing_of_the_one_before(home: Home) -> None:
    announce(home, "a")
    announce(home)
    assert home.changes() == {"a": 1}


def test_a_change_is_announced_by_the_transaction_that_makes_it(home: Home) -> None:
    with home.read() as connection, pytest.raises(FloodmarkError) as refusal:
        announce_change(connection, "a")
    assert refusal.value.code == "invalid-option"
    with pytest.raises(FloodmarkError) as refusal:
        announce(home, "")
    assert refusal.value.code == "invalid-value"


def test_to_ask_is_cheap_enough_to_ask_every_ten_milliseconds(home: Home) -> None:
    topics = [f"bucket/{number}" for number in range(100)]
    announce(home, *topics)
    took = []
    for _ in range(200):
        since = perf_counter()
        home.changes(*topics[:10])
        took.append(perf_counter() - since)
    assert sorted(took)[100] < 0.001
