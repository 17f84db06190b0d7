"""Claims about stored bindings, in SQLite and in PostgreSQL, with a clock that the test moves."""

from typing import Any

import pyarrow as pa
import pytest
from sqlalchemy import event

from floodmark.bindings import BindingHistory, Bindings
from floodmark.bindings.sources import find_source
from floodmark.bindings.timestamps import Proposals
from floodmark.control import Home
from floodmark.errors import (
    ClockJumped,
    FloodmarkError,
    MintLost,
    SourceTruncated,
    TimestampNotValid,
)
from floodmark.testing import ManualClock
from support.bindings.bound_sources import MS, Source, check_rows, count

HOUR = 3_600_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(500 * MS)


@pytest.fixture
def source(home: Home, clock: ManualClock) -> Source:
    return Source(home, clock)


@pytest.fixture
def bindings(source: Source) -> Bindings:
    return source.bindings


def test_a_mint_on_what_is_not_the_newest_any_more_is_lost_and_leaves_nothing(source: Source, home: Home) -> None:
    other = Bindings(home)
    won = source.bindings.mint("S", {0: 5}, expected_upper=500 * MS)
    with pytest.raises(MintLost) as lost:
        other.mint("S", {0: 9}, {"at": 3}, expected_upper=500 * MS)
    assert lost.value.fields == {"source": "S", "expected_upper": 500 * MS, "upper": won.upper}
    assert count(home) == {"source": 1, "pair": 1, "watermark": 0, "hold": 0}
    assert other.history("S").pairs() == won.pairs()


def test_b1_one_history_for_all_who_read_a_source(source: Source, home: Home) -> None:
    others = [Bindings(home), Bindings(home)]
    for number in range(1, 8):
        source.at(500 + 1000 * number).tick(p0=number, **{f"p{number}": number})
        histories = [one.history("S") for one in (source.bindings, others[number % 2])]
        assert histories[0].pairs() == histories[1].pairs()
    assert [one.history("S").pairs() for one in (*others, Bindings(home))] == [source.history.pairs()] * 3


def test_d5_after_a_restart_reading_goes_on_from_what_is_stored(source: Source, home: Home) -> None:
    source.at(1200).tick(p0=5, p1=2)
    source.at(2200).tick(p0=8)
    before = source.history
    again = Bindings(home).history("S")
    assert (again.pairs(), again.ends, again.upper, again.since) == (
        before.pairs(),
        {0: 8, 1: 2},
        before.upper,
        500 * MS,
    )


def test_d6_what_was_bound_keeps_its_timestamp_whatever_comes(source: Source, home: Home) -> None:
    source.at(1200).tick(p0=5)
    before = source.history
    source.at(700).tick(p0=9)
    source.at(90_000).tick(p0=12, p1=1)
    again = Bindings(home).history("S")
    assert [again.ts_of(0, offset) for offset in range(5)] == [before.ts_of(0, offset) for offset in range(5)]
    source.bindings.alter("S", compaction_window="0 seconds")
    source.bindings.compact("S")
    assert all((Bindings(home).history("S").ts_of(0, offset) or 0) >= 500 * MS for offset in range(12))


def test_d1_to_store_the_same_again_is_no_error(source: Source, home: Home) -> None:
    source.at(1200).tick(p0=5)
    proposals, twin = Proposals(source.history), Proposals(source.history)
    for one in (proposals, twin):
        one.propose(0, 8)
        one.close(3000 * MS)
    assert source.bindings.flush("S", proposals) == 3000 * MS
    rows = count(home)
    assert source.bindings.flush("S", twin) == 3000 * MS
    assert (twin.pending, count(home)) == ((), rows)
    assert twin.binding(0, 7) == 2000 * MS


def test_proposals_that_lost_are_made_again_on_what_is_stored(source: Source) -> None:
    source.at(1200).tick(p0=5)
    proposals = Proposals(source.history)
    proposals.propose(0, 9)
    proposals.note_watermarks({"at": 7})
    proposals.close(3000 * MS)
    source.at(2200).tick(p0=7)
    assert source.bindings.flush("S", proposals) == 3000 * MS
    assert [proposals.binding(0, offset) / MS for offset in (6, 7, 8)] == [2000, 3000, 3000]
    proposals.close(4000 * MS)
    assert source.bindings.flush("S", proposals) == 4000 * MS
    assert [source.ts_of(0, offset) for offset in (6, 7, 8)] == [2000, 3000, 3000]
    assert source.history.watermark_at(3000 * MS) == {"at": 7}


def test_b5_a_tick_before_its_time_reads_what_is_there(source: Source, home: Home) -> None:
    assert source.at(1200).tick(p0=5)
    assert not source.at(1999).tick(p0=8)
    assert source.history.ends == {0: 5}
    asked = []
    other = Bindings(home)
    assert not other.tick("S", lambda: asked.append(1) or {0: 8}).minted  # type: ignore[func-returns-value]
    assert asked == [], "nobody is asked for ends that are not to be bound"
    assert source.at(2000).tick()


