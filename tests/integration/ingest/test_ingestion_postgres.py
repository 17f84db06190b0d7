"""Two who change one unit at the same time, in PostgreSQL."""

import threading
from time import sleep

import pytest

from floodmark.control import Home
from floodmark.ingest import Ingestion, Range
from floodmark.ingest.store.coverage import change_coverage
from floodmark.testing import ManualClock
from support.ingest.ingest_jobs import at, job_of


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(at("01-05"))


def test_two_who_change_one_unit_wait_for_each_other(postgres_home: Home, clock: ManualClock) -> None:
    """In SQLite one writes at a time. Without the lock, each would build on what was before both."""
    Ingestion(postgres_home).register(job_of())
    begun = threading.Event()

    def change(done: Range) -> None:
        with postgres_home.write() as connection:
            begun.set()
            change_coverage(connection, "orders", ["{}"], lambda _: lambda known: known.succeeded(done, 1))

    with postgres_home.write() as connection:
        change_coverage(connection, "orders", ["{}"], lambda _: lambda known: known.succeeded(Range(0, 10), 1))
        other = threading.Thread(target=change, args=(Range(10, 20),))
        other.start()
        assert begun.wait(10)
        sleep(0.3)
    other.join(10)
    assert Ingestion(postgres_home).coverage("orders")["{}"].covered == (Range(0, 20),)
