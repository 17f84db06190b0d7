"""Claims about places, stops, and how a query and its readers find each other."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import select

from floodmark.bindings import SourceOffset
from floodmark.bindings.coordination import QueryReaders
from floodmark.bindings.offsets import BatchStop, clip_to_stop, source_of_key
from floodmark.bindings.tables import QUERIES
from floodmark.control import Home


def at(end: int, *, ts: int = 1, step: int = 0, of: str = "q") -> SourceOffset:
    return SourceOffset(of, ts, {0: end}, {"at": ts}, step)


Q, R = BatchStop({"s": at(5, of="old")}, in_one=False), BatchStop({"s": at(9, of="old")}, in_one=True)

BATCHES = [
    ("no stop is left", (), 0, 20, 20),
    ("it ends before the stop", (Q, R), 0, 3, 3),
    ("it would pass the stop", (Q, R), 3, 7, 5),
    ("it would end at the stop", (Q, R), 3, 5, 5),
    ("it waits at the stop", (Q, R), 5, 7, 5),
    ("one batch goes to the next stop", (R,), 5, 6, 9),
    ("also if there is nothing more to be read", (R,), 5, 5, 9),
    ("another source has the stop", (BatchStop({"t": at(5)}, in_one=False),), 0, 20, 20),
]


@pytest.mark.parametrize(("stops", "start", "wanted", "end"), [row[1:] for row in BATCHES], ids=[r[0] for r in BATCHES])
def test_where_a_batch_ends(stops: tuple[BatchStop, ...], start: int, wanted: int, end: int) -> None:
    found = clip_to_stop("s", stops, at(start), at(wanted))
    assert (found.cut[0], found.incarnation) == (end, "q")


def test_a_stop_at_an_empty_step_is_reached_by_an_empty_step() -> None:
    stop = BatchStop({"s": at(5, step=1, of="old")}, in_one=False)
    assert clip_to_stop("s", (stop,), at(5), at(5)) == at(5, step=1)
    assert clip_to_stop("s", (stop,), at(5), at(8, ts=2)) == at(5, step=1)
    assert clip_to_stop("s", (stop,), at(5, step=1), at(8, ts=2)) == at(5, step=1)


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    with Home.open(tmp_path) as opened:
        yield opened


def test_a_reader_is_told_the_stops_until_they_are_passed(home: Home) -> None:
    readers = QueryReaders(home)
    run = readers.announce("out", {"frame": 1}, [Q, R], extra_empty_batch=True)
    readers.register("frame", "s", at(0))
    told = readers.stops("q")
    assert told is not None
    assert (told.key, told.remaining, told.extra_empty_batch, told.readers) == ("s", (Q, R), True, 1)
    readers.record_passed(run, 1)
    again = readers.stops("q")
    assert again is not None
    assert again.remaining == (R,)
    found = readers.find("q")
    assert found is not None
    assert (found.query, found.key, found.first) == ("out", "s", at(0))


def test_a_reader_for_which_nobody_waits_is_of_no_query(home: Home) -> None:
    readers = QueryReaders(home)
    readers.register("frame", "s", at(0))
    assert readers.find("q") is None
    readers.stop_expecting(readers.announce("out", {"frame": 1}, [], extra_empty_batch=False))
    readers.register("frame", "s", at(0, of="other"))
    assert readers.stops("other") is None


def test_a_query_that_starts_again_gets_other_stops(home: Home) -> None:
    readers = QueryReaders(home)
    run = readers.announce("out", {"frame": 1}, [Q, R], extra_empty_batch=True)
    readers.register("frame", "s", at(0))
    assert readers.names(run) == {"frame"}
    readers.record_passed(run, 2)
    run = readers.announce("out", {}, [R], extra_empty_batch=True, incarnations=["q"])
    told = readers.stops("q")
    assert told is not None
    assert told.remaining == (R,)
    assert readers.names(run) == {"frame"}
    readers.forget("out")
    assert readers.stops("q") is None
    assert readers.names(run) == set()


def test_queries_of_two_processes_that_start_together_have_readers_and_stops_of_their_own(home: Home) -> None:
    readers = QueryReaders(home)
    first = readers.announce("out", {"frame-1": 1}, [Q, R], extra_empty_batch=True)
    second = readers.announce("out", {"frame-2": 1}, [R], extra_empty_batch=True)
    readers.register("frame-1", "s", at(0, of="one"))
    readers.stop_expecting(second)
    readers.register("frame-2", "s", at(0, of="two"))
    assert readers.names(first) == {"frame-1"}
    assert readers.find("two") is None
    second = readers.announce("out", {"frame-2": 1}, [R], extra_empty_batch=True)
    readers.register("frame-2", "s", at(0, of="two"))
    readers.record_passed(second, 1)
    stops = [readers.stops(incarnation) for incarnation in ("one", "two")]
    assert [one and one.remaining for one in stops] == [(Q, R), ()]


def test_readers_of_one_source_have_keys_of_their_own(home: Home) -> None:
    readers = QueryReaders(home)
    readers.announce("out", {"frame-1": 1, "frame-2": 2}, [], extra_empty_batch=True)
    readers.register("frame-2", "s", at(0, of="two"))
    readers.register("frame-1", "s", at(0, of="one"))
    found = [readers.find(incarnation) for incarnation in ("one", "two")]
    keys = [one.key for one in found if one is not None]
    assert keys[0] == "s"
    assert keys[1] != "s"
    assert {source_of_key(key) for key in keys} == {"s"}


def test_the_runs_of_a_query_do_not_pile_up(home: Home) -> None:
    readers = QueryReaders(home)
    for _ in range(50):
        readers.announce("out", {}, [], extra_empty_batch=True)
    with home.read() as connection:
        assert len(connection.execute(select(QUERIES)).all()) <= 20