def test_s3_who_comes_second_takes_what_the_first_has_bound(source: Source, home: Home) -> None:
    other, asked = Bindings(home), []

    def slow() -> dict[int, int]:
        asked.append(1)
        source.tick(p0=7)
        return {0: 6}

    ticked = other.tick("S", slow)
    assert (ticked.minted, ticked.history.ends, len(asked)) == (False, {0: 7}, 1)
    source.at(1200)
    assert other.tick("S", {0: 6, 1: 4}).minted, "ends that were fetched before can be old"
    assert other.history("S").ends == {0: 7, 1: 4}


def test_s3_an_end_that_stays_below_what_is_bound_is_a_definite_error(source: Source, home: Home) -> None:
    source.at(1200).tick(p0=11, p1=3)
    source.at(2200)
    told = iter([{0: 9, 1: 3}, {0: 11, 1: 3}, {0: 9, 1: 3}, {0: 9, 1: 3}])
    assert source.bindings.tick("S", lambda: next(told)).minted, "who did not know better is asked again"
    source.at(3200)
    with pytest.raises(SourceTruncated, match="Partition 0 of 'S' ends at 9, but is bound up to 11") as refusal:
        source.bindings.tick("S", lambda: next(told))
    assert refusal.value.fields == {"source": "S", "partition": 0, "end": 9, "bound": 11}
    with pytest.raises(SourceTruncated):
        source.bindings.mint("S", {0: 9}, expected_upper=source.history.upper)
    assert Bindings(home).history("S").ends == {0: 11, 1: 3}
    check_rows(home)


def test_p2_watermarks_are_stored_with_the_ends_they_hold_at(source: Source, home: Home) -> None:
    def watermarks(ends: Any) -> dict[str, int]:
        return {"at": ends[0] * 10}

    for now, end in ((1200, 5), (2200, 3), (3200, 8)):
        source.at(now).bindings.tick("S", {0: end}, watermarks)
    for history in (source.history, Bindings(home).history("S")):
        assert history.watermark_before(500 * MS) == {}
        assert [history.watermark_at(ts * MS) for ts in (500, 2000, 3000)] == [{"at": 50}, {"at": 50}, {"at": 80}]
        assert history.watermark_before(3000 * MS) == {"at": 50}
    assert count(home)["watermark"] == 2, "only where it rose"
    source.at(4200).bindings.tick("S", {0: 9}, {"at": 70, "paid": -3})
    assert Bindings(home).history("S").watermarks == {"at": 80, "paid": -3}


def test_bad_ends_and_watermarks_are_refused_and_leave_nothing(source: Source, home: Home) -> None:
    for ends, watermarks in (
        ({0: -1}, {}),
        ([5], {}),
        ({0: 5}, {"at": 2**63 - 1}),
        ({0: 5}, {"": 1}),
        ({0: 5}, {"a": 1.5}),
    ):
        with pytest.raises(FloodmarkError):
            source.bindings.tick("S", ends, watermarks)  # type: ignore[arg-type]
        with pytest.raises(FloodmarkError):
            source.bindings.tick("S", lambda ends=ends: ends, watermarks)  # type: ignore[arg-type,misc]
    assert count(home) == {"source": 1, "pair": 0, "watermark": 0, "hold": 0}
    assert source.tick(p0=5)


def test_a_source_without_partitions_ticks_all_the_same(source: Source) -> None:
    assert source.at(1200).tick()
    assert (source.upper, source.history.pairs()) == (2000, ())


def test_a_source_that_nobody_has_read_for_days_gets_its_timestamps(source: Source) -> None:
    source.at(1200).tick(p0=5)
    source.at(48 * HOUR + 300)
    assert source.tick(p0=7)
    assert source.ts_of(0, 6) == 48 * HOUR + 1000, "of today, and not of when somebody last looked"
    assert source.history.cut_at(47 * HOUR * MS) == {0: 5}
    source.at(48 * HOUR + 1300).tick(p0=8)
    assert source.ts_of(0, 7) == 48 * HOUR + 1000.001


def test_s4_a_clock_that_jumps_is_refused_with_both_values_and_nothing_is_bound(source: Source, home: Home) -> None:
    source.at(1200).tick(p0=5)
    steady = ManualClock(source.clock.now())
    watched = Bindings(home, own_clock=steady.now)
    source.at(1200 + 2 * HOUR)
    with pytest.raises(ClockJumped) as refusal:
        watched.tick("S", {0: 6})
    assert refusal.value.fields == {
        "source": "S",
        "now": (1200 + 2 * HOUR) * MS,
        "own": 1200 * MS,
        "upper": 2000 * MS,
    }
    assert (source.upper, source.history.ends) == (2000, {0: 5})
    steady.advance(2 * HOUR * MS)
    assert watched.tick("S", {0: 6}).minted


