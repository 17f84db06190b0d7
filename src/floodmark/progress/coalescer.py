"""The coalescer: per key, the minimum over its inputs, which may be idle, revived or finished; with explanations."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from floodmark._util.codec import Snapshot, new_snapshot, open_snapshot
from floodmark._util.ints import INT64_MAX, INT64_MIN, check_now, check_number, check_watermark
from floodmark._util.names import Name
from floodmark.errors import InvalidOption, WatermarkNotRising
from floodmark.progress.coalescer_state import (
    ACTIVE,
    IDLE_STATE,
    STATE_NAMES,
    Inputs,
    Keys,
    KeyState,
    Revived,
    check_revived,
    since_or_none,
)
from floodmark.progress.columns import Int64Array, watermark_column
from floodmark.progress.signals import IDLE, Signal, check_key

NotRising = Literal["fail", "ignore"]
"""What to do with a watermark that is not above the previous one of its input."""


@dataclass(frozen=True, slots=True)
class InputView:
    """One input on one key. `since` is the time of its last watermark on the key, else of its last change of state."""

    name: Name
    state: str
    time: int | None
    since: int | None
    left_out: bool
    holds: bool

    def __str__(self) -> str:
        """Return one line of text."""
        where = "no watermark yet" if self.time is None else f"at {self.time}"
        since = "" if self.since is None else f" since {self.since}"
        note = ", holds" if self.holds else ", left out until it has caught up" if self.left_out else ""
        return f"{self.name}: {self.state}, {where}{since}{note}"


@dataclass(frozen=True, slots=True)
class KeyView:
    """One key: its last output watermark, and which inputs hold it back since when.

    `lacking` names active inputs that send other keys but never this one. If they never will, drop the key or remove
    those inputs; until then the key does not advance.
    """

    key: str
    watermark: int | None
    top: int | None
    holders: tuple[Name, ...]
    since: int | None
    lacking: tuple[Name, ...]
    inputs: tuple[InputView, ...] = field(repr=False)

    def __str__(self) -> str:
        """Return one line for the key, and one below it for each input."""
        where = "no watermark yet" if self.watermark is None else f"at {self.watermark}"
        since = "" if self.since is None else f" since {self.since}"
        held = f", held by {', '.join(map(str, self.holders))}{since}" if self.holders else ", held by no input"
        lines = [f"{self.key}: {where}{held}", *(f"  {view}" for view in self.inputs)]
        if self.lacking:
            lines.append(f"  never on this key, though on others: {', '.join(map(str, self.lacking))}")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Explanation:
    """The state of a coalescer, key by key. `ignored` counts dropped watermarks that did not rise."""

    is_idle: bool
    ignored: int
    keys: Mapping[str, KeyView]

    def __str__(self) -> str:
        """Return all keys as text."""
        lines = ["idle: all inputs are idle"] if self.is_idle else []
        return "\n".join([*lines, *map(str, self.keys.values())])


class Coalescer:
    """Merges the watermarks of several inputs: per key, the minimum over the active inputs.

    Each call returns the output signals in order: a tuple of `Watermark`, and `IDLE` when all inputs have become idle.
    `now` may be the time of any clock; it is only used to explain since when an input holds the minimum.

    >>> merged = Coalescer(["left", "right"])
    >>> merged.watermark("left", "order_time", 10)
    ()
    >>> merged.watermark("right", "order_time", 12)
    (Watermark(key='order_time', time=10),)
    >>> merged.idle("left")
    (Watermark(key='order_time', time=12),)

    The rules:

    - A watermark must be above the previous one of its input and key: `not_rising="fail"` raises, `"ignore"` drops.
    - Idleness has no key. An idle input is ignored on all keys; an event or a watermark on any key revives it on all.
    - When every input that has not finished is idle, each key advances to the highest watermark ever seen on it, and
      `IDLE` follows once.
    - A revived input that has fallen behind the output holds it back (`revived="hold"`) or is left out until it has
      caught up (`"exclude"`). The output never goes back.
    - A finished input is ignored until it is revived; when all have finished, there is no more output.
    - A key that only some inputs send is held back until the others send it, go idle, finish, or are removed;
      `partial_keys()` names it.
    """

    __slots__ = ("_ignored", "_inputs", "_is_idle", "_keys", "_not_rising")

    def __init__(
        self,
        inputs: Iterable[Name] = (),
        *,
        keys: Iterable[str] | None = None,
        revived: Revived = "hold",
        not_rising: NotRising = "fail",
    ) -> None:
        """Merge `inputs`. With `keys`, any other key is an error; without, keys are added as they arrive."""
        if not_rising not in ("fail", "ignore"):
            raise InvalidOption(
                f"not_rising is {not_rising!r}.",
                rule="It must be 'fail' or 'ignore'.",
                remedy="Use 'fail' to find the faulty input, 'ignore' to drop such watermarks.",
                not_rising=not_rising,
            )
        self._not_rising = not_rising
        self._inputs = Inputs(revived)
        self._is_idle = False
        self._ignored = 0
        self._keys = Keys(self._inputs, keys)
        for name in inputs:
            self.add(name)

    def watermark(self, name: Name, key: str, time: int, now: int | None = None) -> tuple[Signal, ...]:
        """Process a watermark of an input.

        >>> Coalescer(["p0"]).watermark("p0", "order_time", 10)
        (Watermark(key='order_time', time=10),)
        """
        inputs = self._inputs
        slot = inputs.live_slot(name)
        if type(time) is not int or not INT64_MIN <= time < INT64_MAX:
            time = check_watermark(time)
        if type(now) is not int:
            now = check_now(now)
        state = self._keys.states.get(key) or self._keys.get_or_create(key)
        if state is not None and state.seen[slot] and time <= state.values[slot]:
            if self._not_rising == "fail":
                raise _not_rising_error(name, key, time, state.values[slot])
            self._ignored += 1
            state = None
        if inputs.state[slot] != ACTIVE:
            self._revive(slot, now)
            if state is not None:
                state.set(slot, time, now)
            return self._advance_all()
        if state is None:
            return ()
        state.set(slot, time, now)
        return state.advance()

    def watermark_batch(
        self, names: Sequence[Name], times: Mapping[str, ArrayLike], now: int | None = None
    ) -> tuple[Signal, ...]:
        """Process watermarks of many inputs on one or more keys; on an error none is applied.

        `times` has a column for each key, in the order of `names`. At most one watermark per key is returned, the last.

        >>> merged = Coalescer(["p0", "p1"])
        >>> merged.watermark_batch(["p0", "p1"], {"order_time": [10, 12], "ship_time": [5, 4]})
        (Watermark(key='order_time', time=10), Watermark(key='ship_time', time=4))
        """
        inputs = self._inputs
        now = check_now(now)
        slots = inputs.live_slots(names)
        if not len(slots):
            return ()
        columns = {key: watermark_column(column, f"watermark of {key}", len(slots)) for key, column in times.items()}
        for key in columns:
            self._keys.check(key)
        rising = {key: self._check_rising(names, slots, key, column) for key, column in columns.items()}
        revived = slots[inputs.states()[slots] == IDLE_STATE].tolist()
        for slot in revived:
            self._revive(slot, now)
        changed: list[KeyState] = []
        for key, column in columns.items():
            state = self._keys.get_or_create(key)
            if state is None:
                continue
            rises = rising[key]
            self._ignored += len(rises) - int(np.count_nonzero(rises))
            state.set_many(slots[rises], column[rises], now)
            changed.append(state)
        return self._advance_all() if revived else tuple([signal for state in changed for signal in state.advance()])

    def event(self, name: Name, now: int | None = None) -> tuple[Signal, ...]:
        """Note a row of an input, which makes the input active.

        The input may be the first active one that has not fallen behind (`revived="exclude"`): then its watermark is
        the new minimum.

        >>> merged = Coalescer(["p0", "p1"])
        >>> merged.idle("p0")
        ()
        >>> merged.event("p0")
        ()
        >>> merged.watermark("p1", "order_time", 12)
        ()
        """
        slot = self._inputs.live_slot(name)
        if self._inputs.state[slot] == ACTIVE:
            return ()
        self._revive(slot, check_now(now))
        return self._advance_all()

    def idle(self, name: Name, now: int | None = None) -> tuple[Signal, ...]:
        """Ignore an input until it sends something again; calling it twice is no error.

        >>> merged = Coalescer(["p0", "p1"])
        >>> merged.idle("p0")
        ()
        >>> merged.idle("p1")
        (IDLE,)
        """
        slot = self._inputs.live_slot(name)
        if self._inputs.state[slot] != ACTIVE:
            return ()
        self._inputs.become_idle(slot, check_now(now))
        for state in self._keys.states.values():
            state.leave(slot)
        return self._release()

    def revive(self, name: Name, now: int | None = None) -> tuple[Signal, ...]:
        """Make an idle or finished input active, without a row of it; calling it twice is no error.

        >>> merged = Coalescer(["p0", "p1"])
        >>> merged.finish("p0")
        ()
        >>> merged.revive("p0")
        ()
        >>> merged.watermark("p1", "order_time", 12)
        ()
        """
        slot = self._inputs.slot(name)
        if self._inputs.state[slot] == ACTIVE:
            return ()
        self._revive(slot, check_now(now))
        return self._advance_all()

    def finish(self, name: Name, now: int | None = None) -> tuple[Signal, ...]:
        """Ignore an input from now on: it has ended. Only `revive` brings it back.

        >>> merged = Coalescer(["p0", "p1"])
        >>> merged.watermark("p0", "order_time", 10)
        ()
        >>> merged.finish("p1")
        (Watermark(key='order_time', time=10),)
        """
        slot = self._inputs.live_slot(name)
        was_active = self._inputs.state[slot] == ACTIVE
        self._inputs.become_finished(slot, check_now(now))
        if was_active:
            for state in self._keys.states.values():
                state.leave(slot)
        return self._release()

    def add(self, name: Name, *, revived: Revived | None = None, now: int | None = None) -> None:
        """Add an input. It is active and has no watermark, so every key waits for it.

        `revived` overrides the coalescer's policy for this input.
        """
        slot = self._inputs.add(name, revived, check_now(now))
        for state in self._keys.states.values():
            if len(state.seen) < self._inputs.capacity:
                state.grow(self._inputs.capacity)
            state.join(slot, hold=True)
        self._is_idle = False

    def remove(self, name: Name) -> tuple[Signal, ...]:
        """Remove an input, and return the watermarks that it held back.

        >>> merged = Coalescer(["p0", "p1"])
        >>> merged.watermark("p0", "order_time", 10)
        ()
        >>> merged.remove("p1")
        (Watermark(key='order_time', time=10),)
        """
        slot = self._inputs.slot(name)
        was_active = self._inputs.state[slot] == ACTIVE
        self._inputs.remove(name)
        for state in self._keys.states.values():
            if was_active:
                state.leave(slot)
            state.forget(slot)
        return self._release()

    def drop_watermark(self, key: str) -> None:
        """Remove a key and ignore its watermarks from now on; they still make their input active.

        >>> merged = Coalescer(["p0", "p1"])
        >>> merged.drop_watermark("ship_time")
        >>> merged.watermark("p0", "ship_time", 5)
        ()
        >>> merged.keys
        ()
        """
        self._keys.drop(key)

    def current(self, key: str) -> int | None:
        """Return the last output watermark on `key`, or None.

        >>> Coalescer(["p0"], keys=["order_time"]).current("order_time") is None
        True
        """
        return self._keys.get(key).emitted

    def top(self, key: str) -> int | None:
        """Return the highest input watermark ever seen on `key`, or None."""
        return self._keys.get(key).top

    def state_of(self, name: Name) -> str:
        """Return the state of an input: "active", "idle" or "finished".

        >>> Coalescer(["p0"]).state_of("p0")
        'active'
        """
        return STATE_NAMES[self._inputs.state[self._inputs.slot(name)]]

    def since_of(self, name: Name) -> int | None:
        """Return when an input got its state, or None if that is not known."""
        return since_or_none(self._inputs.since[self._inputs.slot(name)])

    def last_of(self, name: Name, key: str) -> int | None:
        """Return the last watermark of an input on `key`, or None."""
        slot = self._inputs.slot(name)
        state = self._keys.states.get(key)
        return None if state is None else state.last_of(slot)

    @property
    def inputs(self) -> tuple[Name, ...]:
        """All inputs, finished ones included."""
        return self._inputs.names()

    @property
    def keys(self) -> tuple[str, ...]:
        """All keys that are merged."""
        return tuple(self._keys.states)

    @property
    def is_idle(self) -> bool:
        """Whether `IDLE` was the last output."""
        return self._is_idle

    @property
    def is_finished(self) -> bool:
        """Whether there are inputs and all of them have finished."""
        return len(self._inputs) > 0 and self._inputs.live == 0

    def partial_keys(self) -> dict[str, tuple[Name, ...]]:
        """Return {key: inputs that send other keys but not this one}, for keys with such inputs.

        >>> merged = Coalescer(["left", "right"])
        >>> _ = merged.watermark("left", "order_time", 10), merged.watermark("right", "ship_time", 10)
        >>> merged.partial_keys()
        {'order_time': ('right',), 'ship_time': ('left',)}
        """
        return {key: view.lacking for key, view in self.explain().keys.items() if view.lacking}

    def explain(self) -> Explanation:
        """Return for each key the last watermark of each input, which inputs hold the minimum, and since when.

        >>> merged = Coalescer(["p0", "p1"])
        >>> _ = merged.watermark("p0", "order_time", 10, now=500), merged.watermark("p1", "order_time", 30, now=700)
        >>> print(merged.explain())
        order_time: at 10, held by p0 since 500
          p0: active, at 10 since 500, holds
          p1: active, at 30 since 700
        """
        return Explanation(
            is_idle=self._is_idle,
            ignored=self._ignored,
            keys={key: explain_key(state, self._inputs, self._keys.states) for key, state in self._keys.states.items()},
        )

    def snapshot(self) -> Snapshot:
        """Return the state as JSON values.

        >>> merged = Coalescer(["p0", "p1"])
        >>> _ = merged.watermark("p0", "order_time", 10)
        >>> Coalescer.restore(merged.snapshot()).watermark("p1", "order_time", 12)
        (Watermark(key='order_time', time=10),)
        """
        return new_snapshot(
            "coalescer",
            not_rising=self._not_rising,
            revived=self._inputs.revived,
            only_declared=self._keys.is_closed,
            dropped=sorted(self._keys.dropped),
            is_idle=self._is_idle,
            ignored=self._ignored,
            inputs=self._inputs.save(),
            keys=[[key, state.save(self._inputs.slots().values())] for key, state in self._keys.states.items()],
        )

    @classmethod
    def restore(cls, snapshot: Snapshot, *, revived: Revived | None = None) -> "Coalescer":
        """Return a coalescer with the state of `snapshot`; `revived` replaces its policy for later revivals."""
        with open_snapshot(snapshot, "coalescer") as saved:
            merged = cls(revived=saved["revived"], not_rising=saved["not_rising"])
            if revived is not None:
                merged._inputs.revived = check_revived(revived)
            merged._inputs.load(saved["inputs"])
            for key, values in saved["keys"]:
                merged._keys.create(check_key(key)).load(
                    values, list(merged._inputs.slots().values()), merged._inputs.active_slots()
                )
            merged._keys.is_closed = bool(saved["only_declared"])
            merged._keys.dropped = {check_key(key) for key in saved["dropped"]}
            merged._is_idle = bool(saved["is_idle"])
            merged._ignored = check_number("ignored", saved["ignored"])
        return merged

    def _revive(self, slot: int, now: int | None) -> None:
        self._inputs.become_active(slot, now)
        self._is_idle = False
        hold = self._inputs.holds(slot)
        for state in self._keys.states.values():
            state.join(slot, hold=hold)

    def _check_rising(self, names: Sequence[Name], slots: Int64Array, key: str, times: Int64Array) -> NDArray[np.bool_]:
        """Return which times rise; with not_rising="fail" raise an error for the first that does not."""
        state = self._keys.states.get(key)
        rises = np.ones(len(slots), dtype=np.bool_) if state is None else state.rising(slots, times)
        if state is not None and self._not_rising == "fail" and not rises.all():
            first = int(np.argmin(rises))
            raise _not_rising_error(names[first], key, int(times[first]), state.values[slots[first]])
        return rises

    def _release(self) -> tuple[Signal, ...]:
        """Return the output after an input went idle, finished or was removed."""
        if not self._inputs.all_idle():
            return self._advance_all()
        if self._is_idle:
            return ()
        self._is_idle = True
        return (*(signal for state in self._keys.states.values() for signal in state.flush()), IDLE)

    def _advance_all(self) -> tuple[Signal, ...]:
        """Return the output on every key, after the set of inputs that take part has changed."""
        return tuple([signal for state in self._keys.states.values() for signal in state.advance()])


def _not_rising_error(name: Name, key: str, time: int, before: int) -> WatermarkNotRising:
    return WatermarkNotRising(
        f"The input {name!r} sent {time} on {key!r} after {before}.",
        rule="Watermarks of an input must rise strictly on each key.",
        remedy=f"Send only times above {before}, or create the coalescer with not_rising='ignore'.",
        input=name,
        key=key,
        time=time,
        before=before,
    )


def explain_key(state: KeyState, inputs: Inputs, keys: Mapping[str, KeyState]) -> KeyView:
    """Return the view of one key; `keys` shows which inputs send other keys."""
    holding = set(state.holders(inputs.active_slots()))
    views: list[InputView] = []
    lacking: list[Name] = []
    earliest = INT64_MAX
    for name, slot in inputs.slots().items():
        time = state.last_of(slot)
        since = since_or_none(inputs.since[slot] if time is None else state.since[slot])
        is_active = inputs.state[slot] == ACTIVE
        if slot in holding and since is not None:
            earliest = min(earliest, since)
        if is_active and time is None and any(other.seen[slot] for other in keys.values()):
            lacking.append(name)
        views.append(
            InputView(
                name=name,
                state=STATE_NAMES[inputs.state[slot]],
                time=time,
                since=since,
                left_out=bool(state.left_out[slot]),
                holds=slot in holding,
            )
        )
    return KeyView(
        key=state.key,
        watermark=state.emitted,
        top=state.top,
        holders=tuple(view.name for view in views if view.holds),
        since=None if earliest == INT64_MAX else earliest,
        lacking=tuple(lacking),
        inputs=tuple(views),
    )
