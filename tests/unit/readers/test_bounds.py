"""Where groups begin and end: cuts and times, in their order, and rows by their time."""

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from floodmark.errors import BoundsReversed, FloodmarkError, PositionInvalid
from floodmark.streams import GroupCut, Layout, Position, StreamCut, StreamHome, Writer
from floodmark.streams.definition import make_settings
from floodmark.streams.events import time_filter
from floodmark.streams.groups.bounds import check_order
from floodmark.streams.layout.positions import check_cut
from floodmark.streams.readers import reader as _reader
from support.streams.group_tools import NOW, drain, fill

ONE = Layout.create(1)
# 0 and 1; 0 becomes 2 and 3, 1 becomes 4 and 5, then 2 and 3 become 6, and 4 and 5 become 7.
SEVEN = Layout.create(2).split(0).split(1).merge([2, 3]).merge([4, 5])

S_35: dict[str, tuple[Layout, Position, Position, type[FloodmarkError] | None]] = {
    "15..10": (ONE, {0: 15}, {0: 10}, BoundsReversed),
    # By ruling there is no -1: what was read to its end is left out of a cut, and what came after is in it.
    "-1..10": (ONE, {0: -1}, {0: 10}, PositionInvalid),
    "-1..-1": (ONE, {0: -1}, {0: -1}, PositionInvalid),
    "10..15": (ONE, {0: 10}, {0: 15}, None),
    "10..10": (ONE, {0: 10}, {0: 10}, None),
    "{1,2,3}..{0,7}": (SEVEN, {1: 0, 2: 0, 3: 0}, {0: 0, 7: 0}, BoundsReversed),
    "{0,7}..{5,4,6}": (SEVEN, {0: 0, 7: 0}, {4: 0, 5: 0, 6: 0}, BoundsReversed),
    "{0,1}..{5,4,6}": (SEVEN, {0: 9, 1: 9}, {4: 0, 5: 0, 6: 0}, None),
}


@pytest.mark.parametrize(("layout", "start", "end", "error"), S_35.values(), ids=[f"s-35 {row}" for row in S_35])
def test_the_end_does_not_lie_before_the_start(
    layout: Layout, start: Position, end: Position, error: type[FloodmarkError] | None
) -> None:
    def check() -> None:
        check_order(layout, check_cut(layout, start), check_cut(layout, end))

    if error is None:
        check()
    else:
        with pytest.raises(error):
            check()


def timed(home: StreamHome, name: str = "s", last: int = 5) -> Writer:
    """Make a stream whose rows have the times 10, 20, ... with a mark behind each."""
    stream = home.create_stream(name, schema="at BIGINT", time_columns="at", segments=2)
    writer = stream.writer("w")
    for time in range(10, 10 * last + 1, 10):
        more(home, writer, time, name)
    return writer


def more(home: StreamHome, writer: Writer, time: int, name: str = "s") -> None:
    writer.write_batch([{"at": time}, {"at": time + 3}], key="at")
    writer.note_time(time + 4)
    home.stream(name).await_mark(time + 4)


def times(reader: Any) -> list[int]:
    found: list[int] = []
    for batch in reader:
        found += batch.batch["at"].to_pylist()
    return sorted(found)


def test_a_group_reads_from_cut_to_cut(live: StreamHome) -> None:
    with timed(live):
        stream = live.stream("s")
        start, end = stream.cut_at(14).cut, stream.cut_at(34).cut
        group = live.create_group("g", "s", start=start, end={"s": end})
        with group.reader("a") as reader:
            assert times(reader) == [20, 23, 30, 33]
            assert reader.read(NOW) is None
        assert group.is_finished


def test_a_group_reads_from_time_to_time(live: StreamHome) -> None:
    with timed(live):
        with live.create_group("g", "s", start=22, end=33).reader("a") as reader:
            assert times(reader) == [23, 30]
        with live.create_group("all before", "s", end=30).reader("a") as reader:
            assert times(reader) == [10, 13, 20, 23]
        with live.create_group("before the first", "s", start=0, end=20).reader("a") as reader:
            assert times(reader) == [10, 13]


