"""Claims about watermarks made from rows, one a test, with a clock that is moved by hand."""

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from floodmark.errors import FloodmarkError, NotInt64, ReservedTime
from floodmark.progress import (
    IDLE,
    BoundedDisorder,
    Coalescer,
    Frame,
    Generator,
    Idleness,
    OriginWatermarks,
    Punctuated,
    Revived,
    Signal,
    WallClockLag,
    Watermark,
)
from floodmark.testing import ManualClock

RULES: dict[str, Generator] = {"order_time": BoundedDisorder(2), "ship_time": BoundedDisorder(0)}


def test_each_key_has_its_own_minimum_and_idleness_is_of_all() -> None:
    source = OriginWatermarks(RULES, origins=["p0", "p1"], now=0)
    source.event("p0", {"order_time": 10, "ship_time": 30}, now=1)
    assert source.event("p1", {"order_time": 20, "ship_time": 5}, now=2) == (
        Watermark("order_time", 8),
        Watermark("ship_time", 5),
    )
    assert source.declare_idle("p1", now=3) == (Watermark("ship_time", 30),)
    source.event("p1", {"order_time": 21}, now=4)
    assert source.event("p0", {"order_time": 11, "ship_time": 40}, now=5) == (Watermark("order_time", 9),)


def test_a_dropped_key_is_made_no_more_and_its_times_are_taken_in_silence() -> None:
    source = OriginWatermarks(RULES, origins=["p0"], now=0)
    source.drop_watermark("ship_time")
    assert source.event("p0", {"order_time": 10, "ship_time": 30}, now=1) == (Watermark("order_time", 8),)
    assert list(source.explain().keys) == ["order_time"]


@pytest.mark.parametrize("rule", [BoundedDisorder(0), Punctuated()], ids=["newest time", "highest mark"])
def test_a_time_below_an_earlier_one_does_not_move_the_watermark(rule: BoundedDisorder | Punctuated) -> None:
    state = rule.observe(None, 10, 10, now=0)
    assert rule.watermark(rule.observe(state, 9, 9, now=0), now=0) == 10
    older = np.array([9, 8])
    assert rule.watermark(rule.observe_batch(state, older, older, now=0), now=0) == 10


def test_the_cause_of_idleness_is_recorded() -> None:
    clock = ManualClock()
    source = OriginWatermarks(
        {"t": BoundedDisorder(0)}, origins=["p0", "p1"], now=clock.now(), idle=Idleness(timeout=60)
    )
    source.declare_idle("p0", now=clock.advance(10))
    source.tick(clock.advance(50), caught_up=["p1"])
    assert {name: one.idle_cause for name, one in source.activity().items()} == {"p0": "declared", "p1": "timeout"}
    source.event("p1", {"t": 1}, now=clock.advance(1))
    assert source.activity()["p1"].idle_cause is None
    assert source.activity()["p1"].last_heard == 61


def test_a_clock_that_goes_on_does_not_wake_the_idle() -> None:
    source = OriginWatermarks({"t": WallClockLag(10)}, origins=["p0", "p1"], now=0)
    source.declare_idle("p1", now=1)
    assert source.tick(50) == (Watermark("t", 40),)
    assert source.activity()["p1"].state == "idle"


def test_only_those_named_as_caught_up_can_time_out() -> None:
    source = OriginWatermarks({"t": BoundedDisorder(0)}, origins=["p0", "p1"], now=0, idle=Idleness(timeout=5))
    source.event("p0", {"t": 10}, now=0)
    assert source.tick(100, caught_up={"p1"}) == (Watermark("t", 10),)
    assert source.activity()["p0"].state == "active"


def test_rows_from_the_future_are_counted_and_show_that_the_origin_lives() -> None:
    source = OriginWatermarks({"t": BoundedDisorder(0)}, origins=["p0"], now=0, idle=Idleness(timeout=5), future=10)
    source.events("p0", {"t": [4, 900, 7, 800]}, now=3)
    activity = source.activity()["p0"]
    assert (activity.future_rows, activity.newest_future) == (2, 900)
    assert source.current("t") == 7
    source.event("p0", {"t": 1000}, now=8)
    assert source.tick(12, caught_up=True) == ()
    assert source.activity()["p0"].future_rows == 3


