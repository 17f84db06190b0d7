"""Watermarks made from rows: a generator for each origin and key, merged by minimum over the origins.

Also the settings for it: when an origin counts as idle (`Idleness`), and how coarse the output is (`Frame`).
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from floodmark._util.codec import Snapshot, new_snapshot, open_snapshot
from floodmark._util.ints import INT64_MAX, INT64_MIN, check_int64, check_number, check_watermark
from floodmark._util.names import Name
from floodmark.errors import InvalidOption, ReservedTime, UnknownKey
from floodmark.progress.coalescer import Coalescer, Explanation
from floodmark.progress.coalescer_state import Revived
from floodmark.progress.columns import Int64Array, int64_column, watermark_column
from floodmark.progress.generators import BatchGenerator, Generator, GeneratorState, check_duration
from floodmark.progress.signals import IDLE, Signal, Watermark, check_key

_BELOW_ALL: Final = INT64_MIN - 1
_Value = TypeVar("_Value")


IdleCause = Literal["declared", "timeout"]
"""Why an origin is idle: it was declared so, or it was silent for the timeout and had nothing unread."""


@dataclass(frozen=True, slots=True)
class Idleness:
    """When an origin counts as idle. Too early makes rows late; too late delays results.

    With a `timeout`, an origin becomes idle when it was silent for so long *and* is caught up, that is, has nothing
    unread. Silence alone may only mean that the reader is slow. With `declared=False`, declaring an origin idle has no
    effect.

    >>> Idleness(timeout=60_000_000)
    Idleness(timeout=60000000, declared=True)
    """

    timeout: int | None = None
    declared: bool = True

    def __post_init__(self) -> None:
        """Refuse a timeout of zero or less."""
        if self.timeout is not None:
            check_duration("timeout", self.timeout, least=1)

    def is_timed_out(self, last_heard: int, now: int) -> bool:
        """Return whether a caught-up origin has been silent long enough.

        >>> Idleness(timeout=10).is_timed_out(last_heard=5, now=15)
        True
        """
        return self.timeout is not None and now - last_heard >= self.timeout


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


@dataclass(frozen=True, slots=True)
class OriginActivity:
    """One origin: when it was last active, why it is idle, and its rows too far in the future, which are ignored."""

    state: str
    last_heard: int
    idle_cause: IdleCause | None
    future_rows: int
    newest_future: int | None


class OriginState:
    """The generator state of each key of an origin, and its activity."""

    __slots__ = ("future_rows", "idle_cause", "last_heard", "newest_future", "states")

    def __init__(self, last_heard: int) -> None:
        self.states: dict[str, GeneratorState] = {}
        self.last_heard = last_heard
        self.idle_cause: IdleCause | None = None
        self.future_rows = 0
        self.newest_future: int | None = None

    def heard(self, now: int) -> "OriginState":
        """Return a copy that was active now; rows are observed on it, and it counts when none of them was refused."""
        active = OriginState(max(self.last_heard, now))
        active.states = dict(self.states)
        active.future_rows, active.newest_future = self.future_rows, self.newest_future
        return active

    def is_future(self, latest: int, limit: int | None) -> bool:
        """Return whether a time lies beyond the limit; if so, count the row."""
        if limit is None or latest <= limit:
            return False
        self._count_future(1, latest)
        return True

    def without_future(self, column: Int64Array, limit: int | None) -> Int64Array:
        """Return the times within the limit, and count the others."""
        if limit is None or not len(column) or (newest := int(column.max())) <= limit:
            return column
        ahead = column > limit
        self._count_future(int(np.count_nonzero(ahead)), newest)
        return column[~ahead]

    def activity(self, state: str) -> OriginActivity:
        """Return the activity of the origin, which is in this state."""
        return OriginActivity(state, self.last_heard, self.idle_cause, self.future_rows, self.newest_future)

    def save(self) -> list[Any]:
        """Return everything except `last_heard`, which has no meaning after a restart."""
        return [dict(self.states), self.idle_cause, self.future_rows, self.newest_future]

    @classmethod
    def load(cls, saved: list[Any], now: int) -> "OriginState":
        """Return a saved state, with `now` as `last_heard`."""
        origin = cls(now)
        states, idle_cause, future_rows, newest_future = saved
        if idle_cause not in (None, "declared", "timeout"):
            raise ValueError(f"unknown cause of idleness {idle_cause!r}")
        origin.states = dict(states)
        origin.idle_cause = idle_cause
        origin.future_rows = check_number("future_rows", future_rows)
        origin.newest_future = None if newest_future is None else check_int64(newest_future, "newest_future")
        return origin

    def _count_future(self, rows: int, newest: int) -> None:
        self.future_rows += rows
        self.newest_future = newest if self.newest_future is None else max(newest, self.newest_future)


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

    __slots__ = ("_dropped", "_emitted", "_frame", "_future", "_generators", "_idleness", "_merged", "_origins")

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
    ) -> None:
        """Watch `origins`, with one generator for each key (time column).

        Rows more than `future` ahead of `now` do not advance the watermark; they are counted.
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
        """Ignore an origin for good: it has ended."""
        state = self._origin(origin)
        check_int64(now, "now")
        state.idle_cause = None
        return self._apply_frame(self._merged.finish(origin, now))

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
    ) -> "OriginWatermarks":
        """Continue from `snapshot`, with the generators and settings given again.

        Idle timeouts start again at `now`: the time without a running process does not count as silence.

        >>> rules = {"t": BoundedDisorder(3)}
        >>> source = OriginWatermarks(rules, origins=["p0"], now=0)
        >>> _ = source.event("p0", {"t": 100}, now=1)
        >>> OriginWatermarks.restore(source.snapshot(), rules, now=50).current("t")
        97
        """
        restored = cls(generators, now=now, idle=idle, frame=frame, future=future)
        with open_snapshot(snapshot, "origin-watermarks") as saved:
            restored._dropped = {check_key(key) for key in saved["dropped"]}
            for key in restored._dropped:
                restored._generators.pop(key, None)
            if set(saved["keys"]) != set(restored._generators):
                raise ValueError(f"it has the keys {saved['keys']}, the generators {list(generators)}")
            restored._merged = Coalescer.restore(saved["merged"])
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
