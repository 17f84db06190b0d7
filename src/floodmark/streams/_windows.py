"""Time windows: where a reader is in time, from its position and the marks log."""

from dataclasses import dataclass

from floodmark.errors import InvalidValue
from floodmark.streams._entries import EntryKind
from floodmark.streams._layout import Layout
from floodmark.streams._marks_log import MarksIndex, count_while
from floodmark.streams._positions import Position, Standing, compare


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


class WindowReader:
    """The window of one reader, or of a group whose position it is given; it never goes back.

    The position has the last read offset of every segment that is open to the group, assigned or not: so all its
    readers come to the same window. `place` is how far it has come in the marks log; kept in a checkpoint, a new
    one goes on from there.

    >>> log = MarksLog()
    >>> log.append(MarkEntry(1, EntryKind.WATERMARK, 5, 6, ("w",), {0: 4}, at=0))
    >>> log.append(MarkEntry(2, EntryKind.WATERMARK, 7, 8, ("w",), {0: 6}, at=1))
    >>> reader = WindowReader(log)
    >>> reader.advance({0: 3}, Layout.create(1))
    TimeWindow(lower=None, upper=6)
    >>> reader.advance({0: 5}, Layout.create(1))
    TimeWindow(lower=5, upper=8)
    """

    __slots__ = ("_bound", "_index", "_newest")

    def __init__(self, index: MarksIndex, place: int | None = None) -> None:
        """Begin before the first entry, or at `place`, the number of the newest entry that was passed before."""
        self._index = index
        self._newest = index.entry(place) if place is not None and place in index.numbers() else None
        self._bound: int | None = None

    @property
    def place(self) -> int | None:
        """The number of the newest entry that was passed, if any was."""
        return None if self._newest is None else self._newest.seq

    def advance(self, position: Position, layout: Layout) -> TimeWindow | None:
        """Return the window at a position; None where nothing is known: no marks, or all writers had gone."""
        numbers = self._index.numbers()
        if numbers:
            self._move(numbers, {}, position, layout)
        if self._newest is not None and self._newest.kind is EntryKind.UNKNOWN:
            return None
        lower = None if self._newest is None else self._newest.lower
        bound = self._bound
        upper = self._index.entry(bound).upper if bound is not None and bound in numbers else None
        return None if lower is None and upper is None else TimeWindow(lower, upper)

    def _move(self, numbers: range, known: dict[int, Standing], position: Position, layout: Layout) -> None:
        """Find the newest entry passed and the first wholly ahead (or the last, if some are mixed): never back."""

        def standing(number: int) -> Standing:
            if number not in known:
                known[number] = compare(layout, position, self._index.entry(number).cut)
            return known[number]

        passed = count_while(numbers, lambda number: standing(number) is Standing.PASSED)
        begun = count_while(numbers, lambda number: standing(number) is not Standing.BEHIND)
        if passed and (self._newest is None or numbers[passed - 1] > self._newest.seq):
            self._newest = self._index.entry(numbers[passed - 1])
        is_at_end = passed == len(numbers)
        bound = numbers[-1] + 1 if is_at_end else numbers[min(begun, len(numbers) - 1)]
        self._bound = bound if self._bound is None else max(self._bound, bound)