def test_a_restart_keeps_every_value_of_every_origin_and_counts_silence_anew() -> None:
    idle = Idleness(timeout=5)
    source = OriginWatermarks(RULES, origins=["p0", "p1"], now=0, idle=idle, frame=Frame(4))
    source.event("p0", {"order_time": 100, "ship_time": 90}, now=1)
    source.event("p1", {"order_time": 50, "ship_time": 70}, now=2)
    kept = json.loads(json.dumps(source.snapshot()))
    source = OriginWatermarks.restore(kept, RULES, now=1000, idle=idle, frame=Frame(4))
    assert source.current("order_time") == 48
    assert source.tick(1004, caught_up=True) == ()
    assert source.declare_idle("p1", now=1004) == (Watermark("order_time", 96), Watermark("ship_time", 88))
    assert source.tick(1005, caught_up=True) == (IDLE,)


@pytest.mark.parametrize("change", [{"version": 7}, {"kind": "tracker"}, {"keys": ["other"]}, {"origins": [["p0"]]}])
def test_a_snapshot_that_does_not_fit_is_refused(change: dict[str, Any]) -> None:
    kept = OriginWatermarks(RULES, origins=["p0"], now=0).snapshot()
    with pytest.raises(FloodmarkError, match="snapshot"):
        OriginWatermarks.restore(kept | change, RULES, now=0)


REFUSED = {
    "no generator": lambda: OriginWatermarks({}, now=0),
    "no generator but a number": lambda: OriginWatermarks({"t": 5}, now=0),  # type: ignore[dict-item]
    "now as text": lambda: OriginWatermarks(RULES, now=0).tick("x"),  # type: ignore[arg-type]
    "negative delay": lambda: BoundedDisorder(-1),
    "negative lag": lambda: WallClockLag(-1),
    "negative future": lambda: OriginWatermarks(RULES, now=0, future=-1),
    "unknown key": lambda: OriginWatermarks(RULES, origins=["p0"], now=0).event("p0", {"x": 1}, now=0),
    "unknown key in a batch": lambda: OriginWatermarks(RULES, origins=["p0"], now=0).events("p0", {"x": [1]}, now=0),
    "unknown origin": lambda: OriginWatermarks(RULES, now=0).event("p0", {"order_time": 1}, now=0),
    "unknown origin idle": lambda: OriginWatermarks(RULES, now=0).declare_idle("p0", now=0),
    "unknown key dropped": lambda: OriginWatermarks(RULES, now=0).drop_watermark("x"),
    "time as float": lambda: OriginWatermarks(RULES, origins=["p0"], now=0).event("p0", {"ship_time": 1.5}, now=0),  # type: ignore[dict-item]
    "MAX from a user's rule": lambda: OriginWatermarks({"t": Endless()}, origins=["p0"], now=0).tick(1),
    "mark of MAX": lambda: OriginWatermarks({"t": Punctuated()}, origins=["p0"], now=0).event(
        "p0", {}, now=0, marks={"t": 2**63 - 1}
    ),
}


@dataclass(frozen=True)
class Endless:
    """A rule of the user's own that claims the end of time."""

    def observe(self, state: Any, time: int | None, mark: int | None, now: int) -> Any:
        return state

    def watermark(self, state: Any, now: int) -> int:
        return 2**63 - 1


@pytest.mark.parametrize("action", REFUSED.values(), ids=REFUSED)
def test_bad_input_is_refused(action: Any) -> None:
    with pytest.raises(FloodmarkError) as refusal:
        action()
    assert refusal.value.code in {"invalid-option", "unknown-key", "unknown-input", "not-int64", "reserved-time"}


@dataclass(frozen=True)
class Failing:
    """A rule of the user's own that fails in one of its methods at the time 13."""

    fails_in: str

    def observe(self, state: Any, time: int | None, mark: int | None, now: int) -> Any:
        if self.fails_in == "observe" and time == 13:
            raise ZeroDivisionError
        return time

    def watermark(self, state: Any, now: int) -> int | None:
        if self.fails_in == "watermark" and state == 13:
            raise ZeroDivisionError
        return None if state is None else int(state)


