"""Rows and times on their way into a stream: pure rules, one row of a table each."""

from datetime import UTC, date, datetime
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest

from floodmark.errors import EventInvalid
from floodmark.ingest import Bound, Grid, Job, Range, TimeWatermark, Unit, UnitCoverage, UnitWatermark
from floodmark.ingest.landing import stream_rows as _stream_rows
from floodmark.ingest.landing.stream_rows import (
    INSTANT_TYPE,
    StreamRequirements,
    StreamRowFitter,
    TimeColumn,
    newest_rows,
    row_keys,
)
from floodmark.ingest.planning.coverage import final_through

DAY = 86_400_000_000
BERLIN = "Europe/Berlin"
FORM = StreamRequirements("orders", "load", None, ("id",), "at")


def wall(text: str) -> datetime:
    """Return what a clock shows."""
    return datetime.fromisoformat(text)


@pytest.mark.parametrize(
    ("column", "values", "moment"),
    [
        (TimeColumn("at", BERLIN), pa.array([wall("2020-07-01T12:00")]), wall("2020-07-01T10:00")),
        # The hour that is there twice is the later one; the one that is not is the moment of the skip.
        (TimeColumn("at", BERLIN), pa.array([wall("2020-10-25T02:30")]), wall("2020-10-25T01:30")),
        (TimeColumn("at", BERLIN), pa.array([wall("2020-03-29T02:30")]), wall("2020-03-29T01:00")),
        (TimeColumn("at", BERLIN), pa.array([date(2020, 7, 1)]), wall("2020-06-30T22:00")),
        (TimeColumn("at", BERLIN), pa.array([date(2020, 7, 1)], pa.date64()), wall("2020-06-30T22:00")),
        (TimeColumn("at", BERLIN), pa.array([7], pa.timestamp("s", "Asia/Tokyo")), wall("1970-01-01T00:00:07")),
        (TimeColumn("at", BERLIN), pa.array([7_999], pa.timestamp("ns", "UTC")), wall("1970-01-01T00:00:00.000007")),
        (TimeColumn("at", BERLIN, 1_000), pa.array([7], pa.int32()), wall("1970-01-01T00:00:00.007000")),
        (TimeColumn("at", BERLIN, 1_000_000), pa.array([-7]), wall("1969-12-31T23:59:53")),
    ],
)
def test_a_time_of_any_kind_is_a_moment(column: TimeColumn, values: Any, moment: datetime) -> None:
    found = column.instants(values)
    assert found.type == INSTANT_TYPE
    assert found.to_pylist() == [moment.replace(tzinfo=UTC)]


def test_a_time_that_no_stream_can_hold_is_refused_and_none_is_not() -> None:
    with pytest.raises(EventInvalid, match="'at' has a time that cannot be read"):
        TimeColumn("at", "UTC", 1_000_000).instants(pa.array([2**60]))
    with pytest.raises(EventInvalid, match="'at' has a time that cannot be read"):
        TimeColumn("at", "UTC").instants(pa.array([2**60], pa.timestamp("s")))
    assert TimeColumn("at", BERLIN).instants(pa.array([None], pa.date32())).to_pylist() == [None]


@pytest.mark.parametrize(
    ("column", "kind", "unit", "is_read"),
    [
        (TimeColumn("at", BERLIN), pa.timestamp("us", "UTC"), "ms", True),
        (TimeColumn("at", BERLIN), pa.timestamp("us"), "us", False),
        (TimeColumn("at", "UTC"), pa.timestamp("us"), "us", True),
        (TimeColumn("at", "UTC"), pa.date32(), "us", True),
        (TimeColumn("at", BERLIN), pa.date32(), "us", False),
        (TimeColumn("at", BERLIN, 1_000), pa.int64(), "ms", True),
        (TimeColumn("at", "UTC", 1_000), pa.int64(), "us", False),
        (TimeColumn("at", "UTC"), pa.int64(), "us", False),
        (TimeColumn("at", "UTC"), pa.string(), "us", False),
    ],
)
def test_readers_of_a_stream_take_its_times_for_what_they_are_or_the_job_is_refused(
    column: TimeColumn, kind: Any, unit: str, is_read: bool
) -> None:
    assert column.is_read_as(kind, unit) is is_read


def job(*, grace: int = 0, zone: str = "UTC", units: tuple[str, ...] = ("a", "b")) -> Job:
    times = TimeWatermark(
        "t", Bound.parse("1970-01-01", "UTC"), Bound.parse("P0D", "UTC"), Grid.plain("daily"), grace_days=grace
    )
    target = {"mode": "merge"}
    return Job("orders", zone, times, UnitWatermark.listed("id", units) if units else None, target=target)


A, B = (Unit.of({"id": name}).key for name in "ab")


@pytest.mark.parametrize(
    ("a", "b", "grace", "through"),
    [
        ([(0, 5)], [(0, 5)], 0, 5),
        ([(0, 9)], [(0, 3), (4, 12)], 0, 3),
        ([(0, 9)], [], 0, None),
        ([(0, 5)], [(0, 5)], 2, 3),
        # A hole holds more than the grace does; the grace counts from what a unit has reached.
        ([(0, 9)], [(0, 3), (4, 12)], 2, 3),
        ([(0, 9)], [(0, 12)], 2, 7),
        ([(0, 5)], [(0, 5)], 7, None),
    ],
)
def test_time_is_told_up_to_where_nothing_is_missing_or_read_again(
    a: list[tuple[int, int]], b: list[tuple[int, int]], grace: int, through: int | None
) -> None:
    coverage = {key: UnitCoverage([Range(lo * DAY, hi * DAY) for lo, hi in ranges]) for key, ranges in ((A, a), (B, b))}
    found = final_through(job(grace=grace), coverage, 20 * DAY)
    assert found == (None if through is None else through * DAY)


