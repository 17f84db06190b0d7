"""Watermarks made from rows: a generator for each origin and key, merged by minimum over the origins.

Also the settings for it: when an origin counts as idle (`Idleness`), and how coarse the output is (`Frame`).
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeVar, get_args

import numpy as np
from numpy.typing import ArrayLike

from floodmark._util.codec import Snapshot, new_snapshot, open_snapshot
from floodmark._util.ints import INT64_MAX, INT64_MIN, check_int64, check_watermark
from floodmark._util.names import Name
from floodmark.errors import InvalidOption, ReservedTime, UnknownKey
from floodmark.progress.coalescer import Coalescer, Explanation
from floodmark.progress.coalescer_state import Revived
from floodmark.progress.columns import Int64Array, int64_column, watermark_column
from floodmark.progress.generators import BatchGenerator, Generator, GeneratorState, check_duration
from floodmark.progress.origin_state import OriginActivity, OriginState
from floodmark.progress.signals import IDLE, Signal, Watermark, check_key

_BELOW_ALL: Final = INT64_MIN - 1
_Value = TypeVar("_Value")


OriginAction = Literal["idle", "finish", "remove", "revive"]
"""What can be decided about an origin: see `OriginWatermarks.decide`."""

AfterFinish = Literal["fail", "ignore"]
"""What to do with rows of a finished origin: refuse them, or note the newest and leave the watermark as it is."""


@dataclass(frozen=True, slots=True)
class Idleness:
    """When an origin counts as idle. Too early makes rows late; too late delays results.

    With a `timeout`, an origin becomes idle when it was silent for so long *and* is caught up, that is, has nothing
    unread. Silence alone may only mean that the reader is slow. With `declared=False`, declaring an origin idle has no
    effect. With `remove_after`, a caught-up origin that has been idle for so long is removed.

    >>> Idleness(timeout=60_000_000)
    Idleness(timeout=60000000, declared=True, remove_after=None)
    """

    timeout: int | None = None
    declared: bool = True
    remove_after: int | None = None

    def __post_init__(self) -> None:
        """Refuse durations of zero or less."""
        for name, duration in (("timeout", self.timeout), ("remove_after", self.remove_after)):
            if duration is not None:
                check_duration(name, duration, least=1)

    def is_timed_out(self, last_heard: int, now: int) -> bool:
        """Return whether a caught-up origin has been silent long enough.

        >>> Idleness(timeout=10).is_timed_out(last_heard=5, now=15)
        True
        """
        return self.timeout is not None and now - last_heard >= self.timeout

    def is_removable(self, idle_since: int | None, now: int) -> bool:
        """Return whether a caught-up origin has been idle long enough to be removed.

        >>> Idleness(remove_after=100).is_removable(idle_since=5, now=105)
        True
        """
        return self.remove_after is not None and idle_since is not None and now - idle_since >= self.remove_after


@dataclass(frozen=True, slots=True)
class Frame:
    """Emits watermarks only on the grid `offset` + k * `size`: fewer signals, without delaying windows on that grid.

    With size 0 no watermark is emitted.

    >>> Frame(10).floor(24), Frame(10, offset=3).floor(24), Frame(0).floor(24)
    (20, 23, None)
    """

    size: int = 1
    offset: int = 0

    def __post_init__(self) -> None:
        """Refuse a negative size, and an offset outside the grid step."""
        check_duration("size", self.size)
        check_duration("offset", self.offset)
        if self.offset >= max(1, self.size):
            raise InvalidOption(
                f"The offset is {self.offset} and the size {self.size}.",
                rule="The offset must be below the size.",
                remedy=f"Set offset to {self.offset % max(1, self.size)}.",
                offset=self.offset,
                size=self.size,
            )

    def floor(self, time: int) -> int | None:
        """Return the grid point at or below `time`; None if there is none."""
        if self.size == 0:
            return None
        point = (time - self.offset) // self.size * self.size + self.offset
        return point if point >= INT64_MIN else None


class OriginWatermarks:
    """The watermark of a source with several origins: per key, the minimum of the watermarks made from their rows.

    The signals returned by `event` come *before* its row, so a row never makes itself late.

    >>> source = OriginWatermarks({"order_time": BoundedDisorder(3)}, origins=["p0", "p1"], now=0)
    >>> source.event("p0", {"order_time": 100}, now=1)
    ()
    >>> source.event("p1", {"order_time": 50}, now=2)
    (Watermark(key='order_time', time=47),)
    >>> source.declare_idle("p1", now=3)
    (Watermark(key='order_time', time=97),)

    `now` is any clock that never goes back; with `WallClockLag` or `future` it must have the unit of the times.
    """

    __slots__ = (
        "_after_finish",
        "_dropped",
        "_emitted",
        "_frame",
        "_future",
        "_generators",
        "_idleness",
        "_merged",
        "_origins",
    )

    def __init__(
        self,
        generators: Mapping[str, Generator],
        *,
        now: int,
        origins: Iterable[Name] = (),
        idle: Idleness = Idleness(),
        frame: Frame = Frame(),
        future: int | None = None,
        revived: Revived = "hold",
        after_finish: AfterFinish = "fail",
    ) -> None:
        """Watch `origins`, with one generator for each key (time column).

        Rows more than `future` ahead of `now` do not advance the watermark; they are counted. With
        `after_finish="ignore"`, rows of a finished origin do not advance it either, and do not bring the origin back.
        """
        if not generators:
            raise InvalidOption(
                "There is no generator.",
                rule="At least one time column needs a generator.",
                remedy="Pass for example {'event_time': BoundedDisorder(delay)}.",
            )
        for key, generator in generators.items():
            check_key(key)
            if not isinstance(generator, Generator):
                raise InvalidOption(
                    f"The generator for {key!r} is {generator!r}.",
                    rule="A generator has the methods observe() and watermark().",
                    remedy="Pass for example BoundedDisorder(delay), or an object with both methods.",
                    key=key,
                )
        self._generators = dict(generators)
        self._idleness = idle
        self._frame = frame
        self._future = None if future is None else check_duration("future", future)
        self._after_finish = after_finish
        self._merged = Coalescer(keys=self._generators, revived=revived)
        self._dropped: set[str] = set()
        self._emitted: dict[str, int] = {}
        self._origins: dict[Name, OriginState] = {}
        for origin in origins:
            self.add(origin, now=now)

    def event(
        self, origin: Name, times: Mapping[str, int], *, now: int, marks: Mapping[str, int] | None = None
    ) -> tuple[Signal, ...]:
        """Process one row: its time on some or all keys, and the marks that it carries, if any."""
        check_int64(now, "now")
        checked = {key: check_int64(time, f"time on {key}") for key, time in self._check_keys(times).items()}
        checked_marks = {key: check_watermark(mark) for key, mark in self._check_keys(marks or {}).items()}
        if self._ignores(origin, [*checked.values(), *checked_marks.values()]):
            return ()
        state, limit = self._origin(origin).heard(now), self._limit(now)
        watermarks: dict[str, int | None] = {}
        for key, generator in self._generators.items():
            time, mark = checked.get(key), checked_marks.get(key)
            latest = max((value for value in (time, mark) if value is not None), default=None)
            if latest is None or state.is_future(latest, limit):
                continue
            state.states[key] = generator.observe(state.states.get(key), time, mark, now)
            watermarks[key] = self._watermark(origin, key, state, now, cap=time)
        return self._apply(origin, state, watermarks, now)

    def events(
        self,
        origin: Name,
        times: Mapping[str, ArrayLike],
        *,
        now: int,
        marks: Mapping[str, ArrayLike] | None = None,
    ) -> tuple[Signal, ...]:
        """Process many rows of one origin, as a column for each key (numpy, Arrow or a list).

        The signals come after the last row of the batch. For a generator that uses the newest row they equal the last
        signals that `event` would return row by row.

        >>> source = OriginWatermarks({"order_time": BoundedDisorder(3)}, origins=["p0"], now=0)
        >>> source.events("p0", {"order_time": [90, 100, 95]}, now=1)
        (Watermark(key='order_time', time=97),)
        """
        self._origin(origin)
        check_int64(now, "now")
        columns = {key: int64_column(column, f"time on {key}") for key, column in self._check_keys(times).items()}
        mark_columns = {key: watermark_column(column) for key, column in self._check_keys(marks or {}).items()}
        if not any(len(column) for column in (*columns.values(), *mark_columns.values())):
            return ()
        newest = [int(column.max()) for column in (*columns.values(), *mark_columns.values()) if len(column)]
        if self._ignores(origin, newest):
            return ()
        state, limit = self._origin(origin).heard(now), self._limit(now)
        watermarks: dict[str, int | None] = {}
        empty = np.empty(0, dtype=np.int64)
        for key, generator in self._generators.items():
            present = state.without_future(columns.get(key, empty), limit)
            present_marks = state.without_future(mark_columns.get(key, empty), limit)
            if not len(present) and not len(present_marks):
                continue
            state.states[key] = _observe_all(generator, state.states.get(key), present, present_marks, now)
            cap = int(present.max()) if len(present) else None
            watermarks[key] = self._watermark(origin, key, state, now, cap=cap)
        return self._apply(origin, state, watermarks, now)

    def observe_batch(self, key: str, newest: Mapping[Name, int], *, now: int) -> tuple[Signal, ...]:
        """Process the newest time of each origin in a batch of rows, which has no order.

        New origins are added and idle ones revived before any time counts, so the watermark cannot pass them.

        >>> source = OriginWatermarks({"t": BoundedDisorder(0)}, now=0)
        >>> source.observe_batch("t", {"p0": 10, "p1": 7}, now=1)
        (Watermark(key='t', time=7),)
        """
        for origin in sorted(newest.keys() - self._origins.keys(), key=str):
            self.add(origin, now=now)
        signals: list[Signal] = []
        for origin in newest:
            if self._merged.state_of(origin) == "idle":
                signals += self.revive(origin, now=now)
        for origin, time in newest.items():
            signals += self.events(origin, {key: [time]}, now=now)
        return tuple(signals)

    def tick(self, now: int, *, caught_up: bool | Collection[Name] = False) -> tuple[Signal, ...]:
        """Advance the clock: silent origins that are `caught_up` (these, or all) may become idle.

        >>> idle = Idleness(timeout=5)
        >>> source = OriginWatermarks({"t": BoundedDisorder(3)}, origins=["p0"], now=0, idle=idle)
        >>> source.tick(5), source.tick(5, caught_up=True)
        ((), (IDLE,))
        """
        check_int64(now, "now")
        # All watermarks are made before the first one counts, so that a refused one changes nothing.
        watermarks = {
            origin: {key: self._watermark(origin, key, state, now, cap=None) for key in self._generators}
            for origin, state in self._origins.items()
            if self._merged.state_of(origin) == "active"
        }
        signals: list[Signal] = []
        for origin, times in watermarks.items():
            state = self._origins[origin]
            # If the clock was set back, count the silence from now.
            state.last_heard = min(state.last_heard, now)
            signals += self._advance(origin, times, now)
            is_caught_up = caught_up if isinstance(caught_up, bool) else origin in caught_up
            if is_caught_up and self._idleness.is_timed_out(state.last_heard, now):
                state.idle_cause = "timeout"
                signals += self._merged.idle(origin, now)
        signals += self._remove_idle(caught_up, now)
        return self._apply_frame(signals)

    def declare_idle(self, origin: Name, *, now: int) -> tuple[Signal, ...]:
        """Ignore an origin until it is active again; no effect if `Idleness.declared` is False."""
        state = self._origin(origin)
        check_int64(now, "now")
        if not self._idleness.declared:
            return ()
        if self._merged.state_of(origin) == "active":
            state.idle_cause = "declared"
        return self._apply_frame(self._merged.idle(origin, now))

    def finish(self, origin: Name, *, now: int) -> tuple[Signal, ...]:
        """Ignore an origin from now on: it has ended. Only `revive` brings it back."""
        state = self._origin(origin)
        check_int64(now, "now")
        state.idle_cause = None
        return self._apply_frame(self._merged.finish(origin, now))

    def revive(self, origin: Name, *, now: int) -> tuple[Signal, ...]:
        """Wait again for an idle or finished origin, before its next row. Its idle timeout starts now."""
        state = self._origin(origin)
        state.last_heard = max(state.last_heard, check_int64(now, "now"))
        state.idle_cause = state.newest_after_finish = None
        return self._apply_frame(self._merged.revive(origin, now))

    def decide(self, origin: Name, action: OriginAction, *, now: int) -> tuple[Signal, ...]:
        """Carry out a decision about an origin, whatever its state is and whether or not it is known.

        | action | the watermark |
        |---|---|
        | `idle` | does not wait for the origin until its next row |
        | `finish` | does not wait for it, and its rows do not bring it back |
        | `remove` | does not wait for it; after its next row it is a new origin |
        | `revive` | waits for it, also before its first row |

        >>> source = OriginWatermarks({"t": BoundedDisorder(0)}, origins=["p0"], now=0)
        >>> source.decide("p1", "revive", now=1)
        ()
        >>> source.event("p0", {"t": 10}, now=2)
        ()
        >>> source.decide("p1", "remove", now=3)
        (Watermark(key='t', time=10),)
        """
        if action not in get_args(OriginAction):
            raise InvalidOption(
                f"The action is {action!r}.",
                rule=f"It is one of: {', '.join(get_args(OriginAction))}.",
                remedy="Use 'idle' to leave an origin out until its next row, 'finish' or 'remove' to leave it out.",
                action=action,
            )
        check_int64(now, "now")
        if origin not in self._origins:
            if action == "remove":
                return ()
            self.add(origin, now=now)
        if action == "remove":
            return self.remove(origin)
        if action == "revive":
            return self.revive(origin, now=now)
        if action == "finish":
            return () if self._merged.state_of(origin) == "finished" else self.finish(origin, now=now)
        signals = self.revive(origin, now=now) if self._merged.state_of(origin) == "finished" else ()
        return (*signals, *self.declare_idle(origin, now=now))

    def add(self, origin: Name, *, now: int) -> None:
        """Add an origin. Its idle timeout starts now, and every key waits for it."""
        self._merged.add(origin, now=check_int64(now, "now"))
        self._origins[origin] = OriginState(now)

    def remove(self, origin: Name) -> tuple[Signal, ...]:
        """Remove an origin, and return the watermarks that it held back."""
        self._origin(origin)
        del self._origins[origin]
        return self._apply_frame(self._merged.remove(origin))

    def drop_watermark(self, key: str) -> None:
        """Stop making watermarks for a key; its times are ignored."""
        self._check_keys({key: None})
        self._merged.drop_watermark(key)
        self._dropped.add(key)
        self._generators.pop(key, None)
        for state in self._origins.values():
            state.states.pop(key, None)

    def current(self, key: str) -> int | None:
        """Return the last emitted watermark on `key`, or None."""
        self._check_keys({key: None})
        return self._emitted.get(key)

    @property
    def origins(self) -> tuple[Name, ...]:
        """All origins, finished ones included."""
        return tuple(self._origins)

    @property
    def is_idle(self) -> bool:
        """Whether all origins are idle."""
        return self._merged.is_idle

    def explain(self) -> Explanation:
        """Return for each key the watermark of each origin (before the frame), its holders, and since when."""
        return self._merged.explain()

    def activity(self) -> dict[Name, OriginActivity]:
        """Return the activity of each origin.

        >>> source = OriginWatermarks({"t": BoundedDisorder(0)}, origins=["p0"], now=0, future=10)
        >>> source.event("p0", {"t": 4_000_000_000}, now=5)
        ()
        >>> source.activity()["p0"].future_rows
        1
        """
        return {origin: state.activity(self._merged.state_of(origin)) for origin, state in self._origins.items()}

    def snapshot(self) -> Snapshot:
        """Return the state as JSON values."""
        return new_snapshot(
            "origin-watermarks",
            keys=list(self._generators),
            dropped=sorted(self._dropped),
            merged=self._merged.snapshot(),
            let_out=dict(self._emitted),
            origins=[[name, state.save()] for name, state in self._origins.items()],
        )

    @classmethod
    def restore(
        cls,
        snapshot: Snapshot,
        generators: Mapping[str, Generator],
        *,
        now: int,
        idle: Idleness = Idleness(),
        frame: Frame = Frame(),
        future: int | None = None,
        revived: Revived | None = None,
        after_finish: AfterFinish = "fail",
    ) -> "OriginWatermarks":
        """Continue from `snapshot`, with the generators and settings given again; `revived` is kept if not given.

        Idle timeouts start again at `now`: the time without a running process does not count as silence.

        >>> rules = {"t": BoundedDisorder(3)}
        >>> source = OriginWatermarks(rules, origins=["p0"], now=0)
        >>> _ = source.event("p0", {"t": 100}, now=1)
        >>> OriginWatermarks.restore(source.snapshot(), rules, now=50).current("t")
        97
        """
        restored = cls(generators, now=now, idle=idle, frame=frame, future=future, after_finish=after_finish)
        with open_snapshot(snapshot, "origin-watermarks") as saved:
            restored._dropped = {check_key(key) for key in saved["dropped"]}
            for key in restored._dropped:
                restored._generators.pop(key, None)
            if set(saved["keys"]) != set(restored._generators):
                raise ValueError(f"it has the keys {saved['keys']}, the generators {list(generators)}")
            restored._merged = Coalescer.restore(saved["merged"], revived=revived)
            restored._emitted = {check_key(key): check_watermark(time) for key, time in saved["let_out"].items()}
            restored._origins = {name: OriginState.load(state, now) for name, state in saved["origins"]}
            if restored._origins.keys() != set(restored._merged.inputs):
                raise ValueError(f"it has the origins {list(restored._origins)}, and merges {restored._merged.inputs}")
            if restored._generators.keys() != set(restored._merged.keys):
                raise ValueError(f"it has the keys {saved['keys']}, and merges {restored._merged.keys}")
            restored._check_states(now)
        return restored

    def _origin(self, origin: Name) -> OriginState:
        self._merged.state_of(origin)
        return self._origins[origin]

    def _ignores(self, origin: Name, times: Collection[int]) -> bool:
        """Return whether rows at these times are ignored because their origin has finished; if so, note the newest."""
        if self._after_finish == "fail" or self._merged.state_of(origin) != "finished":
            return False
        state = self._origins[origin]
        before = [] if state.newest_after_finish is None else [state.newest_after_finish]
        state.newest_after_finish = max([*before, *times], default=None)
        return True

    def _remove_idle(self, caught_up: bool | Collection[Name], now: int) -> list[Signal]:
        """Remove the origins that have been idle for long enough."""
        if self._idleness.remove_after is None:
            return []
        ready = [
            origin
            for origin in self._origins
            if (caught_up if isinstance(caught_up, bool) else origin in caught_up)
            and self._merged.state_of(origin) == "idle"
            and self._idleness.is_removable(self._merged.since_of(origin), now)
        ]
        for origin in ready:
            del self._origins[origin]
        return [signal for origin in ready for signal in self._merged.remove(origin)]

    def _check_keys(self, by_key: Mapping[str, _Value]) -> Mapping[str, _Value]:
        for key in by_key:
            if key not in self._generators and key not in self._dropped:
                raise UnknownKey(
                    f"There is no key {key!r}.",
                    rule=f"The keys are: {', '.join(self._generators)}.",
                    remedy="Use one of these keys, or pass a generator for it.",
                    key=key,
                )
        return by_key

    def _check_states(self, now: int) -> None:
        """Check that the restored generator states make watermarks, so that no later call fails on them.

        One that makes int64 MAX is dropped: earlier releases kept the state of a row that they refused.
        """
        for state in self._origins.values():
            for key, generator in self._generators.items():
                time = generator.watermark(state.states.get(key), now)
                if time is not None and check_int64(time, f"watermark on {key}") == INT64_MAX:
                    state.states.pop(key, None)

    def _limit(self, now: int) -> int | None:
        return None if self._future is None else now + self._future

    def _watermark(self, origin: Name, key: str, state: OriginState, now: int, cap: int | None) -> int | None:
        """Return the watermark that follows from a state, or None; raise an error if it is reserved."""
        time = self._generators[key].watermark(state.states.get(key), now)
        if time is None:
            return None
        time = check_int64(time if cap is None else min(time, cap), f"watermark on {key}")
        if time == INT64_MAX:
            raise ReservedTime(
                f"The watermark of the origin {origin!r} on {key!r} would be int64 MAX.",
                rule="int64 MAX is reserved: it would mean that no row ever comes again.",
                remedy="Drop rows with that time, or set future=, which ignores rows too far ahead of now.",
                origin=origin,
                key=key,
            )
        return time

    def _apply(
        self, origin: Name, state: OriginState, watermarks: Mapping[str, int | None], now: int
    ) -> tuple[Signal, ...]:
        """Make an origin active and take its new state; nothing before this has changed anything."""
        signals = list(self._merged.event(origin, now))
        self._origins[origin] = state
        return self._apply_frame([*signals, *self._advance(origin, watermarks, now)])

    def _advance(self, origin: Name, watermarks: Mapping[str, int | None], now: int) -> list[Signal]:
        signals: list[Signal] = []
        for key, time in watermarks.items():
            last = self._merged.last_of(origin, key)
            if time is not None and (last is None or time > last):
                signals += self._merged.watermark(origin, key, time, now)
        return signals

    def _apply_frame(self, signals: Iterable[Signal]) -> tuple[Signal, ...]:
        emitted: list[Signal] = []
        for signal in signals:
            if signal is IDLE:
                emitted.append(signal)
                continue
            point = self._frame.floor(signal.time)
            if point is not None and point > self._emitted.get(signal.key, _BELOW_ALL):
                self._emitted[signal.key] = point
                emitted.append(Watermark(signal.key, point))
        return tuple(emitted)


def _observe_all(
    generator: Generator, state: GeneratorState, times: Int64Array, marks: Int64Array, now: int
) -> GeneratorState:
    if isinstance(generator, BatchGenerator):
        return generator.observe_batch(state, times, marks, now)
    for time in times.tolist():
        state = generator.observe(state, time, None, now)
    for mark in marks.tolist():
        state = generator.observe(state, None, mark, now)
    return state
