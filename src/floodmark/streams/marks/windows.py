"""Time windows: where a reader or a group is in time, from its position and the marks log."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from floodmark.errors import InvalidValue, UnknownSegment
from floodmark.streams.layout.layout import Layout
from floodmark.streams.layout.positions import Position, Standing, compare
from floodmark.streams.marks.log import EntryKind, MarkEntry, MarksIndex, count_while


@dataclass(frozen=True, slots=True)
class TimeWindow:
    """Every event that is read from here on has at least the time `lower`; no mark before here was above `upper`.

    >>> TimeWindow(100, None).is_near_tail
    True
    """

    lower: int | None
    upper: int | None

    def __post_init__(self) -> None:
        """Refuse a window that is upside down."""
        if self.lower is not None and self.upper is not None and self.upper < self.lower:
            raise InvalidValue(
                f"The window goes from {self.lower} to {self.upper}.",
                rule="The upper time is not below the lower one.",
                remedy="Swap them.",
                lower=self.lower,
                upper=self.upper,
            )

    @property
    def is_near_head(self) -> bool:
        """Whether no watermark has been passed yet."""
        return self.lower is None

    @property
    def is_near_tail(self) -> bool:
        """Whether all watermarks have been passed."""
        return self.upper is None


class NumberedEntries(Protocol):
    """What windows need of a marks log; see `MarksIndex`."""

    def numbers(self) -> range:
        """Return the numbers of all entries that are kept."""

    def entry(self, number: int) -> MarkEntry:
        """Return the entry of that number."""


class MovingWindow:
    """The window of one reader, or of a group whose position it is given; it never goes back.

    The position has the last read offset of every segment that is open to the group, assigned or not: so all its
    readers come to the same window. `place` is how far it has come in the marks log; kept in a checkpoint, a new
    one goes on from there.

    >>> log = MarksLog()
    >>> log.append(MarkEntry(1, EntryKind.WATERMARK, 5, 6, ("w",), {0: 4}, at=0))
    >>> log.append(MarkEntry(2, EntryKind.WATERMARK, 7, 8, ("w",), {0: 6}, at=1))
    >>> reader = MovingWindow(log)
    >>> reader.advance({0: 3}, Layout.create(1))
    TimeWindow(lower=None, upper=6)
    >>> reader.advance({0: 5}, Layout.create(1))
    TimeWindow(lower=5, upper=8)
    """

    __slots__ = ("_bound", "_index", "_newest")

    def __init__(self, index: NumberedEntries, place: int | None = None) -> None:
        """Begin before the first entry, or at `place`, the number of the newest entry that was passed before."""
        self._index = index
        self._newest = index.entry(place) if place is not None and place in index.numbers() else None
        self._bound: int | None = None

    @property
    def place(self) -> int | None:
        """The number of the newest entry that was passed, if any was."""
        return None if self._newest is None else self._newest.seq

    def advance(self, position: Position, layout: Layout) -> TimeWindow | None:
        """Return the window at a position; None where nothing is known: no marks, or all writers had gone.

        It looks only forward from where it is, in steps that double: at the end of the log that is a look or two,
        however long the log is.
        """
        numbers = self._index.numbers()
        known: dict[int, MarkEntry] = {}
        if numbers:
            self._move(numbers, known, position, layout)
        if self._newest is not None and self._newest.kind is EntryKind.UNKNOWN:
            return None
        lower = None if self._newest is None else self._newest.lower
        bound = self._bound
        upper = None
        if bound is not None and bound in numbers:
            upper = (known[bound] if bound in known else self._index.entry(bound)).upper
        return None if lower is None and upper is None else TimeWindow(lower, upper)

    def _move(self, numbers: range, known: dict[int, MarkEntry], position: Position, layout: Layout) -> None:
        """Find the newest entry passed and the first wholly ahead (or the last, if some are mixed): never back."""
        standings: dict[int, Standing] = {}

        if self._newest is not None:
            known[self._newest.seq] = self._newest

        def standing(number: int) -> Standing:
            if number not in standings:
                if number not in known:
                    known[number] = self._index.entry(number)
                standings[number] = compare(layout, position, known[number].cut)
            return standings[number]

        place = self.place
        start = numbers.start if place is None else max(place + 1, numbers.start)
        passed = _first_failing(range(start, numbers.stop), lambda number: standing(number) is Standing.PASSED)
        if self._bound is not None:
            # All before the last bound were begun then, and what is passed is begun.
            start = max(passed, min(self._bound, numbers.stop))
        elif place is not None and place in numbers and passed == place + 1:
            # Begun at a place that was stored, with a position that may lie behind it.
            start = place
        else:
            start = passed
        begun = _first_failing(range(start, numbers.stop), lambda number: standing(number) is not Standing.BEHIND)
        if passed - 1 in known:
            self._newest = known[passed - 1]
        self._bound = numbers.stop if passed == numbers.stop else min(begun, numbers.stop - 1)


def _first_failing(numbers: range, holds: Callable[[int], bool]) -> int:
    """Return the first number for which a condition fails, or the one behind the last; it fails for all after it.

    >>> asked = []
    >>> _first_failing(range(10, 1000), lambda number: asked.append(number) or number < 17)
    17
    >>> asked
    [10, 12, 16, 24, 20, 18, 17]
    """
    low, step = numbers.start, 1
    while low < numbers.stop and holds(probe := min(low + step, numbers.stop) - 1):
        low, step = probe + 1, step * 2
    high = min(low + step, numbers.stop) - 1
    return low + count_while(range(low, max(high, low)), holds)


_KEPT: Final = 256


class CachedMarks:
    """A marks log of which entries that were seen are kept, and the ends are those of the last `look`."""

    __slots__ = ("_entries", "_index", "_numbers")

    def __init__(self, index: MarksIndex) -> None:
        """Look at it now."""
        self._index = index
        self._entries: dict[int, MarkEntry] = {}
        self._numbers = index.numbers()

    def look(self) -> None:
        """See what is there now."""
        self._numbers = self._index.numbers()

    def numbers(self) -> range:
        """Return the numbers of the entries that were there at the last look."""
        return self._numbers

    def entry(self, number: int) -> MarkEntry:
        """Return the entry of that number; what it says never changes."""
        if number not in self._entries:
            if len(self._entries) >= _KEPT:
                self._entries.clear()
            self._entries[number] = self._index.entry(number)
        return self._entries[number]


class StreamWindow:
    """The window over one stream and key. `layout` gives the layout that is known, or, asked to, the newest."""

    __slots__ = ("_layout", "_window", "marks")

    def __init__(self, index: MarksIndex, place: int | None, layout: Callable[[bool], Layout]) -> None:
        """Begin at a place in the marks log."""
        self.marks = CachedMarks(index)
        self._window = MovingWindow(self.marks, place)
        self._layout = layout

    @property
    def place(self) -> int | None:
        """The newest entry that was passed."""
        return self._window.place

    def at(self, position: Position) -> TimeWindow | None:
        """Return the window at a position, with what the marks log says now."""
        self.marks.look()
        return self.advance(self._window, position)

    def advance(self, window: MovingWindow, position: Position) -> TimeWindow | None:
        """Move a window to a position; its marks, or the position, may name segments that are new here."""
        try:
            return window.advance(position, self._layout(False))
        except UnknownSegment:
            return window.advance(position, self._layout(True))
