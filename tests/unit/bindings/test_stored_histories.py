"""Random histories on a real store against a small model: two processes tick, hold, compact, fail and start again."""

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from floodmark.bindings import Bindings
from floodmark.bindings.minting import FAILPOINTS
from floodmark.control import Home
from floodmark.errors import MintLost, SourceTruncated, TimestampNotValid, UnknownHold
from floodmark.testing import ManualClock
from support.bindings.bound_sources import check_rows
from support.examples import examples

SECOND = 1_000_000
WHO = st.integers(0, 1)


class Crash(Exception):
    """A process ends in the middle of what it does."""


class StoredHistories(RuleBasedStateMachine):
    """Two processes that have the same home open, or so it looks to the store."""

    empty_file: Path

    @initialize(window=st.sampled_from([None, 0, 3, 8]))
    def start(self, window: int | None) -> None:
        self.directory = TemporaryDirectory()
        shutil.copy(self.empty_file, self.directory.name)
        self.clock = ManualClock(100 * SECOND + 250_000)
        self.homes = [Home.open(self.directory.name, clock=self.clock.now) for _ in range(2)]
        self.crash_at: str | None = None
        self.processes = [self.process(which) for which in range(2)]
        self.window = window
        seconds = None if window is None else f"{window} seconds"
        self.upper = self.processes[0].register("S", kind="kafka", identity=1, compaction_window=seconds).upper
        self.since = self.upper
        self.log = {0: 0}
        self.bound: dict[tuple[int, int], int] = {}
        self.ends: dict[int, int] = {}
        self.watermarks: dict[int, int] = {}
        self.holds: dict[str, int] = {}

    def teardown(self) -> None:
        if hasattr(self, "homes"):
            for home in self.homes:
                home.close()
            self.directory.cleanup()

    def process(self, which: int) -> Bindings:
        def crash(place: str) -> None:
            if place == self.crash_at:
                raise Crash

        return Bindings(self.homes[which], own_clock=self.clock.now, failpoint=crash)

    @rule(partition=st.integers(0, 3), records=st.integers(0, 4))
    def write(self, partition: int, records: int) -> None:
        self.log[partition] = self.log.get(partition, 0) + records

    @rule(seconds=st.integers(-3, 6))
    def move_the_clock(self, seconds: int) -> None:
        self.clock.advance(seconds * SECOND)

    @rule(who=WHO, time=st.integers(0, 9), crash=st.sampled_from([None, None, *FAILPOINTS]))
    def tick(self, who: int, time: int, crash: str | None) -> None:
        self.crash_at = crash
        seen = dict(self.log)
        try:
            ticked = self.processes[who].tick("S", lambda: seen, {"at": time})
        except Crash:
            self.processes[who] = self.process(who)
            if crash != "mint: after the commit":
                return
        else:
            if not ticked.minted:
                return
        finally:
            self.crash_at = None
        self.happened(seen, time, compacts=True)

    @rule(who=WHO, time=st.integers(0, 9), expected=st.integers(-1, 1))
    def mint(self, who: int, time: int, expected: int) -> None:
        seen = dict(self.log)
        try:
            self.processes[who].mint("S", seen, {"at": time}, expected_upper=self.upper + expected)
        except MintLost:
            assert expected
            return
        assert not expected
        self.happened(seen, time, compacts=False)

    def happened(self, seen: dict[int, int], time: int, *, compacts: bool) -> None:
        """Take into the model what was bound."""
        now = self.clock.now()
        is_stale = now >= self.upper + 2 * SECOND
        ts = (now // SECOND + 1) * SECOND if is_stale else self.upper
        fresh = [(p, offset) for p, end in seen.items() for offset in range(self.ends.get(p, 0), end)]
        self.bound.update(dict.fromkeys(fresh, ts))
        self.ends |= seen
        self.watermarks[ts] = max([*self.watermarks.values(), time])
        self.upper = max((now // SECOND + 1) * SECOND, ts + 1)
        if compacts:
            self.compacted()

    def compacted(self) -> None:
        if self.window is not None:
            self.since = max(self.since, min(self.upper - self.window * SECOND, self.upper - 1, *self.holds.values()))

    @rule(who=WHO)
    def compact(self, who: int) -> None:
        done = self.processes[who].compact("S")
        self.compacted()
        assert done.since == self.since

    @rule(who=WHO, holder=st.sampled_from("ab"), back=st.integers(-1, 12), anew=st.booleans())
    def hold(self, who: int, holder: str, back: int, anew: bool) -> None:
        ts = self.upper - back * SECOND
        try:
            if anew:
                self.processes[who].hold("S", holder, ts)
                self.holds[holder] = ts
            else:
                self.processes[who].advance_hold("S", holder, ts)
                self.holds[holder] = max(ts, self.holds[holder])
        except UnknownHold:
            assert holder not in self.holds
        except TimestampNotValid:
            assert not self.since <= ts <= self.upper

    @rule(who=WHO, holder=st.sampled_from("ab"))
    def release(self, who: int, holder: str) -> None:
        assert self.processes[who].release("S", holder) == (self.holds.pop(holder, None) is not None)

    @rule(who=WHO)
    def restart(self, who: int) -> None:
        self.processes[who] = self.process(who)

    @precondition(lambda self: any(end > 0 for end in self.ends.values()))
    @rule(who=WHO)
    def truncate(self, who: int) -> None:
        partition = max(self.ends, key=lambda one: self.ends[one])
        with pytest.raises(SourceTruncated):
            self.processes[who].mint("S", {partition: self.ends[partition] - 1}, expected_upper=self.upper)

    @invariant()
    def all_who_look_see_the_same(self) -> None:
        if not hasattr(self, "homes"):
            return
        check_rows(self.homes[0])
        for history in (*(one.history("S") for one in self.processes), Bindings(self.homes[1]).history("S")):
            assert (history.since, history.upper, history.ends) == (
                self.since,
                self.upper,
                dict(sorted(self.ends.items())),
            )
            for (partition, offset), ts in self.bound.items():
                assert history.ts_of(partition, offset) == max(ts, self.since)
            for ts in [self.since, *(one for one in self.watermarks if one > self.since)]:
                if ts < self.upper:
                    expected = max((time for at, time in self.watermarks.items() if at <= ts), default=None)
                    assert history.watermark_at(ts).get("at") == expected
                    before = max((time for at, time in self.watermarks.items() if at < ts), default=None)
                    assert history.watermark_before(ts).get("at") == before
        assert {hold.holder: hold.ts for hold in self.processes[0].holds("S")} == self.holds


def test_every_stored_history_agrees_with_the_model(empty_file: Path) -> None:
    class OnCopies(StoredHistories):
        pass

    OnCopies.empty_file = empty_file
    run_state_machine_as_test(OnCopies, settings=settings(max_examples=examples(60), stateful_step_count=30))
