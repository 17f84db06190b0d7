"""The marks log: its entries, and lookups from time to cut and from cut to time, each in O(log n)."""

import enum
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from floodmark._util.codec import new_snapshot, open_snapshot
from floodmark._util.ints import check_int64
from floodmark._util.times import time_text
from floodmark.errors import InvalidValue, UnknownName
from floodmark.progress import Snapshot
from floodmark.streams.layout.layout import Layout
from floodmark.streams.layout.positions import (
    Position,
    Standing,
    check_cut,
    compare_to_cut,
    load_position,
    save_position,
)


class EntryKind(enum.Enum):
    """The kind of an entry of the marks log."""

    WATERMARK = "watermark"
    """Event time has reached `lower`: after the cut, no writer listed in the entry has an event below it."""
    IDLE = "idle"
    """All writers are idle. The watermark does not change, and readers need not wait for this stream."""
    UNKNOWN = "unknown"
    """All writers have closed or timed out. The watermark does not change, but later events may be below it."""


@dataclass(frozen=True, slots=True)
class MarkEntry:
    """One entry of the marks log. `lower` and `upper` are the least and greatest time of the marks it is based on.

    `lower` increases strictly from watermark to watermark; `upper` and the cut never go back. Entries of other kinds
    repeat the current `lower` (None if there is no watermark yet).

    >>> entry = MarkEntry(1, EntryKind.WATERMARK, lower=100, upper=102, writers=("w1", "w2"), cut={0: 20}, at=5)
    >>> print(entry)
    1: watermark 100 to 102 at {0: 20}, from w1, w2
    """

    seq: int
    kind: EntryKind
    lower: int | None
    upper: int | None
    writers: tuple[str, ...]
    """The writers whose marks the watermark is based on."""
    cut: Position
    at: int
    """When the entry was written, by the clock of the store."""

    def __post_init__(self) -> None:
        """Refuse a watermark without times, and `upper` below `lower`."""
        if self.lower is None or self.upper is None:
            is_invalid = self.kind is EntryKind.WATERMARK or self.lower is not None
        else:
            is_invalid = self.upper < self.lower
        if is_invalid:
            raise InvalidValue(
                f"An entry of kind {self.kind.value!r} has lower {self.lower} and upper {self.upper}.",
                rule="A watermark has both, and upper is not below lower.",
                remedy="Append only entries that decide_watermark() returned.",
                lower=self.lower,
                upper=self.upper,
            )

    @property
    def window_lower(self) -> int | None:
        """The least time of events after the cut; None if that is not known, as behind an UNKNOWN entry."""
        return None if self.kind is EntryKind.UNKNOWN else self.lower

    def save(self) -> Snapshot:
        """Return the entry as JSON values.

        >>> entry = MarkEntry(1, EntryKind.WATERMARK, 100, 102, ("w1",), {0: 20}, at=5)
        >>> MarkEntry.load(entry.save()) == entry
        True
        """
        return new_snapshot(
            "mark-entry",
            seq=self.seq,
            entry=self.kind.value,
            lower=self.lower,
            upper=self.upper,
            writers=list(self.writers),
            cut=save_position(self.cut),
            at=self.at,
        )

    @classmethod
    def load(cls, saved: Mapping[str, Any]) -> "MarkEntry":
        """Return the entry that `save` saved."""
        with open_snapshot(saved, "mark-entry") as state:
            return cls(
                seq=state["seq"],
                kind=EntryKind(state["entry"]),
                lower=state["lower"],
                upper=state["upper"],
                writers=tuple(state["writers"]),
                cut=load_position(state["cut"]),
                at=state["at"],
            )

    def __str__(self) -> str:
        """Return the entry as one line of text."""
        times = "" if self.lower is None else f" {time_text(self.lower)} to {time_text(self.upper)}"
        writers = f", from {', '.join(self.writers)}" if self.writers else ""
        return f"{self.seq}: {self.kind.value}{times} at {dict(self.cut)}{writers}"


class LookupStatus(enum.Enum):
    """Whether the marks log covers the time or cut that was looked up."""

    INSIDE = "inside"
    """The result is final."""
    BEFORE_FIRST = "before the first entry"
    """The result is the head of the stream."""
    AFTER_LAST = "after the last entry"
    """The log has not reached it yet: a later lookup may give another result. Wait, or use this one for now."""


