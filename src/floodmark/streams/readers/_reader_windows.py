"""The windows of a reader: one for each stream and key, over marks logs that are looked at as rarely as can be."""

from collections.abc import Callable
from typing import Final

from floodmark.errors import UnknownSegment
from floodmark.streams._entries import MarkEntry
from floodmark.streams._layout import Layout
from floodmark.streams._marks_log import MarksIndex
from floodmark.streams._positions import Position
from floodmark.streams._windows import TimeWindow, WindowReader

_KEPT: Final = 256


class SeenMarks:
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
        self.marks = SeenMarks(index)
        self._window = WindowReader(self.marks, place)
        self._layout = layout

    @property
    def place(self) -> int | None:
        """The newest entry that was passed."""
        return self._window.place

    def at(self, position: Position) -> TimeWindow | None:
        """Return the window at a position, with what the marks log says now."""
        self.marks.look()
        return self.advance(self._window, position)

    def advance(self, window: WindowReader, position: Position) -> TimeWindow | None:
        """Move a window to a position; its marks, or the position, may name segments that are new here."""
        try:
            return window.advance(position, self._layout(False))
        except UnknownSegment:
            return window.advance(position, self._layout(True))