LAST = 2**63 - 1
REFUSED_ROWS: dict[str, tuple[Generator, int, type[Exception]]] = {
    "MAX without a delay": (BoundedDisorder(0), LAST, ReservedTime),
    "a rule that fails to observe": (Failing("observe"), 13, ZeroDivisionError),
    "a rule that fails to answer": (Failing("watermark"), 13, ZeroDivisionError),
}


@pytest.mark.parametrize(("rule", "time", "error"), REFUSED_ROWS.values(), ids=REFUSED_ROWS)
@pytest.mark.parametrize("is_batch", [False, True], ids=["row", "batch"])
def test_a_refused_row_changes_nothing(rule: Generator, time: int, error: type[Exception], is_batch: bool) -> None:
    rules = {"before": BoundedDisorder(0), "t": rule, "after": BoundedDisorder(0)}
    source = OriginWatermarks(rules, origins=["p0", "p1"], now=0, future=None)
    for origin in ("p0", "p1"):
        source.event(origin, {"before": 5, "t": 5, "after": 5}, now=1)
    source.declare_idle("p0", now=2)
    before, activity = source.snapshot(), source.activity()
    row = {"before": 9, "t": time, "after": 9}
    with pytest.raises(error):
        _ = source.events("p0", {k: [v] for k, v in row.items()}, now=3) if is_batch else source.event("p0", row, now=3)
    assert source.snapshot() == before
    assert source.activity() == activity
    for going_on in (source, OriginWatermarks.restore(source.snapshot(), rules, now=3)):
        assert going_on.tick(4) == ()
        going_on.event("p0", {"before": 7, "t": 7, "after": 7}, now=5)
        assert Watermark("t", 6) in going_on.event("p1", {"before": 6, "t": 6, "after": 6}, now=6)


def test_rows_right_below_the_last_time_are_times_like_others() -> None:
    source = OriginWatermarks({"t": BoundedDisorder(0), "u": BoundedDisorder(1)}, origins=["p0"], now=0)
    assert source.event("p0", {"t": LAST - 1, "u": LAST}, now=1) == (Watermark("t", LAST - 1), Watermark("u", LAST - 1))
    assert source.tick(2) == ()


def test_a_row_at_the_last_time_is_ignored_as_future_where_there_is_a_limit() -> None:
    source = OriginWatermarks({"t": BoundedDisorder(0)}, origins=["p0"], now=0, future=10)
    assert source.event("p0", {"t": LAST}, now=1) == ()
    assert source.events("p0", {"t": [LAST, 3]}, now=1) == (Watermark("t", 3),)
    assert source.activity()["p0"].future_rows == 2


def test_a_refused_tick_changes_nothing() -> None:
    source = OriginWatermarks({"t": WallClockLag(0)}, origins=["p0", "p1"], now=0, idle=Idleness(timeout=5))
    source.tick(3)
    before = source.snapshot()
    with pytest.raises(ReservedTime):
        source.tick(LAST, caught_up=True)
    assert source.snapshot() == before
    assert source.tick(4) == (Watermark("t", 4),)


def test_a_state_that_a_refused_row_left_in_an_earlier_release_is_dropped() -> None:
    rules = {"t": BoundedDisorder(0)}
    source = OriginWatermarks(rules, origins=["p0"], now=0)
    source.event("p0", {"t": 5}, now=1)
    kept = source.snapshot()
    kept["origins"][0][1][0] = {"t": LAST}
    restored = OriginWatermarks.restore(kept, rules, now=2)
    assert restored.tick(3) == ()
    assert restored.event("p0", {"t": 4}, now=3) == ()
    assert restored.event("p0", {"t": 8}, now=3) == (Watermark("t", 8),)