@dataclass(frozen=True, slots=True)
class MarksLookup:
    """The result of a lookup in the marks log. `entry` is None before the first entry, and if none qualifies yet."""

    where: LookupStatus
    entry: MarkEntry | None = None

    @property
    def cut(self) -> Position | None:
        """The cut of the entry, or None without an entry."""
        return None if self.entry is None else self.entry.cut


class MarksIndex(Protocol):
    """Fast lookups in a marks log. Retention deletes its oldest entries, but not the newest watermark."""

    def newest(self) -> MarkEntry | None:
        """Return the last watermark."""

    def newest_with_lower_at_most(self, time: int) -> MarkEntry | None:
        """Return the last watermark with `lower` <= `time`."""

    def oldest_with_lower_at_least(self, time: int) -> MarkEntry | None:
        """Return the first entry of any kind with `lower` >= `time`.

        That is a watermark, or, if retention has deleted it, an entry that repeats it.
        """

    def newest_with_upper_at_most(self, time: int) -> MarkEntry | None:
        """Return the last watermark with `upper` <= `time`."""

    def numbers(self) -> range:
        """Return the numbers (`seq`) of all entries that are retained, of every kind."""

    def entry_from(self, number: int) -> MarkEntry:
        """Return the first retained entry from that number on, or raise `UnknownName`.

        It has a later number if retention has deleted the entry since `numbers` was read.
        """


class MarksLog:
    """A marks log in memory, for tests and examples.

    >>> log = MarksLog()
    >>> for seq, lower in enumerate((100, 200, 300), start=1):
    ...     log.append(MarkEntry(seq, EntryKind.WATERMARK, lower, lower + 50, ("w",), {0: lower}, at=seq))
    >>> lookup = cut_at(log, 250)
    >>> lookup.where.value, lookup.cut
    ('inside', {0: 200})
    """

    __slots__ = ("_all", "_lowers", "_uppers", "_watermarks")

    def __init__(self, entries: Iterable[MarkEntry] = ()) -> None:
        self._all: list[MarkEntry] = []
        self._watermarks: list[MarkEntry] = []
        self._lowers: list[int] = []
        self._uppers: list[int] = []
        for entry in entries:
            self.append(entry)

    def append(self, entry: MarkEntry) -> None:
        """Append an entry. Its number must follow the last one, and the `lower` of watermarks must increase."""
        follows = not self._all or entry.seq == self._all[-1].seq + 1
        is_watermark = entry.kind is EntryKind.WATERMARK and entry.lower is not None and entry.upper is not None
        increases = not is_watermark or not self._lowers or entry.lower > self._lowers[-1]  # type: ignore[operator]
        if not follows or not increases:
            raise InvalidValue(
                f"The entry {entry} does not follow {self._all[-1]}.",
                rule="Entries are numbered without gaps, and the lower time of watermarks increases strictly.",
                remedy="Read the log again and repeat decide_watermark().",
                seq=entry.seq,
            )
        self._all.append(entry)
        if entry.kind is EntryKind.WATERMARK and entry.lower is not None and entry.upper is not None:
            self._watermarks.append(entry)
            self._lowers.append(entry.lower)
            self._uppers.append(entry.upper)

    def newest(self) -> MarkEntry | None:
        """Return the last watermark."""
        return self._watermarks[-1] if self._watermarks else None

    def newest_with_lower_at_most(self, time: int) -> MarkEntry | None:
        """Return the last watermark with `lower` <= `time`."""
        return self._watermark_at(bisect_right(self._lowers, time) - 1)

    def oldest_with_lower_at_least(self, time: int) -> MarkEntry | None:
        """Return the first entry of any kind with `lower` >= `time`."""
        place = bisect_left(self._all, True, key=lambda entry: entry.lower is not None and entry.lower >= time)
        return self._all[place] if place < len(self._all) else None

    def newest_with_upper_at_most(self, time: int) -> MarkEntry | None:
        """Return the last watermark with `upper` <= `time`."""
        return self._watermark_at(bisect_right(self._uppers, time) - 1)

    def numbers(self) -> range:
        """Return the numbers of all entries."""
        return range(self._all[0].seq, self._all[-1].seq + 1) if self._all else range(0)

    def entry(self, number: int) -> MarkEntry:
        """Return the entry with that number, or raise `UnknownName`."""
        place = number - self._all[0].seq if self._all else -1
        if not 0 <= place < len(self._all):
            raise unknown_entry(number)
        return self._all[place]

    def entry_from(self, number: int) -> MarkEntry:
        """Return the first entry from that number on, or raise `UnknownName`."""
        return self.entry(max(number, self._all[0].seq) if self._all else number)

    @property
    def last(self) -> MarkEntry | None:
        """The last entry of any kind."""
        return self._all[-1] if self._all else None

    def _watermark_at(self, position: int) -> MarkEntry | None:
        return self._watermarks[position] if 0 <= position < len(self._watermarks) else None


