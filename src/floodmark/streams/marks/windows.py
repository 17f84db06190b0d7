"""Time windows: where a reader or a group is in event time, derived from its position and the marks log."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from floodmark._util.times import time_text
from floodmark.errors import InvalidValue, UnknownSegment
from floodmark.streams.layout.layout import Layout
from floodmark.streams.layout.positions import Position, Standing, compare_to_cut
from floodmark.streams.marks.log import EntryKind, MarkEntry, MarksIndex, count_while


@dataclass(frozen=True, slots=True)
class TimeWindow:
    """Bounds of the event time at a position: all later events are at or above `lower`, no earlier mark above `upper`.

    >>> TimeWindow(100, None).is_near_tail
    True
    """

    lower: int | None
    upper: int | None

    def __post_init__(self) -> None:
        """Refuse `upper` below `lower`."""
        if self.lower is not None and self.upper is not None and self.upper < self.lower:
            raise InvalidValue(
                f"The window goes from {self.lower} to {self.upper}.",
                rule="The upper time is not below the lower one.",
                remedy="Swap them.",
                lower=self.lower,
                upper=self.upper,
            )

    def __str__(self) -> str:
        """Return the bounds as text, times of our days as dates.

        >>> print(TimeWindow(1_700_000_000_000_000, None), TimeWindow(None, 6), sep="; ")
        from 2023-11-14 22:13:20 UTC; up to 6
        """
        bounds = {"from": self.lower, "up to": self.upper}
        return " ".join(f"{word} {time_text(time)}" for word, time in bounds.items() if time is not None) or "unknown"

    def __repr__(self) -> str:
        return f"TimeWindow({', '.join(f'{name}={_repr_of(getattr(self, name))}' for name in ('lower', 'upper'))})"

    @property
    def is_near_head(self) -> bool:
        """Whether no watermark has been passed yet."""
        return self.lower is None

    @property
    def is_near_tail(self) -> bool:
        """Whether all watermarks have been passed."""
        return self.upper is None


def _repr_of(time: int | None) -> str:
    """Return a number, with its date as a comment if it can be one."""
    text = time_text(time)
    return repr(time) if time is None or text == str(time) else f"{time} ({text})"


class NumberedEntries(Protocol):
    """The entries of a marks log by number; the subset of `MarksIndex` that windows need."""

    def numbers(self) -> range:
        """Return the numbers of all entries that are retained."""

    def entry_from(self, number: int) -> MarkEntry:
        """Return the first retained entry from that number on: retention may have deleted the entry itself."""


class MovingWindow:
    """The window of a group or of one reader, updated by its position. It never moves back.

    The position of a group has the offset of every segment that the group reads, assigned to a reader or not, so all
    readers of the group compute the same window. `place` is the number of the newest marks log entry that was
    passed, and `lower` what it stated; pass both to continue from there, also after retention deleted the entry.

    >>> log = MarksLog()
    >>> log.append(MarkEntry(1, EntryKind.WATERMARK, 5, 6, ("w",), {0: 4}, at=0))
    >>> log.append(MarkEntry(2, EntryKind.WATERMARK, 7, 8, ("w",), {0: 6}, at=1))
    >>> window = MovingWindow(log)
    >>> window.advance({0: 3}, Layout.create(1))
    TimeWindow(lower=None, upper=6)
    >>> window.advance({0: 5}, Layout.create(1))
    TimeWindow(lower=5, upper=8)
    """

    __slots__ = ("_bound", "_deleted", "_index", "_newest")

    def __init__(self, index: NumberedEntries, place: int | None = None, lower: int | None = None) -> None:
        """Start before the first entry, or at `place`, the number of the newest entry that was passed before."""
        self._index = index
        self._newest: MarkEntry | None = None
        self._deleted: tuple[int, int | None] | None = None
        """Number and `lower` of the stored place, if retention has deleted its entry."""
        self._bound: int | None = None
        if place is not None and place < index.numbers().stop:
            entry = index.entry_from(place)
            if entry.seq == place:
                self._newest = entry
            else:
                self._deleted = (place, lower)

    @property
    def place(self) -> int | None:
        """The number of the newest entry that was passed, or None."""
        if self._newest is not None:
            return self._newest.seq
        return None if self._deleted is None else self._deleted[0]

    @property
    def lower(self) -> int | None:
        """The least time of events that are still to be read; None if it is not known."""
        if self._newest is not None:
            return self._newest.window_lower
        return None if self._deleted is None else self._deleted[1]

    def advance(self, position: Position, layout: Layout) -> TimeWindow | None:
        """Return the window at a position; None without marks, or if all writers were closed or timed out there.

        The search only goes forward from the current entry, in doubling steps: near the end of the log it reads one or
        two entries, however long the log is.
        """
        numbers = self._index.numbers()
        entries: dict[int, MarkEntry] = {}
        if numbers:
            self._search(numbers, entries, position, layout)
        if self._newest is not None and self._newest.kind is EntryKind.UNKNOWN:
            return None
        lower, bound = self.lower, self._bound
        upper = None
        if bound is not None and bound in numbers:
            upper = (entries[bound] if bound in entries else self._index.entry_from(bound)).upper
        return None if lower is None and upper is None else TimeWindow(lower, upper)

    def _search(self, numbers: range, entries: dict[int, MarkEntry], position: Position, layout: Layout) -> None:
        """Find the newest entry that was passed, and the first that is entirely ahead (or the last entry).

        The entries that were read are added to `entries`, under the number they were read by: an entry that retention
        has deleted meanwhile is represented by the first one that is left.
        """
        standings: dict[int, Standing] = {}

        if self._newest is not None:
            entries[self._newest.seq] = self._newest

        def standing(number: int) -> Standing:
            if number not in standings:
                if number not in entries:
                    entries[number] = self._index.entry_from(number)
                standings[number] = compare_to_cut(layout, position, entries[number].cut)
            return standings[number]

        place = self.place
        start = numbers.start if place is None else max(place + 1, numbers.start)
        passed = _first_failing(range(start, numbers.stop), lambda number: standing(number) is Standing.PASSED)
        if self._bound is not None:
            # Entries before the previous bound are not ahead, and neither are passed ones: skip both.
            start = max(passed, min(self._bound, numbers.stop))
        elif self._newest is not None and place in numbers and passed == self._newest.seq + 1:
            # The window started at a stored place, and the position may still be behind it.
            start = self._newest.seq
        else:
            start = passed
        begun = _first_failing(range(start, numbers.stop), lambda number: standing(number) is not Standing.BEHIND)
        if standings.get(passed - 1) is Standing.PASSED:
            self._newest = entries[passed - 1]
            passed = self._newest.seq + 1
        self._bound = passed if passed >= numbers.stop else min(begun, numbers.stop - 1)


def _first_failing(numbers: range, holds: Callable[[int], bool]) -> int:
    """Return the first number for which a condition fails, or the end of the range.

    The condition must fail for all later numbers too. The search doubles its step, then bisects.

    >>> tried = []
    >>> _first_failing(range(10, 1000), lambda number: tried.append(number) or number < 17)
    17
    >>> tried
    [10, 12, 16, 24, 20, 18, 17]
    """
    low, step = numbers.start, 1
    while low < numbers.stop and holds(probe := min(low + step, numbers.stop) - 1):
        low, step = probe + 1, step * 2
    high = min(low + step, numbers.stop) - 1
    return low + count_while(range(low, max(high, low)), holds)


_CACHED_ENTRIES: Final = 256


class CachedMarks:
    """A marks log with a cache of its entries. New entries become visible on `refresh`."""

    __slots__ = ("_entries", "_index", "_numbers")

    def __init__(self, index: MarksIndex) -> None:
        """Cache this marks log."""
        self._index = index
        self._entries: dict[int, MarkEntry] = {}
        self._numbers = index.numbers()

    def refresh(self) -> None:
        """Make the entries visible that were appended since the last refresh."""
        self._numbers = self._index.numbers()

    def numbers(self) -> range:
        """Return the numbers of the entries at the last refresh."""
        return self._numbers

    def entry_from(self, number: int) -> MarkEntry:
        """Return the first entry from that number on; entries never change."""
        if number not in self._entries:
            if len(self._entries) >= _CACHED_ENTRIES:
                self._entries.clear()
            self._entries[number] = self._index.entry_from(number)
        return self._entries[number]


class StreamWindow:
    """The window over one stream and key. `layout(True)` reads the layout again, `layout(False)` may use a cache."""

    __slots__ = ("_layout", "_window", "marks")

    def __init__(
        self, index: MarksIndex, place: int | None, layout: Callable[[bool], Layout], lower: int | None = None
    ) -> None:
        """Start at `place` in the marks log with its `lower`, or before its first entry."""
        self.marks = CachedMarks(index)
        self._window = MovingWindow(self.marks, place, lower)
        self._layout = layout

    @property
    def place(self) -> int | None:
        """The number of the newest entry that was passed, or None."""
        return self._window.place

    @property
    def lower(self) -> int | None:
        """The watermark at that place, or None."""
        return self._window.lower

    def at(self, position: Position) -> TimeWindow | None:
        """Return the window at a position, after a refresh of the marks log."""
        self.marks.refresh()
        return self.advance(self._window, position)

    def advance(self, window: MovingWindow, position: Position) -> TimeWindow | None:
        """Move `window` to a position. If that names a segment the cached layout lacks, read the layout again."""
        try:
            return window.advance(position, self._layout(False))
        except UnknownSegment:
            return window.advance(position, self._layout(True))