def test_an_end_time_that_is_yet_to_come_is_waited_for(live: StreamHome, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_reader, "_SYNC_SECONDS", 60.0)  # marks alone must be enough
    with timed(live, last=2) as writer:
        group = live.create_group("g", "s", start=13, end=40)
        assert group.state.progress_of("s").end is None
        with group.reader("a") as reader:
            found: list[int] = []
            for time in (30, 40):
                while (batch := reader.read("10 milliseconds")) is not None:
                    found += batch.batch["at"].to_pylist()
                assert not reader.is_finished
                more(live, writer, time)
            more(live, writer, 50)
            found += times(reader)
            assert reader.is_finished
    assert sorted(found) == [13, 20, 23, 30, 33]
    assert live.group("g").state.progress_of("s").end == live.stream("s").cut_at(44).cut


def test_a_mark_alone_can_end_a_group(live: StreamHome, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_reader, "_SYNC_SECONDS", 60.0)
    with timed(live, last=1) as writer, live.create_group("g", "s", end=40).reader("a", ttl="1 hour") as reader:
        assert len(reader.read(NOW) or ()) > 0
        while reader.read("200 milliseconds") is not None:
            pass
        reader.acknowledge()
        writer.note_time(40)
        live.stream("s").await_mark(40)
        assert reader.read("20 seconds") is None
        assert reader.is_finished


def test_a_sealed_stream_ends_a_group_whose_end_time_never_comes(live: StreamHome) -> None:
    with timed(live, last=2):
        pass
    live.stream("s").seal()
    with live.create_group("g", "s", end=1_000).reader("a") as reader:
        assert times(reader) == [10, 13, 20, 23]


def test_a_datetime_is_a_time_in_the_unit_of_the_stream(live: StreamHome) -> None:
    stream = live.create_stream("s", schema="at TIMESTAMP", time_columns="at", unit="ms")
    moments = [datetime(2024, 5, 1, hour, tzinfo=UTC) for hour in range(4)]
    with stream.writer("w") as writer:
        for moment in moments:
            writer.write({"at": moment})
            writer.note_time(moment)
            stream.await_mark(moment)
        group = live.create_group("g", "s", start=moments[1], end=moments[3])
        with group.reader("r") as reader:
            assert [row for batch in reader for row in batch.batch["at"].to_pylist()] == moments[1:3]


def test_two_streams_begin_at_places_of_their_own(live: StreamHome) -> None:
    for name in ("s", "t"):
        live.create_stream(name)
        fill(live, name, 4)
    group = live.create_group("g", ["s", "t"], start={"s": {0: 3}}, end={"s": {0: 4}, "t": {0: 2}})
    with group.reader("r") as reader:
        assert sorted(drain(reader)) == [0, 1, 3]
        assert reader.is_finished
    again = live.create_group("again", ["s", "t"], start=group.cut())
    assert again.cut() == group.cut()