def unknown_entry(number: int) -> UnknownName:
    """Return the error for the number of an entry that is not in a marks log."""
    return UnknownName(
        f"The marks log has no entry {number}.",
        rule="Entries older than the stream's marks_retention are deleted, up to the newest watermark.",
        remedy="Take a number from numbers(), or set a longer marks_retention with alter().",
        number=number,
    )


def cut_at(index: MarksIndex, time: int) -> MarksLookup:
    """Return the newest watermark with `lower` <= `time`."""
    # Read the newest first: an entry appended in between then makes the result provisional, not wrong.
    newest, entry = index.newest(), index.newest_with_lower_at_most(check_int64(time, "time"))
    if entry is None or newest is None or newest.lower is None:
        return MarksLookup(LookupStatus.BEFORE_FIRST)
    return MarksLookup(LookupStatus.AFTER_LAST if time > newest.lower else LookupStatus.INSIDE, entry)


def starting_at(index: MarksIndex, time: int) -> MarksLookup:
    """Return where to start reading to miss no row from `time` on: at the newest watermark with `upper` <= `time`.

    A reader that starts there also reads rows before `time`, and filters them by their time.
    """
    newest, entry = index.newest(), index.newest_with_upper_at_most(check_int64(time, "time"))
    if entry is None or newest is None or newest.upper is None:
        return MarksLookup(LookupStatus.BEFORE_FIRST)
    return MarksLookup(LookupStatus.AFTER_LAST if time > newest.upper else LookupStatus.INSIDE, entry)


def ending_at(index: MarksIndex, time: int) -> MarksLookup:
    """Return where to stop reading so that all rows below `time` were read: the first entry with `lower` >= `time`.

    >>> log = MarksLog([MarkEntry(1, EntryKind.WATERMARK, 100, 150, ("w",), {0: 7}, at=0)])
    >>> ending_at(log, 90).cut, ending_at(log, 101).where.value
    ({0: 7}, 'after the last entry')
    """
    entry = index.oldest_with_lower_at_least(check_int64(time, "time"))
    return MarksLookup(LookupStatus.AFTER_LAST) if entry is None else MarksLookup(LookupStatus.INSIDE, entry)


def time_at(index: MarksIndex, cut: Position, layout: Layout) -> MarksLookup:
    """Return the newest entry, of any kind, that a cut has passed: the event time reached at the cut.

    >>> log = MarksLog([MarkEntry(1, EntryKind.WATERMARK, 100, 150, ("w",), {0: 7}, at=0)])
    >>> time_at(log, {0: 6}, Layout.create(1)).where.value
    'before the first entry'
    >>> time_at(log, {0: 7}, Layout.create(1)).entry.lower
    100
    """
    position = check_cut(layout, cut)
    numbers = index.numbers()
    passed: list[MarkEntry] = []

    def is_passed(number: int) -> bool:
        entry = index.entry_from(number)
        # An entry with a segment that this layout lacks was written later than the layout was read.
        is_later = max(entry.cut) >= len(layout.segments)
        if is_later or compare_to_cut(layout, position, entry.cut) is not Standing.PASSED:
            return False
        passed.append(entry)
        return True

    count_while(numbers, is_passed)
    newest = max(passed, key=lambda entry: entry.seq, default=None)
    if newest is None:
        return MarksLookup(LookupStatus.BEFORE_FIRST)
    return MarksLookup(LookupStatus.AFTER_LAST if newest.seq >= numbers[-1] else LookupStatus.INSIDE, newest)


def count_while(numbers: range, holds: Callable[[int], bool]) -> int:
    """Return how many leading `numbers` satisfy a condition. Once it fails, it must fail for all later numbers.

    >>> count_while(range(10, 20), lambda number: number < 13)
    3
    """
    return bisect_left(numbers, True, key=lambda number: not holds(number))