def test_the_days_of_grace_are_those_of_the_calendar() -> None:
    # 2020-03-30 in Berlin begins at 22:00 in UTC, and the day before had 23 hours.
    end = int(datetime(2020, 3, 29, 22, tzinfo=UTC).timestamp()) * 1_000_000
    found = final_through(job(grace=1, zone=BERLIN, units=()), {"{}": UnitCoverage([Range(0, end)])}, end + DAY)
    assert found == end - 23 * 3_600_000_000


def test_without_units_nobody_tells_any_time() -> None:
    nobody = Job("orders", "UTC", job().time, UnitWatermark("id", ()), target={"mode": "merge"})
    assert final_through(nobody, {}, 20 * DAY) is None


@pytest.mark.parametrize("most", [3, 500_000])
def test_the_newest_row_of_each_key_is_kept_the_later_of_equals_and_null_is_older_than_all(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_stream_rows, "_REDUCE_AT_ROWS", most)
    rows = [(1, 5), (2, 9), (3, None), (1, 4), (2, 9), (3, 1), (4, None), (4, None), (1, None)]
    batches = [
        pa.record_batch({"id": [key], "at": pa.array([at], pa.int64()), "place": [place]})
        for place, (key, at) in enumerate(rows)
    ]
    kept = [row for batch in newest_rows(iter(batches), FORM) for row in batch.to_pylist()]
    assert [(row["id"], row["at"], row["place"]) for row in kept] == [(1, 5, 0), (2, 9, 4), (3, 1, 5), (4, None, 7)]


def test_a_large_cell_is_reduced_as_it_comes_and_to_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_stream_rows, "_REDUCE_AT_ROWS", 100)
    sizes: list[int] = []
    reduced = _stream_rows._newest_of

    def counted(rows: Any, form: StreamRequirements) -> Any:
        sizes.append(rows.num_rows)
        return reduced(rows, form)

    monkeypatch.setattr(_stream_rows, "_newest_of", counted)
    batches = [pa.record_batch({"id": list(range(20)), "at": [turn] * 20}) for turn in range(100)]
    kept = [row for batch in newest_rows(iter(batches), FORM) for row in batch.to_pylist()]
    assert sorted((row["id"], row["at"]) for row in kept) == [(number, 99) for number in range(20)]
    assert max(sizes) <= 140


def test_a_row_without_its_key_is_refused() -> None:
    with pytest.raises(EventInvalid, match="no value in the column 'id'"):
        list(newest_rows([pa.record_batch({"id": pa.array([1, None]), "at": [1, 2]})], FORM))


@pytest.mark.parametrize(
    ("keys", "found"),
    [
        ((), None),
        (("id",), [7, 8]),
        (("shop", "id"), ['{"shop":"Köln","id":7}', '{"shop":null,"id":8}']),
        (("day", "id"), ['{"day":"2020-01-02","id":7}', '{"day":"2020-01-03","id":8}']),
    ],
)
def test_the_key_of_a_row_is_its_column_or_several_as_json(keys: tuple[str, ...], found: list[Any] | None) -> None:
    rows = pa.record_batch({"id": [7, 8], "shop": ["Köln", None], "day": [date(2020, 1, 2), date(2020, 1, 3)]})
    keyed = row_keys(rows, StreamRequirements("orders", "load", None, keys, None))
    assert (None if keyed is None else keyed.to_pylist()) == found


@pytest.mark.parametrize(
    ("value", "kind", "found"),
    [("north", pa.string(), "north"), (7, pa.string(), "7"), (7, pa.int32(), 7), (7, pa.float64(), 7.0)],
)
def test_a_field_of_the_unit_is_a_column_if_the_stream_has_it_and_the_rows_do_not(
    value: Any, kind: Any, found: Any
) -> None:
    schema = pa.schema([("id", pa.int64()), ("at", pa.int64()), ("shop", kind)])
    fit = StreamRowFitter(FORM, schema, Unit.of({"shop": value, "other": 1}))
    rows = pa.record_batch({"at": [1, 2], "id": pa.array([3, 4], pa.int16())})
    assert fit(rows).to_pylist() == [{"id": 3, "at": 1, "shop": found}, {"id": 4, "at": 2, "shop": found}]


def test_a_field_of_the_unit_that_rows_have_is_theirs() -> None:
    schema = pa.schema([("id", pa.int64()), ("at", pa.int64()), ("shop", pa.string())])
    rows = pa.record_batch({"id": [3, 4], "at": [1, 2], "shop": ["north", None]})
    fit = StreamRowFitter(FORM, schema, Unit.of({"shop": "south"}))
    assert [row["shop"] for row in fit(rows).to_pylist()] == ["north", None]


def test_ranges_of_wall_times_that_touch_hold_moments_that_do_not_overlap() -> None:
    column = TimeColumn("at", BERLIN)
    for day in (wall("2020-03-29T00:00"), wall("2020-10-25T00:00")):
        walls = pa.array([day.replace(hour=hour, minute=minute) for hour in range(6) for minute in (0, 30)])
        moments = column.instants(walls).to_pylist()
        assert all(one <= other for one, other in pairwise(moments))
