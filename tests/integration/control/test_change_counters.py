"""Change counters in PostgreSQL: their rows are locked late, and in one order."""

import threading
from time import sleep

import pytest
from sqlalchemy import text

from floodmark.control import Home
from floodmark.control.store.change_counters import announce_change


def announce(home: Home, *topics: str) -> None:
    with home.write() as connection:
        for topic in topics:
            announce_change(connection, topic)


def test_who_announces_early_keeps_nobody_waiting_until_it_ends(postgres_home: Home) -> None:
    with postgres_home.write() as connection:
        announce_change(connection, "a")
        announce(postgres_home, "a")
        assert postgres_home.changes("a") == {"a": 1}
    assert postgres_home.changes("a") == {"a": 2}


@pytest.mark.parametrize("topics", [["a", "b"], ["b", "a"]])
def test_topics_are_counted_in_one_order_or_two_could_wait_for_each_other(
    postgres_home: Home, topics: list[str]
) -> None:
    announce(postgres_home, "a", "b")
    other = threading.Thread(target=announce, args=(postgres_home, *topics))
    with postgres_home.write() as connection:
        connection.execute(text("SELECT * FROM change WHERE topic = 'b' FOR UPDATE"))
        other.start()
        free = text("SELECT COUNT(*) FROM (SELECT * FROM change WHERE topic = 'a' FOR UPDATE SKIP LOCKED) AS free")
        for _ in range(500):
            with postgres_home.write() as looking:
                if not looking.execute(free).scalar():
                    break
            sleep(0.01)
        else:
            pytest.fail("it waits for 'b', and has not counted 'a'")
    other.join()
    assert postgres_home.changes() == {"a": 2, "b": 2}
