"""Claims about a binding history: lookups, cuts, watermarks, compaction, validity."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from floodmark.bindings import BindingHistory, Pair
from floodmark.bindings.history import extend_history
from floodmark.errors import (
    BindingInvalid,
    FloodmarkError,
    InvalidValue,
    OffsetNotBound,
    ReservedTime,
    TimestampNotValid,
)


def history(*bindings: tuple[int, dict[int, int]], upper: int = 5000) -> BindingHistory:
    """Return a history of these bindings, whose open timestamp is `upper`."""
    made = BindingHistory.start(500, "orders")
    for ts, ends in bindings:
        made = made.append(ts, ends)
    return made if made.upper == upper else made.append(upper - 1, {}, upper=upper)


ORDERS = history((500, {0: 5}), (2000, {0: 8}), (3000, {0: 8}), (4000, {0: 8, 1: 3}))

LOOKUPS = [(0, 0, 500), (0, 4, 500), (0, 5, 2000), (0, 7, 2000), (0, 8, None), (1, 0, 4000), (1, 2, 4000), (1, 3, None)]


@pytest.mark.parametrize(("partition", "offset", "ts"), LOOKUPS)
def test_b2_an_offset_has_the_lowest_timestamp_whose_end_is_above_it(partition: int, offset: int, ts: int) -> None:
    assert ORDERS.ts_of(partition, offset) == ts
    assert ORDERS.ts_of_many(partition, [offset], unbound=-1).tolist() == [-1 if ts is None else ts]


def test_what_is_not_bound_or_not_known_has_no_timestamp_and_is_refused_in_bulk() -> None:
    assert ORDERS.ts_of(7, 0) is None
    with pytest.raises(
        OffsetNotBound, match="Partition 0 of 'orders' is bound up to 8, but 9 was asked for"
    ) as refusal:
        ORDERS.ts_of_many(0, [1, 9, 2])
    assert refusal.value.fields == {"source": "orders", "partition": 0, "offset": 9, "end": 8}
    with pytest.raises(OffsetNotBound, match="bound up to 0"):
        ORDERS.ts_of_many(7, [0])
    assert ORDERS.ts_of_many(7, [0, 5], unbound=9).tolist() == [9, 9]
    assert ORDERS.ts_of_many(0, []).tolist() == []


BACK = {
    "B7: an end": (5000, {0: 7}, None, "The end of partition 0 would go back from 8 to 7."),
    "B7: a timestamp": (4999, {0: 9}, None, "The timestamp 4999 was to be bound, and 5000 to be opened, while 5000 is"),
    "B7: a timestamp again": (4000, {0: 8}, 9000, "The timestamp 4000 was to be bound, and 9000 to be opened"),
    "an open timestamp that is not later": (5000, {0: 9}, 5000, "5000 was to be bound, and 5000 to be opened"),
}


@pytest.mark.parametrize(("ts", "ends", "upper", "fact"), BACK.values(), ids=BACK)
def test_b7_neither_time_nor_ends_go_back_and_both_values_are_named(
    ts: int, ends: dict[int, int], upper: int | None, fact: str
) -> None:
    before = ORDERS.pairs()
    with pytest.raises(BindingInvalid, match=fact):
        ORDERS.append(ts, ends, upper=upper)
    assert ORDERS.pairs() == before


BAD = [
    ({0: -1}, InvalidValue),
    ({-1: 1}, InvalidValue),
    ({"0": 1}, FloodmarkError),
    ([5], InvalidValue),
    ({0: 2.5}, FloodmarkError),
]


@pytest.mark.parametrize(("ends", "error"), BAD)
def test_what_is_no_map_from_partitions_to_offsets_is_refused(ends: Any, error: type[FloodmarkError]) -> None:
    with pytest.raises(error):
        ORDERS.append(5000, ends)


def test_bad_watermarks_are_refused() -> None:
    with pytest.raises(ReservedTime):
        ORDERS.append(5000, {}, watermarks={"at": 2**63 - 1})
    with pytest.raises(InvalidValue, match="time key"):
        ORDERS.append(5000, {}, watermarks={"": 1})


def test_b9_a_new_partition_starts_at_the_open_timestamp_and_changes_nothing_below() -> None:
    longer = ORDERS.append(5000, {0: 9, 2: 4})
    assert (longer.ts_of(2, 0), longer.ts_of(2, 3), longer.partitions) == (5000, 5000, (0, 1, 2))
    assert [longer.cut_at(ts) for ts in (500, 2000, 4000)] == [{0: 5}, {0: 8}, {0: 8, 1: 3}]


def test_a_partition_that_is_not_named_keeps_its_last_pair() -> None:
    sealed = ORDERS.append(5000, {1: 4}).append(6000, {1: 5})
    assert sealed.cut_at(6000) == {0: 8, 1: 5}
    assert [pair.ts for pair in sealed.pairs() if pair.partition == 0] == [500, 2000, 3000, 4000]


def test_b12_offsets_that_do_not_exist_have_a_timestamp_all_the_same() -> None:
    gap = ORDERS.append(5000, {0: 11})
    assert [gap.ts_of(0, offset) for offset in (8, 9, 10)] == [5000, 5000, 5000]


def test_b14_pairs_are_those_from_lower_to_below_upper_by_partition_and_timestamp() -> None:
    assert ORDERS.pairs(2000, 4000) == (Pair(0, 2000, 5, 8), Pair(0, 3000, 8, 8))
    assert ORDERS.pairs(4000) == (Pair(0, 4000, 8, 8), Pair(1, 4000, 0, 3))
    assert ORDERS.pairs(None, 2000) == (Pair(0, 500, 0, 5),)
    assert len(ORDERS.pairs()) == 5


COMPACTED = {
    "C1: the greatest end of what is below": ([(42, 4), (43, 5), (44, 6)], 44, [(44, 6)]),
    "C1: between timestamps": ([(42, 4), (44, 6)], 43, [(43, 4), (44, 6)]),
    "C1: above the last pair": ([(42, 4), (44, 6)], 47, [(47, 6)]),
    "to where it is": ([(42, 4), (44, 6)], 42, [(42, 4), (44, 6)]),
    "back": ([(42, 4), (44, 6)], 7, [(42, 4), (44, 6)]),
}


@pytest.mark.parametrize(("pairs", "since", "left"), COMPACTED.values(), ids=COMPACTED)
def test_c1_what_is_below_since_is_bound_at_since(
    pairs: list[tuple[int, int]], since: int, left: list[tuple[int, int]]
) -> None:
    made = BindingHistory.start(42)
    for ts, end in pairs:
        made = made.append(ts, {0: end})
    compacted = made.append(made.upper, {}, upper=50).compact(since)
    assert [(pair.ts, pair.end) for pair in compacted.pairs()] == left


def test_c2_a_quiet_partition_is_never_unbound() -> None:
    quiet = BindingHistory.start(1).append(1, {0: 5, 1: 9})
    for ts in range(2, 10):
        quiet = quiet.append(ts, {0: 5 + ts})
    compacted = quiet.compact(9)
    assert (compacted.ts_of(1, 8), compacted.ts_of(1, 9), compacted.cut_at(9)) == (9, None, {0: 14, 1: 9})
    assert compacted.pairs() == (Pair(0, 9, 0, 14), Pair(1, 9, 0, 9))


def test_c8_the_open_timestamp_is_never_compacted() -> None:
    with pytest.raises(BindingInvalid, match="compacted to 5000, but 5000 is open"):
        ORDERS.compact(5000)
    assert ORDERS.compact(4999).append(5000, {0: 9}).ts_of(0, 8) == 5000


VALID = {499: False, 500: True, 1999: True, 4999: True, 5000: False, 10**9: False}


@pytest.mark.parametrize(("ts", "is_valid"), VALID.items())
def test_q1_reads_are_valid_from_since_to_below_upper(ts: int, is_valid: bool) -> None:
    if is_valid:
        assert ORDERS.check_valid(ts) == ts
        assert ORDERS.cut_at(ts)
        return
    for read in (ORDERS.check_valid, ORDERS.cut_at, ORDERS.watermark_at):
        with pytest.raises(TimestampNotValid, match=rf"{ts} of 'orders' is not in \[500, 5000\)") as refusal:
            read(ts)
        assert refusal.value.fields == {"source": "orders", "ts": ts, "since": 500, "upper": 5000}


def test_q1_without_a_timestamp_the_newest_is_read_and_there_may_be_none() -> None:
    assert ORDERS.read_ts() == 4999
    with pytest.raises(TimestampNotValid, match="500 of 'orders' is open, and there is no earlier one"):
        BindingHistory.start(500, "orders").read_ts()


def test_q2_since_and_upper_rise_and_since_is_below_upper() -> None:
    seen = [ORDERS, ORDERS.compact(2000), ORDERS.compact(2000).compact(1000), ORDERS.compact(2000).append(5000, {})]
    assert [(one.since, one.upper) for one in seen] == [(500, 5000), (2000, 5000), (2000, 5000), (2000, 5001)]


def test_b11_a_reader_is_at_the_lowest_timestamp_it_may_still_meet() -> None:
    positions = [({0: 0}, 500), ({0: 4}, 500), ({0: 5}, 2000), ({0: 8}, 5000), ({0: 8, 1: 0}, 4000), ({0: 99}, 5000)]
    assert [ORDERS.frontier(position) for position, _ in positions] == [ts for _, ts in positions]


def test_b10_a_reader_of_nothing_is_at_the_open_timestamp() -> None:
    assert ORDERS.frontier({}) == 5000


STAMPED = (
    BindingHistory.start(1, "orders")
    .append(1, {0: 5}, upper=10)
    .append(10, {0: 6}, upper=20, watermarks={"at": 50})
    .append(20, {0: 7}, upper=30, watermarks={"at": 40, "paid": 7})
    .append(30, {0: 8}, upper=40, watermarks={"at": 60})
)

STAMPS = [
    (1, {}, {}),
    (10, {}, {"at": 50}),
    (15, {"at": 50}, {"at": 50}),
    (20, {"at": 50}, {"at": 50, "paid": 7}),
    (30, {"at": 50, "paid": 7}, {"at": 60, "paid": 7}),
    (39, {"at": 60, "paid": 7}, {"at": 60, "paid": 7}),
]


@pytest.mark.parametrize(("ts", "before", "at"), STAMPS)
def test_p2_rows_at_a_timestamp_are_judged_by_the_watermark_of_the_binding_before(
    ts: int, before: dict[str, int], at: dict[str, int]
) -> None:
    assert (STAMPED.watermark_before(ts), STAMPED.watermark_at(ts)) == (before, at)


def test_a_lower_watermark_is_raised_to_the_last_of_its_key() -> None:
    assert STAMPED.watermarks == {"at": 60, "paid": 7}
    assert STAMPED.risen({"at": 60, "paid": 8, "new": -5}) == {"paid": 8, "new": -5}
    assert STAMPED.watermark_before(40) == {"at": 60, "paid": 7}, "also what is open is judged"


@pytest.mark.parametrize("since", [10, 15, 20, 25, 30, 39])
def test_s8_compaction_keeps_the_watermarks_of_what_can_be_read(since: int) -> None:
    compacted = STAMPED.compact(since)
    for ts in range(since, 40):
        assert compacted.watermark_at(ts) == STAMPED.watermark_at(ts)
        assert compacted.watermark_before(ts) == STAMPED.watermark_before(ts)
    with pytest.raises(TimestampNotValid, match="so what was bound before it is not known"):
        compacted.watermark_before(since - 1)


def test_a_history_knows_whether_it_was_compacted() -> None:
    assert ORDERS.compact(2000).is_compacted
    assert not ORDERS.is_compacted


def test_a_history_stays_as_it_is_when_others_grow_from_it() -> None:
    one, other = ORDERS.append(5000, {0: 20}), ORDERS.append(6000, {0: 30})
    assert [h.ts_of(0, 19) for h in (ORDERS, one, other)] == [None, 5000, 6000]
    for ts in range(7000, 7100):
        one = one.append(ts, {0: ts})
    assert (ORDERS.ends, other.ends, one.ends) == ({0: 8, 1: 3}, {0: 30, 1: 3}, {0: 7099, 1: 3})


def test_what_others_appended_and_compacted_is_the_same_as_doing_so() -> None:
    rows = [(0, 6000, 9), (0, 7000, 9), (3, 7000, 1)]
    read = extend_history(ORDERS, 6000, 8000, rows, [("at", 6000, 5)])
    made = ORDERS.append(6000, {0: 9}, watermarks={"at": 5}).append(7000, {0: 9, 3: 1}, upper=8000).compact(6000)
    assert read.pairs() == made.pairs()
    assert (read.since, read.upper, read.watermark_at(6000)) == (6000, 8000, {"at": 5})


ENDS = st.lists(st.tuples(st.integers(1, 3), st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=20)


@given(ENDS, st.data())
def test_b15_every_record_has_exactly_one_timestamp_and_a_cut_is_what_has_one_up_to_it(
    steps: list[tuple[int, int, int]], data: st.DataObject
) -> None:
    made, ts = BindingHistory.start(10), 10
    for later, first, second in steps:
        ends = made.ends
        grown = {0: ends.get(0, 0) + first, 1: ends.get(1, 0) + second}
        made = made.append(ts, grown if second else {0: grown[0]}, upper=ts + later)
        ts += later
    since = data.draw(st.integers(10, ts - 1))
    compacted = made.compact(since)
    for history in (made, compacted):
        for partition, end in history.ends.items():
            found = [history.ts_of(partition, offset) for offset in range(end)]
            assert None not in found
            for at in range(history.since, ts):
                cut = history.cut_at(at)
                assert [one <= at for one in found] == [offset < cut.get(partition, 0) for offset in range(end)]  # type: ignore[operator]
    for partition, end in made.ends.items():
        for offset in range(end):
            assert compacted.ts_of(partition, offset) == max(made.ts_of(partition, offset) or 0, since)


@given(ENDS, st.lists(st.integers(0, 90)), st.sampled_from(["as they are", "in order", "far apart"]))
def test_many_offsets_have_the_timestamps_that_each_of_them_has(
    steps: list[tuple[int, int, int]], offsets: list[int], order: str
) -> None:
    made = BindingHistory.start(10)
    for later, end, _ in steps:
        made = made.append(made.upper, {0: made.ends.get(0, 0) + end}, upper=made.upper + later)
    wanted = (
        sorted(offsets) if order == "in order" else [one * 999 for one in offsets] if order == "far apart" else offsets
    )
    for history in (made, made.compact(made.upper - 1)):
        expected = [history.ts_of(0, offset) for offset in wanted]
        found = history.ts_of_many(0, np.array(wanted, np.int64), unbound=-1)
        assert found.dtype == np.int64
        assert found.tolist() == [-1 if ts is None else ts for ts in expected]
        if wanted and None not in expected:
            assert history.ts_of_many(0, wanted).tolist() == expected
