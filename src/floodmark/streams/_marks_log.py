"""Looking up a marks log: the place for a time, and the time at a place, each in O(log n)."""

import enum
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from floodmark._util.ints import check_int64
from floodmark.errors import InvalidValue
from floodmark.streams._cuts import check_cut
from floodmark.streams._entries import EntryKind, MarkEntry
from floodmark.streams._layout import Layout
from floodmark.streams._positions import Position, Standing, compare


class Whereabouts(enum.Enum):
    """Where in the log an answer was found."""

    INSIDE = "inside"
    """The answer is final."""
    BEFORE_FIRST = "before the first entry"
    """The place is the head of the stream."""
    AFTER_LAST = "after the last entry"
    """The log has not come there yet: later entries may give another answer. Wait, or take what there is."""


@dataclass(frozen=True, slots=True)
class Found:
    """The answer of the marks log. `entry` is None at the head, and where the log is too short to name one."""

    where: Whereabouts
    entry: MarkEntry | None = None

    @property
    def cut(self) -> Position | None:
        """The cut of the entry, if there is one."""
        return None if self.entry is None else self.entry.cut


class MarksIndex(Protocol):
    """What a marks log must be able to find quickly. Only watermarks are found by time."""

    def newest(self) -> MarkEntry | None:
        """Return the last watermark."""

    def newest_with_lower_at_most(self, time: int) -> MarkEntry | None:
        """Return the last watermark whose `lower` is not above `time`."""

    def oldest_with_lower_at_least(self, time: int) -> MarkEntry | None:
        """Return the first watermark whose `lower` is not below `time`."""

    def newest_with_upper_at_most(self, time: int) -> MarkEntry | None:
        """Return the last watermark whose `upper` is not above `time`."""

    def numbers(self) -> range:
        """Return the numbers (`seq`) of all entries that are kept, of every kind."""

    def entry(self, number: int) -> MarkEntry:
        """Return the entry of that number."""


class MarksLog:
    """A marks log in memory.

    >>> log = MarksLog()
    >>> for seq, lower in enumerate((100, 200, 300), start=1):
    ...     log.append(MarkEntry(seq, EntryKind.WATERMARK, lower, lower + 50, ("w",), {0: lower}, at=seq))
    >>> found = cut_at(log, 250)
    >>> found.where.value, found.cut
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
        """Add an entry; its number follows the last one, and a watermark rises."""
        follows = not self._all or entry.seq == self._all[-1].seq + 1
        is_watermark = entry.kind is EntryKind.WATERMARK and entry.lower is not None and entry.upper is not None
        rises = not is_watermark or not self._lowers or entry.lower > self._lowers[-1]  # type: ignore[operator]
        if not follows or not rises:
            raise InvalidValue(
                f"The entry {entry} does not follow {self._all[-1]}.",
                rule="Entries are numbered without gaps, and the lower time of watermarks rises strictly.",
                remedy="Read the log again and decide anew.",
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
        """Return the last watermark whose `lower` is not above `time`."""
        return self._at(bisect_right(self._lowers, time) - 1)

    def oldest_with_lower_at_least(self, time: int) -> MarkEntry | None:
        """Return the first watermark whose `lower` is not below `time`."""
        return self._at(bisect_left(self._lowers, time))

    def newest_with_upper_at_most(self, time: int) -> MarkEntry | None:
        """Return the last watermark whose `upper` is not above `time`."""
        return self._at(bisect_right(self._uppers, time) - 1)

    def numbers(self) -> range:
        """Return the numbers of all entries."""
        return range(self._all[0].seq, self._all[-1].seq + 1) if self._all else range(0)

    def entry(self, number: int) -> MarkEntry:
        """Return the entry of that number."""
        return self._all[number - self._all[0].seq]

    @property
    def last(self) -> MarkEntry | None:
        """The last entry of any kind: what the next decision is made on."""
        return self._all[-1] if self._all else None

    def _at(self, place: int) -> MarkEntry | None:
        return self._watermarks[place] if 0 <= place < len(self._watermarks) else None


def cut_at(index: MarksIndex, time: int) -> Found:
    """Return the place of a time: the newest watermark whose `lower` is not above it."""
    found, newest = index.newest_with_lower_at_most(check_int64(time, "time")), index.newest()
    if found is None or newest is None or newest.lower is None:
        return Found(Whereabouts.BEFORE_FIRST)
    return Found(Whereabouts.AFTER_LAST if time > newest.lower else Whereabouts.INSIDE, found)


def starting_at(index: MarksIndex, time: int) -> Found:
    """Return where to begin reading so as to miss no row from `time` on: the newest watermark wholly before it.

    Rows before `time` are read too, and filtered by their time.
    """
    found, newest = index.newest_with_upper_at_most(check_int64(time, "time")), index.newest()
    if found is None or newest is None or newest.upper is None:
        return Found(Whereabouts.BEFORE_FIRST)
    return Found(Whereabouts.AFTER_LAST if time > newest.upper else Whereabouts.INSIDE, found)


def ending_at(index: MarksIndex, time: int) -> Found:
    """Return where to end reading so as to have all rows below `time`: the first watermark that has come to it.

    >>> log = MarksLog([MarkEntry(1, EntryKind.WATERMARK, 100, 150, ("w",), {0: 7}, at=0)])
    >>> ending_at(log, 90).cut, ending_at(log, 101).where.value
    ({0: 7}, 'after the last entry')
    """
    found = index.oldest_with_lower_at_least(check_int64(time, "time"))
    return Found(Whereabouts.AFTER_LAST) if found is None else Found(Whereabouts.INSIDE, found)


def time_at(index: MarksIndex, cut: Position, layout: Layout) -> Found:
    """Return the newest entry, of any kind, that a cut has passed: how far time has come there.

    >>> log = MarksLog([MarkEntry(1, EntryKind.WATERMARK, 100, 150, ("w",), {0: 7}, at=0)])
    >>> time_at(log, {0: 6}, Layout.create(1)).where.value
    'before the first entry'
    >>> time_at(log, {0: 7}, Layout.create(1)).entry.lower
    100
    """
    place = check_cut(layout, cut)
    numbers = index.numbers()
    passed = count_while(numbers, lambda n: compare(layout, place, index.entry(n).cut) is Standing.PASSED)
    if not passed:
        return Found(Whereabouts.BEFORE_FIRST)
    where = Whereabouts.AFTER_LAST if passed == len(numbers) else Whereabouts.INSIDE
    return Found(where, index.entry(numbers[passed - 1]))


def count_while(numbers: range, holds: Callable[[int], bool]) -> int:
    """Return how many of `numbers` come before the first for which a condition fails; it fails for all after it.

    >>> count_while(range(10, 20), lambda number: number < 13)
    3
    """
    return bisect_left(numbers, True, key=lambda number: not holds(number))
