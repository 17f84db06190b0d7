"""A stream as the target of a job: each row once, whoever dies where, and time that says what is there."""

import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from sqlalchemy import select

from floodmark.control import Home
from floodmark.errors import (
    HomeBusy,
    JobInvalid,
    LeaseLost,
    StreamSealed,
    StreamUnfit,
)
from floodmark.ingest import Ingestion, Landing, PlannedRange, Range, RestSource, Unit
from floodmark.ingest.landing.stream import (
    DECIDED,
    FAILPOINTS,
    LANDED,
    ROWS_WRITTEN,
    StreamLanding,
)
from floodmark.streams import StreamHome, connect
from floodmark.streams.local.tables import TRANSACTIONS
from floodmark.streams.local.transactions import Transactions
from support.ingest.landing_process import (
    ALL,
    DAY,
    DAYS,
    NAME,
    ROWS,
    SHOPS,
    START,
    Feeding,
    events_in,
    ids_in,
    job_of,
    late_in,
    load,
    rows_of,
    watermark,
)


class Stopped(BaseException):
    """A process ends here."""


@pytest.fixture
def streams(home: Home) -> Iterator[StreamHome]:
    with connect(home.location, controller=False) as streams:
        yield streams


@pytest.fixture
def one(sqlite_home: Home) -> Iterator[StreamHome]:
    """Give a home in SQLite, for what does not depend on the store."""
    with connect(sqlite_home.location, controller=False) as streams:
        yield streams