@pytest.mark.parametrize("now", [None, "x", 1.5, 2**63])
def test_a_wrong_clock_is_refused_and_changes_nothing(now: Any) -> None:
    source = OriginWatermarks({"t": BoundedDisorder(0)}, origins=["p0"], now=0)
    before, activity = source.snapshot(), source.activity()
    for action in (
        lambda: source.add("p1", now=now),
        lambda: source.declare_idle("p0", now=now),
        lambda: source.finish("p0", now=now),
        lambda: source.tick(now),
        lambda: source.event("p0", {"t": 1}, now=now),
        lambda: source.events("p0", {"t": [1]}, now=now),
    ):
        with pytest.raises(NotInt64):
            action()
    assert (source.snapshot(), source.activity()) == (before, activity)


@dataclass(frozen=True)
class Slowest:
    """A rule of the user's own without a batch form: the oldest of the last three rows."""

    def observe(self, state: Any, time: int | None, mark: int | None, now: int) -> Any:
        return state if time is None else [*(state or []), time][-3:]

    def watermark(self, state: Any, now: int) -> int | None:
        return min(state) if state else None


def watermarks_of(signals: tuple[Signal, ...]) -> list[int]:
    return [signal.time for signal in signals if isinstance(signal, Watermark)]


@given(
    st.sampled_from([BoundedDisorder(5), WallClockLag(5)]),
    st.lists(st.lists(st.integers(-50, 120), min_size=1, max_size=8), max_size=8),
    st.sampled_from([None, 10]),
)
def test_a_batch_ends_where_its_rows_one_by_one_end(
    rule: Generator, batches: list[list[int]], future: int | None
) -> None:
    singly, batched = (OriginWatermarks({"t": rule}, origins=["p0"], now=0, future=future) for _ in range(2))
    for now, times in enumerate(batches, start=60):
        for time in times:
            singly.event("p0", {"t": time}, now=now)
        batched.events("p0", {"t": np.array(times)}, now=now)
        assert batched.current("t") == singly.current("t")
        assert batched.activity() == singly.activity()


@given(
    st.lists(
        st.tuples(st.sampled_from(["p0", "p1", "p2"]), st.sampled_from(["row", "tick", "idle"]), st.integers(-20, 60)),
        max_size=50,
    ),
    st.sampled_from([BoundedDisorder(4), WallClockLag(4), Slowest()]),
    st.integers(0, 50),
)
def test_watermarks_rise_and_a_restart_makes_no_difference(
    steps: list[tuple[str, str, int]], rule: Generator, restart: int
) -> None:
    steady, restarted = (OriginWatermarks({"t": rule}, origins=["p0", "p1", "p2"], now=0) for _ in range(2))
    left: list[int] = []
    for now, (origin, what, time) in enumerate(steps):
        if now == restart:
            restarted = OriginWatermarks.restore(json.loads(json.dumps(restarted.snapshot())), {"t": rule}, now=now)
        outcomes = [
            source.event(origin, {"t": time}, now=now)
            if what == "row"
            else source.tick(now)
            if what == "tick"
            else source.declare_idle(origin, now=now)
            for source in (steady, restarted)
        ]
        assert outcomes[0] == outcomes[1]
        left += watermarks_of(outcomes[0])
    assert left == sorted(set(left))


def test_an_origin_that_comes_back_releases_what_it_allows() -> None:
    for last_row in ({}, {"t": 3}, {"u": 4}):
        source = OriginWatermarks(
            {"t": BoundedDisorder(0), "u": BoundedDisorder(0)}, origins="abc", now=0, revived="exclude"
        )
        for origin, time in {"a": 20, "b": 10, "c": 12}.items():
            source.event(origin, {"t": time}, now=1)
        source.declare_idle("a", now=2)
        source.declare_idle("b", now=3)
        source.event("b", {}, now=4)
        source.declare_idle("c", now=5)
        assert source.current("t") == 12
        assert Watermark("t", 20) in source.event("a", last_row, now=6)
        assert source.current("t") == 20


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["row", "rows", "idle"]), st.integers(0, 30))),
    st.sampled_from(["hold", "exclude"]),
)
def test_origins_merge_like_the_inputs_of_a_coalescer(steps: list[tuple[str, str, int]], revived: Revived) -> None:
    source = OriginWatermarks({"t": BoundedDisorder(0)}, origins="abc", now=0, revived=revived)
    flat = Coalescer("abc", keys=["t"], revived=revived, not_rising="ignore")
    for now, (origin, what, time) in enumerate(steps):
        if what == "idle":
            assert source.declare_idle(origin, now=now) == flat.idle(origin)
            continue
        if what == "row":
            found = source.event(origin, {"t": time}, now=now)
        else:
            found = source.events(origin, {"t": [time]}, now=now)
        assert found == (*flat.event(origin), *flat.watermark(origin, "t", time))
        assert source.current("t") == flat.current("t")


