"""A PostgreSQL server that goes away for a while: direct writers wait for it, as clients of a service do."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

import psycopg
import pytest
from sqlalchemy import text

from floodmark._util.retry import retry_on_conflict
from floodmark.errors import HomeUnusable
from floodmark.streams import Controller, MarkOutcome, connect
from floodmark.testing import PostgresServer


@pytest.fixture
def database(postgres: PostgresServer) -> str:
    return postgres.new_database()


@contextmanager
def away(postgres: PostgresServer, database: str, seconds: float | None) -> Iterator[None]:
    """End all connections to a database, and refuse new ones for some seconds, or until the end of the block."""
    name = database.partition("@/")[2].partition("?")[0]

    def come_back() -> None:
        postgres.execute(f"ALTER DATABASE {name} WITH ALLOW_CONNECTIONS true")

    postgres.execute(f"ALTER DATABASE {name} WITH ALLOW_CONNECTIONS false")
    with psycopg.connect(postgres.url, autocommit=True) as admin:
        admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name])
    timer = threading.Timer(seconds or 0, come_back)
    try:
        if seconds is not None:
            timer.start()
        yield
    finally:
        timer.join() if seconds is not None else come_back()


def test_all_direct_operations_wait_for_the_server(postgres: PostgresServer, database: str) -> None:
    with connect(database, controller=False) as home:
        stream = home.create_stream("s")
        writer, transactional = stream.writer("w"), stream.transactional_writer("t")
        with away(postgres, database, 0.4):
            writer.write(1)
            assert writer.note_time(100) is MarkOutcome.ACCEPTED
        transaction = transactional.begin()
        with away(postgres, database, 0.4):
            transaction.write(2)
            assert transaction.commit(time=200).outcome is MarkOutcome.ACCEPTED
        with away(postgres, database, 0.4):
            assert stream.tail() == {0: 2}
        with away(postgres, database, 0.4):
            Controller(home).step()
        assert stream.marks()[-1].lower == 100
        writer.close()
        transactional.close()


def test_a_transaction_that_loses_its_connection_runs_again(database: str) -> None:
    with connect(database, controller=False) as home:
        attempts = []

        def work() -> int:
            with home.home.write() as connection:
                attempts.append(1)
                if len(attempts) == 1:
                    connection.execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))
                return int(connection.execute(text("SELECT 7")).scalar_one())

        assert (retry_on_conflict(work), len(attempts)) == (7, 2)


def test_the_wait_is_bounded(postgres: PostgresServer, database: str) -> None:
    with connect(database, controller=False, patience="200 milliseconds") as home:
        stream = home.create_stream("s")
        with away(postgres, database, None):
            begun = monotonic()
            with pytest.raises(HomeUnusable):
                stream.tail()
            assert 0.2 <= monotonic() - begun < 5
        assert stream.tail() == {0: 0}


def test_a_server_that_was_never_reached_is_not_waited_for(postgres: PostgresServer, database: str) -> None:
    with away(postgres, database, None):
        begun = monotonic()
        with pytest.raises(HomeUnusable):
            connect(database)
        assert monotonic() - begun < 5