def test_s4_a_proposed_timestamp_from_a_clock_that_jumped_is_refused_too(source: Source) -> None:
    source.at(1200).tick(p0=5)
    proposals = Proposals(source.history)
    proposals.close(9 * HOUR * MS)
    with pytest.raises(ClockJumped):
        source.bindings.flush("S", proposals)
    assert source.upper == 2000


def test_b8_a_clock_that_went_back_never_gives_a_timestamp_again(source: Source, home: Home) -> None:
    seen = []
    for number, now in enumerate((1200, 2200, 100, 1100, 90, 5200)):
        assert source.at(now).tick(p0=number)
        seen.append(source.history.upper)
    assert seen == sorted(set(seen))
    timestamps = [ts for ts, _ in source.pairs()]
    assert timestamps == sorted(set(timestamps))
    check_rows(home)


def test_durable_is_what_is_stored(source: Source, home: Home) -> None:
    other = Bindings(home)
    assert other.durable("S") == 500 * MS
    source.at(1200).tick(p0=5)
    assert other.durable("S") == 2000 * MS


def test_a_history_from_a_timestamp_on_is_as_if_compacted_to_there(source: Source) -> None:
    for number in range(1, 7):
        source.at(500 + 1000 * number).bindings.tick("S", {0: number, number % 2 + 1: 1}, {"at": number})
    whole = source.history
    assert source.bindings.history("S", 0).pairs() == whole.pairs()
    for lower in (2000, 2500, 5999):
        part, expected = source.bindings.history("S", lower * MS), whole.compact(lower * MS)
        assert (part.pairs(), part.since, part.upper, part.ends) == (
            expected.pairs(),
            lower * MS,
            whole.upper,
            whole.ends,
        )
        assert part.watermark_before(lower * MS) == whole.watermark_before(lower * MS)
    with pytest.raises(TimestampNotValid):
        source.bindings.history("S", whole.upper)


def test_bindings_are_a_table(source: Source) -> None:
    assert source.bindings.table("S").num_rows == 0
    source.at(1200).tick(p0=5, p1=2)
    source.at(2200).tick(p0=8)
    table = source.bindings.table("S")
    assert table.column_names == ["source", "partition", "ts", "first_offset", "end_offset"]
    assert table.schema.field("ts").type == pa.int64()
    assert [tuple(row.values()) for row in table.to_pylist()] == [
        ("S", 0, 500 * MS, 0, 5),
        ("S", 0, 2000 * MS, 5, 8),
        ("S", 1, 500 * MS, 0, 2),
        ("S", 1, 2000 * MS, 2, 2),
    ]


def test_what_is_read_bit_by_bit_is_what_is_read_at_once(source: Source, home: Home) -> None:
    follower = Bindings(home)
    seen: list[BindingHistory] = []
    source.bindings.alter("S", compaction_window="3 seconds")
    for number in range(1, 13):
        source.at(500 + 1000 * number)
        source.bindings.tick("S", {0: number, number: 1}, {"at": number // 2})
        if number % 3:
            seen.append(follower.history("S"))
        fresh = Bindings(home).history("S")
        newest = follower.history("S")
        assert newest.pairs() == fresh.pairs()
        for ts in range(fresh.since, fresh.upper, 500 * MS):
            assert newest.watermark_before(ts) == fresh.watermark_before(ts)
            assert newest.cut_at(ts) == fresh.cut_at(ts)
    assert source.history.is_compacted
    assert seen[0].cut_at(500 * MS) == {0: 1, 1: 1}, "who has read it keeps what it has read"


def test_what_is_known_is_not_read_again(source: Source, home: Home) -> None:
    source.at(1200).tick(p0=5)
    fetched = []

    def note(connection: Any, cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        fetched.extend([parameters] if "FROM binding_pair" in statement else [])

    follower = Bindings(home)
    event.listen(home._store.reader, "before_cursor_execute", note)
    follower.history("S")
    assert len(fetched) == 1
    for now in (2200, 3200):
        source.at(now).tick(p0=8)
        source.history  # noqa: B018
    assert len(fetched) == 1, "who has minted knows"
    for _ in range(3):
        follower.history("S")
    assert len(fetched) == 2, "and who follows reads once what is new"
    assert 2000 * MS in (fetched[1].values() if isinstance(fetched[1], dict) else fetched[1])


def test_who_reads_an_older_state_does_not_see_or_spoil_what_another_thread_has_read(
    source: Source, home: Home
) -> None:
    source.at(1200).tick(p0=5)
    with home.read() as connection:
        row = find_source(connection, "S")
        source.at(2200).tick(p0=8)
        older = source.bindings._histories.read(connection, row)
    assert (older.upper, older.ends) == (2000 * MS, {0: 5})
    with home.read() as connection:
        newest = source.bindings._histories.read(connection, find_source(connection, "S"))
    assert (newest.upper, newest.ends) == (3000 * MS, {0: 8})
    source.bindings._histories.keep(row.source_id, older)
    assert source.bindings._histories._histories[row.source_id] is newest
