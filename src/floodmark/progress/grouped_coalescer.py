"""Merging on two levels: first the inputs of each group (the queues of an edge), then the groups."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from floodmark._util.codec import Snapshot, new_snapshot, open_snapshot
from floodmark._util.names import Name, check_new_name
from floodmark.errors import InputFinished, UnknownInput
from floodmark.progress.coalescer import Coalescer, Explanation, NotRising
from floodmark.progress.coalescer_state import Revived
from floodmark.progress.signals import IDLE, Signal, check_key


@dataclass(frozen=True, slots=True)
class GroupSignals:
    """The output of one call: the signals within the group, then those of all groups merged."""

    group: Name
    within: tuple[Signal, ...] = ()
    merged: tuple[Signal, ...] = ()


class GroupedCoalescer:
    """Merges inputs within their group and groups with each other, by the rules of `Coalescer` on both levels.

    An operator with two edges needs the watermark of each edge and of both. A key that only one group sends is visible
    within that group, and never on the second level.

    >>> edges = GroupedCoalescer({"orders": ["q0", "q1"], "payments": ["q0"]})
    >>> edges.watermark("orders", "q0", "time", 10)
    GroupSignals(group='orders', within=(), merged=())
    >>> edges.watermark("orders", "q1", "time", 12)
    GroupSignals(group='orders', within=(Watermark(key='time', time=10),), merged=())
    >>> edges.watermark("payments", "q0", "time", 7).merged
    (Watermark(key='time', time=7),)

    A group is idle when all its inputs are, and finished when all its inputs have finished.
    """

    __slots__ = ("_dropped", "_groups", "_merged", "_not_rising", "_revived")

    def __init__(
        self,
        groups: Mapping[Name, Iterable[Name]],
        *,
        revived: Revived = "hold",
        not_rising: NotRising = "fail",
    ) -> None:
        """Merge the inputs of each group, and the groups."""
        self._revived = revived
        self._not_rising = not_rising
        self._dropped: list[str] = []
        self._merged = Coalescer(revived=revived)
        self._groups: dict[Name, Coalescer] = {}
        for group, inputs in groups.items():
            self.add_group(group, inputs)

    def watermark(self, group: Name, name: Name, key: str, time: int, now: int | None = None) -> GroupSignals:
        """Process a watermark of an input of a group."""
        return self._pass_on(group, self._group(group).watermark(name, key, time, now), now, is_active=True)

    def event(self, group: Name, name: Name, now: int | None = None) -> GroupSignals:
        """Note a row of an input of a group, which makes both active."""
        return self._pass_on(group, self._group(group).event(name, now), now, is_active=True)

    def idle(self, group: Name, name: Name, now: int | None = None) -> GroupSignals:
        """Ignore an input until it sends something again.

        >>> GroupedCoalescer({"orders": ["q0"]}).idle("orders", "q0").merged
        (IDLE,)
        """
        return self._pass_on(group, self._group(group).idle(name, now), now)

    def finish(self, group: Name, name: Name, now: int | None = None) -> GroupSignals:
        """Ignore an input for good."""
        return self._pass_on(group, self._group(group).finish(name, now), now)

    def add(self, group: Name, name: Name, now: int | None = None) -> GroupSignals:
        """Add an input to a group that has not finished, which makes the group active."""
        inner = self._group(group)
        if inner.is_finished:
            raise InputFinished(
                f"All inputs of the group {group!r} have finished, so {name!r} cannot be added.",
                rule="A finished group sends nothing more.",
                remedy="Add the input before the last one finishes, or add a new group.",
                input=group,
            )
        inner.add(name, now=now)
        return self._pass_on(group, (), now, is_active=True)

    def remove(self, group: Name, name: Name, now: int | None = None) -> GroupSignals:
        """Remove an input of a group. A group without inputs holds back the others until it gets one or is removed."""
        return self._pass_on(group, self._group(group).remove(name), now)

    def add_group(self, group: Name, inputs: Iterable[Name], now: int | None = None) -> None:
        """Add a group with its inputs."""
        inner = Coalescer(inputs, revived=self._revived, not_rising=self._not_rising)
        for key in self._dropped:
            inner.drop_watermark(key)
        check_new_name(group, "group", self._groups)
        self._merged.add(group, now=now)
        self._groups[group] = inner

    def remove_group(self, group: Name) -> GroupSignals:
        """Remove a group, and return the watermarks that it held back.

        >>> edges = GroupedCoalescer({"orders": ["q0"], "payments": ["q0"]})
        >>> _ = edges.watermark("orders", "q0", "time", 10)
        >>> edges.remove_group("payments").merged
        (Watermark(key='time', time=10),)
        """
        self._group(group)
        del self._groups[group]
        return GroupSignals(group, (), self._merged.remove(group))

    def drop_watermark(self, key: str) -> None:
        """Remove a key on both levels and ignore it from now on."""
        self._merged.drop_watermark(key)
        self._dropped.append(key)
        for inner in self._groups.values():
            inner.drop_watermark(key)

    def current(self, key: str) -> int | None:
        """Return the last merged watermark on `key`, or None."""
        return self._merged.current(key)

    @property
    def is_idle(self) -> bool:
        """Whether all groups are idle."""
        return self._merged.is_idle

    def partial_keys(self) -> dict[str, tuple[Name, ...]]:
        """Return {key: groups that send other keys but not this one}, for keys with such groups.

        >>> edges = GroupedCoalescer({"orders": ["q0"], "payments": ["q0"]})
        >>> _ = edges.watermark("orders", "q0", "order_time", 1), edges.watermark("payments", "q0", "pay_time", 1)
        >>> edges.partial_keys()
        {'order_time': ('payments',), 'pay_time': ('orders',)}
        """
        return self._merged.partial_keys()

    def explain(self) -> Explanation:
        """Return for each key the last watermark of each group, which groups hold the minimum, and since when."""
        return self._merged.explain()

    def explain_group(self, group: Name) -> Explanation:
        """Return the same for the inputs of one group."""
        return self._group(group).explain()

    def snapshot(self) -> Snapshot:
        """Return the state as JSON values."""
        return new_snapshot(
            "grouped-coalescer",
            revived=self._revived,
            not_rising=self._not_rising,
            dropped=list(self._dropped),
            merged=self._merged.snapshot(),
            groups=[[group, inner.snapshot()] for group, inner in self._groups.items()],
        )

    @classmethod
    def restore(cls, snapshot: Snapshot) -> "GroupedCoalescer":
        """Return a coalescer with the state of `snapshot`."""
        with open_snapshot(snapshot, "grouped-coalescer") as saved:
            restored = cls({}, revived=saved["revived"], not_rising=saved["not_rising"])
            restored._merged = Coalescer.restore(saved["merged"])
            restored._groups = {group: Coalescer.restore(inner) for group, inner in saved["groups"]}
            if restored._groups.keys() != set(restored._merged.inputs):
                raise ValueError(f"it has the groups {list(restored._groups)}, and merges {restored._merged.inputs}")
            restored._dropped = [check_key(key) for key in saved["dropped"]]
        return restored

    def _group(self, group: Name) -> Coalescer:
        inner = self._groups.get(group)
        if inner is None:
            raise UnknownInput(
                f"There is no group {group!r}.",
                rule="A group must be added before its inputs are used.",
                remedy=f"Call add_group({group!r}, ...) first, or check the name.",
                input=group,
            )
        return inner

    def _pass_on(
        self, group: Name, within: tuple[Signal, ...], now: int | None, *, is_active: bool = False
    ) -> GroupSignals:
        merged: list[Signal] = []
        for signal in within:
            if signal is IDLE:
                merged += self._merged.idle(group, now)
            else:
                merged += self._merged.watermark(group, signal.key, signal.time, now)
        if is_active:
            merged += self._merged.event(group, now)
        if self._groups[group].is_finished and self._merged.state_of(group) != "finished":
            merged += self._merged.finish(group, now)
        return GroupSignals(group, within, tuple(merged))