@pytest.mark.parametrize("workers", [1, 4])
def test_a_run_makes_the_stream_and_puts_each_row_into_it_once(streams: StreamHome, workers: int) -> None:
    job = job_of()
    result = load(streams, job, workers=workers)
    assert (result.planned, result.succeeded, result.rows) == (8, 8, 80)
    stream = streams.stream(NAME)
    assert ids_in(stream) == ALL
    assert stream.settings.ddl == "id INT, at TIMESTAMP, shop STRING"
    assert stream.settings.keys == ("at",)
    assert {(row["shop"], row["id"] // 1000) for row in events_in(stream)} == {("north", 0), ("south", 1)}
    assert watermark(streams) == DAYS
    assert load(streams, job).planned == 0
    assert ids_in(stream) == ALL


def test_a_failed_cell_of_one_unit_holds_the_watermark_until_it_is_filled(streams: StreamHome) -> None:
    job = job_of()
    feeding = Feeding(StreamLanding(streams, job))
    feeding.failing = {("south", 1)}
    result = load(streams, job, feeding)
    assert (result.succeeded, result.failed) == (7, 1)
    assert watermark(streams) == 1
    feeding.failing = set()
    assert load(streams, job, feeding).succeeded == 1
    assert watermark(streams) == DAYS
    assert ids_in(streams.stream(NAME)) == ALL
    assert late_in(streams) == []


def test_the_watermark_comes_out_before_the_run_is_over(sqlite_home: Home) -> None:
    with connect(sqlite_home.location) as home:
        # Two entries are never closer than that.
        home.create_stream(NAME, "id INT, at TIMESTAMP, shop STRING", 1, "at", rate_floor="500 milliseconds")
        load(home, job_of(days=2))
        load(home, job_of())
    with connect(sqlite_home.location, controller=False) as home:
        assert home.stream(NAME).marks()[-1].lower == START + DAYS * DAY


def test_a_cell_without_rows_is_read_and_the_stream_is_made_all_the_same(one: StreamHome) -> None:
    job = job_of(units=())
    feeding = Feeding(StreamLanding(one, job), lambda row: (batch.slice(0, 0) for batch in rows_of(row)))
    assert load(one, job, feeding).rows == 0
    assert one.stream(NAME).tail() == {0: 0}
    assert watermark(one) == DAYS


def test_nothing_is_told_before_something_is_complete(one: StreamHome) -> None:
    job = job_of()
    feeding = Feeding(StreamLanding(one, job))
    feeding.failing = {("south", 0)}
    load(one, job, feeding)
    assert watermark(one) is None


# Who dies, and where.


def test_what_a_dead_run_had_decided_comes_with_the_next_run_though_it_has_nothing_to_do(one: StreamHome) -> None:
    job = job_of(days=1, units=("north",))

    def stop(place: str) -> None:
        if place == DECIDED:
            raise Stopped

    with pytest.raises(Stopped):
        load(one, job, Feeding(StreamLanding(one, job, failpoint=stop)))
    assert ids_in(one.stream(NAME)) == Counter()
    assert Ingestion(one.home).complete_through(job) == START + DAY
    with Ingestion(one.home).start(job, owner="here") as run:
        landing = StreamLanding(one, job)
        landing.prepare(run)
        assert run.plan.is_empty
        assert ids_in(one.stream(NAME)) == Counter(range(ROWS))
        landing.finish(run)
    assert watermark(one) == 1
    assert late_in(one) == []


def test_an_overtaken_run_can_neither_commit_nor_take_the_writer_away(home: Home) -> None:
    clock = [START + 10 * DAY]
    with connect(home.location, controller=False, clock=lambda: clock[0]) as streams:
        load(streams, job_of(days=1, units=("north",)))
        job = job_of(days=2, units=("north",))
        jobs = Ingestion(streams.home)
        old, landing = jobs.start(job, owner="old"), StreamLanding(streams, job)
        landing.prepare(old)
        clock[0] += 120_000_000
        new, mine = jobs.start(job, owner="new"), StreamLanding(streams, job)
        (row,) = new.plan.rows
        with pytest.raises(LeaseLost):
            landing.land(old, row, rows_of(row))
        mine.prepare(new)
        for late in (landing, StreamLanding(streams, job)):
            with pytest.raises(LeaseLost):
                late.prepare(old)
            with pytest.raises(LeaseLost):
                late.land(old, row, rows_of(row))
        assert mine.land(new, row, rows_of(row)).rows == ROWS
        new.succeeded(row, rows=ROWS)
        mine.finish(new)
        new.end()
        assert ids_in(streams.stream(NAME)) == Counter(range(2 * ROWS))
        assert watermark(streams) == 2


def test_an_overtaken_run_cannot_tell_the_time(home: Home) -> None:
    clock = [START + 10 * DAY]
    job = job_of(days=1, units=("north",))
    with connect(home.location, controller=False, clock=lambda: clock[0]) as streams:
        old, landing = Ingestion(streams.home).start(job, owner="old"), StreamLanding(streams, job)
        landing.prepare(old)
        (row,) = old.plan.rows
        old.succeeded(row, rows=landing.land(old, row, rows_of(row)).rows)
        clock[0] += 120_000_000
        with Ingestion(streams.home).start(job, owner="new") as new:
            with pytest.raises(LeaseLost):
                landing.finish(old)
            assert watermark(streams) is None
            mine = StreamLanding(streams, job)
            mine.prepare(new)
            mine.finish(new)
        assert watermark(streams) == 1


# What is in doubt.


def test_a_lost_answer_to_the_decision_makes_no_row_come_twice(
    one: StreamHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    decide = Transactions.decide

    def decided_and_not_told(self: Transactions, *given: Any) -> None:
        decide(self, *given)
        raise HomeBusy("The home was away.", rule="-", remedy="-")

    job = job_of()
    with monkeypatch.context() as patch:
        patch.setattr(Transactions, "decide", decided_and_not_told)
        # To say the time fails too, and that fails the run and none of its rows.
        with pytest.raises(HomeBusy):
            load(one, job)
    attempts = Ingestion(one.home).attempts("orders", 1)
    assert {(attempt.state, attempt.rows) for attempt in attempts} == {("succeeded", ROWS)}
    assert ids_in(one.stream(NAME)) == ALL
    assert load(one, job).planned == 0
    assert ids_in(one.stream(NAME)) == ALL
    assert watermark(one) == DAYS


@pytest.mark.parametrize("error", [HomeBusy("Away.", rule="-", remedy="-"), OSError("away")])
@pytest.mark.parametrize("cell", [2, 8])
def test_what_is_decided_is_landed_though_the_commit_fails_for_now(
    one: StreamHome, monkeypatch: pytest.MonkeyPatch, error: Exception, cell: int
) -> None:
    job, finish = job_of(), Transactions.finish
    calls = []

    def fails_at_first(self: Transactions, *given: Any) -> Any:
        calls.append(given)
        if len(calls) == 1 + cell:
            raise error
        return finish(self, *given)

    monkeypatch.setattr(Transactions, "finish", fails_at_first)
    result = load(one, job)
    assert (result.succeeded, result.failed, result.rows) == (8, 0, 80)
    assert len(calls) > 8
    assert ids_in(one.stream(NAME)) == ALL
    assert load(one, job).planned == 0
    assert watermark(one) == DAYS
    assert late_in(one) == []


def test_a_stream_sealed_under_a_decided_commit_leaves_the_cell_due(
    one: StreamHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_of(days=1, units=("north",))
    places: list[str] = []

    def seal(place: str) -> None:
        places.append(place)
        if place == DECIDED:
            one.stream(NAME).seal()

    result = load(one, job, Feeding(StreamLanding(one, job, failpoint=seal)))
    assert (result.failed, DECIDED in places, LANDED in places) == (1, True, False)
    jobs = Ingestion(one.home)
    assert jobs.complete_through(job) == START
    assert [row.reason for row in jobs.plan(job).rows] == ["failed"]
    assert [attempt.state for attempt in jobs.attempts("orders", result.run)] == ["failed"]
    with pytest.raises(StreamSealed):
        load(one, job)


def test_whoever_still_has_the_job_takes_its_writer_again(one: StreamHome) -> None:
    job = job_of()
    landing = StreamLanding(one, job)
    stolen: list[str] = []

    def steal(place: str) -> None:
        if place == ROWS_WRITTEN and not stolen:
            stolen.append(place)
            one.stream(NAME).transactional_writer(landing.writer_id)

    landing._failpoint = steal
    result = load(one, job, Feeding(landing))
    assert (result.succeeded, result.failed) == (7, 1)
    assert load(one, job, Feeding(landing)).succeeded == 1
    assert ids_in(one.stream(NAME)) == ALL


def test_a_cell_that_fails_in_the_middle_of_its_rows_leaves_none_of_them(one: StreamHome) -> None:
    def broken(row: PlannedRange) -> Iterator[pa.RecordBatch]:
        yield from list(rows_of(row))[:1]
        raise ConnectionError("cut")

    job = job_of(days=1)
    assert load(one, job, Feeding(StreamLanding(one, job), broken)).failed == 2
    assert ids_in(one.stream(NAME)) == Counter()
    with one.home.read() as connection:
        states = connection.execute(select(TRANSACTIONS.c.state)).scalars()
        assert Counter(states) == {"aborted": 2, "committed": 1}
    assert load(one, job).succeeded == 2
    assert ids_in(one.stream(NAME)) == Counter([*range(ROWS), *range(1000, 1000 + ROWS)])


# Time.


def test_time_never_goes_back_and_a_job_that_appends_writes_nothing_before_it(one: StreamHome) -> None:
    load(one, job_of(units=("north",)))
    grown = job_of()
    result = load(one, grown)
    assert (result.succeeded, result.failed) == (0, 4)
    assert "[range-late]" in result.errors[0]
    assert watermark(one) == DAYS
    # Said to have been read, they are left out, and the job goes on.
    Ingestion(one.home).edit(
        "orders", Range(START, START + DAYS * DAY), covered=True, units=[Unit.of({"shop": "south"}).key], actor="me"
    )
    assert load(one, job_of(days=DAYS + 1)).succeeded == 2
    assert watermark(one) == DAYS + 1
    assert late_in(one) == []


def test_a_job_that_merges_writes_late_rows_and_tells_no_time_until_it_is_beyond(one: StreamHome) -> None:
    load(one, job_of("merge", units=("north",)))
    Ingestion(one.home).edit("orders", Range(START, START + DAY), covered=False, actor="me")
    job = job_of("merge", units=("north",))
    assert load(one, job).succeeded == 1
    assert watermark(one) == DAYS
    assert ids_in(one.stream(NAME)) == Counter(range(40)) + Counter(range(ROWS))


def test_what_is_read_again_within_the_grace_is_not_late(one: StreamHome) -> None:
    for days, told in ((2, 1), (3, 2), (4, 3)):
        load(one, job_of("merge", days=days, grace=1))
        assert watermark(one) == told
    assert late_in(one) == []
    assert set(ids_in(one.stream(NAME)).values()) == {1, 2}


def test_a_stream_in_milliseconds_is_told_milliseconds(one: StreamHome) -> None:
    one.create_stream(NAME, "id INT, at TIMESTAMP, shop STRING", 1, "at", unit="ms")
    load(one, job_of())
    assert watermark(one) is not None
    assert one.stream(NAME).marks()[-1].lower == (START + DAYS * DAY) // 1000
    late = load(one, job_of(units=(*SHOPS, "west")))
    assert (late.failed, "[range-late]" in late.errors[0]) == (4, True)


# Keys.


def test_a_merge_writes_the_newest_row_of_each_key_of_a_cell(one: StreamHome) -> None:
    at = pa.timestamp("us")

    def twice(row: PlannedRange) -> Iterator[pa.RecordBatch]:
        lo = row.range.lo
        for ids, times in (([1, 2, 3], [5, 9, 7]), ([2, 1, 3], [8, 6, 7])):
            moments = pa.array([lo + time for time in times], at)
            notes = [f"{number}@{time}" for number, time in zip(ids, times, strict=True)]
            yield pa.record_batch({"id": ids, "at": moments, "note": notes})

    job = job_of("merge", units=(), days=1)
    assert load(one, job, Feeding(StreamLanding(one, job, segments=3), twice)).rows == 3
    notes = sorted(row["note"] for row in events_in(one.stream(NAME)))
    assert notes == ["1@6", "2@9", "3@7"]


def test_rows_of_one_key_come_to_one_segment(one: StreamHome) -> None:
    job = job_of("merge", units=("north",), grace=9)
    for _ in range(3):
        load(one, job, Feeding(StreamLanding(one, job, segments=4)))
    stream = one.stream(NAME)
    homes: dict[int, set[int]] = {}
    for segment in stream.layout.segments:
        for chunk in stream.read(segment.id):
            for number in chunk.batch["id"].to_pylist():
                homes.setdefault(number, set()).add(segment.id)
    assert {len(segments) for segments in homes.values()} == {1}
    assert len(set.union(*homes.values())) == 4
    assert set(ids_in(stream).values()) == {3}


# Shapes.


@pytest.mark.parametrize(
    ("columns", "times", "source", "said"),
    [
        (None, None, {}, "has no schema"),
        ("id INT, at TIMESTAMP, sent TIMESTAMP", ["at", "sent"], {}, "has the time keys 'at', 'sent'"),
        ("id INT, at TIMESTAMP, sent TIMESTAMP", "sent", {}, "times in the column 'sent', and the job reads by 'at'"),
        ("id INT, at TIMESTAMP_NTZ", "at", {"zone": "Asia/Tokyo"}, "read in the zone Asia/Tokyo"),
        ("id INT, at BIGINT", "at", {"watermark_type": "epoch-millis"}, "as int64 in us"),
        ("key INT, at TIMESTAMP", "at", {"mode": "merge"}, "has no column 'id'"),
    ],
)
def test_a_stream_whose_times_or_keys_are_others_is_refused_before_anything_is_read(
    one: StreamHome, columns: str | None, times: Any, source: dict[str, Any], said: str
) -> None:
    one.create_stream(NAME, columns, 1, times)
    job = job_of(**source)
    with pytest.raises(StreamUnfit, match=said):
        load(one, job)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ("at TIMESTAMP", "column id"),
        ("id SMALLINT, at TIMESTAMP", "column id"),
        ("id INT, at TIMESTAMP, paid DOUBLE NOT NULL", "no column paid"),
    ],
)
def test_rows_that_do_not_fit_fail_their_cells_and_say_why(one: StreamHome, columns: str, said: str) -> None:
    one.create_stream(NAME, columns, 1, "at")
    result = load(one, job_of())
    assert (result.succeeded, result.failed) == (0, 8)
    assert said in result.errors[0]
    assert "[stream-unfit]" in result.errors[0]
    assert "another stream" in result.errors[0]
    assert one.stream(NAME).tail() == {0: 0}


def test_a_stream_may_have_more_columns_and_wider_types_than_the_rows(one: StreamHome) -> None:
    one.create_stream(NAME, "note STRING, at TIMESTAMP, id BIGINT", 1, "at")
    assert load(one, job_of()).rows == 80
    assert ids_in(one.stream(NAME)) == ALL
    assert {row["note"] for row in events_in(one.stream(NAME))} == {None}


def test_what_does_not_fit_may_be_kept_aside(one: StreamHome) -> None:
    job = job_of(drift="rescue")
    load(one, job_of(days=1, drift="rescue"))
    assert one.stream(NAME).settings.ddl == "id INT, at TIMESTAMP, _rescued STRING, shop STRING"

    def more(row: PlannedRange) -> Iterator[pa.RecordBatch]:
        return (batch.append_column("size", pa.array(range(batch.num_rows))) for batch in rows_of(row))

    assert load(one, job, Feeding(StreamLanding(one, job), more)).failed == 0
    assert ids_in(one.stream(NAME)) == ALL
    assert Counter(row["_rescued"] for row in events_in(one.stream(NAME)))['{"size":4}'] == 12


def test_a_stream_without_a_place_for_what_is_kept_aside_is_refused(one: StreamHome) -> None:
    one.create_stream(NAME, "id INT, at TIMESTAMP, shop STRING", 1, "at")
    assert "no column '_rescued'" in load(one, job_of(drift="rescue")).errors[0]


def test_a_job_that_wants_a_stream_to_grow_is_refused(one: StreamHome) -> None:
    with pytest.raises(JobInvalid, match="evolve"):
        StreamLanding(one, job_of(drift="evolve"))
    with pytest.raises(JobInvalid, match="no stream"):
        StreamLanding(one, replace(job_of(), target=Landing("append", path="landed")))


def test_a_stream_that_is_gone_is_not_made_again_by_a_job_that_has_read_something(one: StreamHome) -> None:
    load(one, job_of(days=1))
    one.delete_stream(NAME)
    result = load(one, job_of())
    assert result.failed == 6
    assert "has read ranges already" in result.errors[0]
    Ingestion(one.home).edit("orders", Range(START, START + DAYS * DAY), covered=False, actor="me")
    assert load(one, job_of()).succeeded == 8
    assert ids_in(one.stream(NAME)) == ALL


def test_a_source_without_a_watermark_column_tells_time_by_its_ranges(one: StreamHome) -> None:
    source = RestSource(url="https://shop.example/orders?from={{range.from}}&to={{range.to}}")
    job = replace(job_of(units=()), source=source)
    load(one, job)
    assert one.stream(NAME).settings.keys == ("time",)
    assert one.stream(NAME).settings.ddl == "id INT, at TIMESTAMP_NTZ"
    assert watermark(one) == DAYS


def test_two_jobs_may_land_in_one_stream_and_the_slower_one_holds_its_time(one: StreamHome) -> None:
    first, second = job_of(units=("north",)), replace(job_of(units=("south",)), name="others")
    feeding = Feeding(StreamLanding(one, second))
    feeding.failing = {("south", 2)}
    load(one, first)
    load(one, second, feeding)
    assert watermark(one) == 2


@pytest.mark.parametrize("workers", [1, 4])
@pytest.mark.parametrize("place", FAILPOINTS)
def test_whatever_fails_at_a_step_the_next_runs_end_with_each_row_once(
    one: StreamHome, place: str, workers: int
) -> None:
    job, lock = job_of(), threading.Lock()
    reached = [0]

    def fail(at: str) -> None:
        with lock:
            reached[0] += at == place
            if at == place and reached[0] in (1, 4):
                raise OSError("by chance")

    landing = Feeding(StreamLanding(one, job, failpoint=fail))
    for _ in range(4):
        try:
            load(one, job, landing, workers=workers)
        except OSError:
            continue
    assert load(one, job, landing).planned == 0
    assert ids_in(one.stream(NAME)) == ALL
    assert watermark(one) == DAYS
    assert late_in(one) == []