def test_a_snapshot_does_not_follow_later_rows() -> None:
    source = OriginWatermarks(RULES, origins=["p0"], now=0)
    source.event("p0", {"order_time": 5, "ship_time": 5}, now=1)
    kept = source.snapshot()
    text = json.dumps(kept)
    source.event("p0", {"order_time": 9}, now=2)
    source.drop_watermark("ship_time")
    assert json.dumps(kept) == text


def test_columns_may_come_from_arrow() -> None:
    source = OriginWatermarks({"t": BoundedDisorder(3), "u": Punctuated()}, origins=["p0"], now=0)
    signals = source.events("p0", {"t": pa.array([5, 9])}, now=1, marks={"u": pa.chunked_array([[4], [2]])})
    assert signals == (Watermark("t", 6), Watermark("u", 4))


def test_an_empty_batch_says_nothing_and_wakes_nobody() -> None:
    source = OriginWatermarks({"t": BoundedDisorder(3)}, origins=["p0"], now=0)
    source.declare_idle("p0", now=1)
    assert source.events("p0", {"t": []}, now=2) == ()
    assert source.is_idle


def test_rows_after_the_end_are_noted_with_the_newest_until_the_origin_is_revived() -> None:
    rules = {"t": BoundedDisorder(0)}
    source = OriginWatermarks(rules, origins=["p0", "p1"], now=0, after_finish="ignore")
    source.finish("p1", now=1)
    source.events("p1", {"t": [40, 70]}, now=2)
    source.event("p1", {"t": 60}, now=3)
    kept = json.loads(json.dumps(source.snapshot()))
    source = OriginWatermarks.restore(kept, rules, now=4, after_finish="ignore")
    assert (source.activity()["p1"].state, source.activity()["p1"].newest_after_finish) == ("finished", 70)
    source.revive("p1", now=5)
    assert (source.activity()["p1"].state, source.activity()["p1"].newest_after_finish) == ("active", None)


def test_a_snapshot_of_an_earlier_release_knows_no_rows_after_the_end() -> None:
    kept = json.loads(json.dumps(OriginWatermarks(RULES, origins=["p0"], now=0).snapshot()))
    kept["origins"] = [[name, state[:4]] for name, state in kept["origins"]]
    assert OriginWatermarks.restore(kept, RULES, now=1).activity()["p0"].newest_after_finish is None


def test_the_policy_for_revived_origins_can_change_with_a_restart() -> None:
    rules = {"t": BoundedDisorder(0)}
    source = OriginWatermarks(rules, origins=["p0", "p1"], now=0)
    source.event("p0", {"t": 10}, now=1)
    source.event("p1", {"t": 20}, now=1)
    source.declare_idle("p0", now=2)
    held, excluded = (
        OriginWatermarks.restore(source.snapshot(), rules, now=3, revived=one) for one in (None, "exclude")
    )
    for restored in (held, excluded):
        restored.event("p0", {"t": 12}, now=4)
        restored.event("p1", {"t": 30}, now=4)
    assert (held.current("t"), excluded.current("t")) == (20, 30)


def test_after_the_clock_was_set_back_a_silent_origin_becomes_idle_once_its_time_is_over() -> None:
    source = OriginWatermarks({"t": BoundedDisorder(0)}, origins=["p0"], now=3_600, idle=Idleness(timeout=5))
    source.tick(100, caught_up=True)
    assert source.activity()["p0"].state == "active"
    source.tick(105, caught_up=True)
    assert source.activity()["p0"].state == "idle"