FAR: Any = {0: 99}
BAD: dict[str, tuple[dict[str, Any], str]] = {
    "a cut that does not cover the key space": ({"start": {0: 0}}, "cut-invalid"),
    "an end that does not": ({"end": {0: 0}}, "cut-invalid"),
    "a segment of another stream": ({"start": {0: 0, 1: 0, 9: 0}}, "foreign-segment"),
    "an offset that is not there": ({"start": {0: 99, 1: 0}}, "offset-out-of-range"),
    "what is no place": ({"start": "yesterday"}, "not-int64"),
    "a datetime without a zone": ({"start": datetime(2024, 5, 1)}, "naive-time"),  # noqa: DTZ001
    "the end before the start": ({"start": {0: 1, 1: 1}, "end": {0: 0, 1: 1}}, "bounds-reversed"),
    "the end time before the start": ({"start": 30, "end": 20}, "bounds-reversed"),
    "a stream that is not in the group": ({"start": {"t": 5}}, "stream-not-in-group"),
    "a cut of other streams": ({"start": GroupCut((StreamCut("t", 1, {0: 0}, {}),))}, "foreign-cut"),
    "a cut of a stream that had the name": ({"start": GroupCut((StreamCut("s", 1, {0: 0}, {}),))}, "foreign-cut"),
    "an unknown key": ({"key": "bt"}, "unknown-key"),
    "an unknown word": ({"after_last": "hope"}, "invalid-option"),
    "a time that is not reached": ({"end": 99, "after_last": "refuse"}, "time-not-reached"),
    "nor to begin with": ({"start": 99, "after_last": "refuse"}, "time-not-reached"),
    "a stream twice": ({"streams": ["s", "s"]}, "duplicate-name"),
    "no stream": ({"streams": []}, "invalid-option"),
    "an unknown stream": ({"streams": ["z"]}, "unknown-stream"),
    "a bad name": ({"name": ""}, "invalid-name"),
    "one cut for two streams": ({"streams": ["s", "t"], "start": {0: 0, 1: 0}}, "invalid-option"),
}


@pytest.fixture
def timed_home(live: StreamHome) -> Any:
    live.create_stream("t")
    with timed(live, last=3):
        yield live


def test_bad_bounds_are_refused_and_nothing_is_stored(timed_home: StreamHome) -> None:
    for row, (options, code) in BAD.items():
        arguments = {"name": "g", "streams": "s", **options}
        with pytest.raises(FloodmarkError) as caught:
            timed_home.create_group(**arguments)
        assert (row, caught.value.code) == (row, code)
    assert timed_home.groups() == []


ROWS: dict[str, tuple[str, str, list[Any], int | None, int | None, list[Any]]] = {
    "from a time on": ("BIGINT", "us", [4, 5, 6], 5, None, [5, 6]),
    "before a time": ("BIGINT", "us", [4, 5, 6], None, 5, [4]),
    "both": ("INT", "us", [4, 5, 6], 5, 6, [5]),
    "rows without a time": ("BIGINT", "us", [4, None], 5, 6, [None]),
    "negative times": ("BIGINT", "us", [-5, -4, -3], -4, -3, [-4]),
    "a finer column": ("TIMESTAMP", "s", [999_999, 1_000_000, 1_999_999, 2_000_000], 1, 2, [1_000_000, 1_999_999]),
    "a coarser column": ("TIMESTAMP", "ns", [1, 2, 3], 1_001, 2_001, [2]),
    "days": ("DATE", "s", [0, 1, 2], 1, 86_401, [1]),
}


@pytest.mark.parametrize(("kind", "unit", "values", "since", "until", "expected"), ROWS.values(), ids=ROWS)
def test_rows_are_taken_by_their_time(
    kind: str, unit: str, values: list[Any], since: int | None, until: int | None, expected: list[Any]
) -> None:
    settings = make_settings(schema=f"at {kind}", time_columns="at", unit=unit)
    column = settings.schema.field("at").type
    small = pa.int32() if pa.types.is_date32(column) else pa.int64()
    batch = pa.record_batch({"at": pa.array(values, small).cast(column)}, schema=settings.schema)
    take = time_filter(settings, "at", since, until)
    assert take is not None
    assert take(batch).column("at").cast(small).to_pylist() == expected


def test_without_bounds_or_a_column_of_times_all_rows_are_taken() -> None:
    assert time_filter(make_settings(schema="at BIGINT", time_columns="at"), "at", None, None) is None
    assert time_filter(make_settings(schema="at BIGINT"), "time", 5, None) is None
    assert time_filter(make_settings(time_columns="at"), "at", 5, None) is None
    assert time_filter(make_settings(schema="at STRING", time_columns="at"), "at", 5, None) is None
