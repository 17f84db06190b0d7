"""The marks log: its entries, and lookups of the cut of a time and the time of a cut, each in O(log n)."""

import enum
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from floodmark._util.codec import new_snapshot, open_snapshot
from floodmark._util.ints import check_int64
from floodmark.errors import InvalidValue
from floodmark.progress import Snapshot
from floodmark.streams.layout.layout import Layout
from floodmark.streams.layout.positions import Position, Standing, check_cut, compare, load_position, save_position


class EntryKind(enum.Enum):
    """What an entry says."""

    WATERMARK = "watermark"
    """Time has come to `lower`: past the cut, no writer that counted has an event below it."""
    IDLE = "idle"
    """All writers are idle. The watermark stands, and nobody need wait for this stream."""
    UNKNOWN = "unknown"
    """All writers have closed or timed out. The watermark stands, but nobody vouches for what comes."""


@dataclass(frozen=True, slots=True)
class MarkEntry:
    """One entry. `lower` and `upper` are the least and the greatest time of the marks behind it.

    `lower` rises strictly from watermark to watermark; `upper` and the cut never go back. Entries that are no
    watermark repeat the `lower` that stands (None if there never was one).

    >>> entry = MarkEntry(1, EntryKind.WATERMARK, lower=100, upper=102, writers=("w1", "w2"), cut={0: 20}, at=5)
    >>> print(entry)
    1: watermark 100 to 102 at {0: 20}, from w1, w2
    """

    seq: int
    kind: EntryKind
    lower: int | None
    upper: int | None
    writers: tuple[str, ...]
    """Who counted: the watermark is a promise of theirs."""
    cut: Position
    at: int
    """When it was written, by the clock of the store."""

    def __post_init__(self) -> None:
        """Refuse an entry whose times are upside down, or a watermark without any."""
        if self.lower is None or self.upper is None:
            is_wrong = self.kind is EntryKind.WATERMARK or self.lower is not None
        else:
            is_wrong = self.upper < self.lower
        if is_wrong:
            raise InvalidValue(
                f"An entry of kind {self.kind.value!r} has lower {self.lower} and upper {self.upper}.",
                rule="A watermark has both, and upper is not below lower.",
                remedy="Take entries from decide().",
                lower=self.lower,
                upper=self.upper,
            )

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
        """Return the entry that was saved."""
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
        """Return the entry in one line."""
        times = "" if self.lower is None else f" {self.lower} to {self.upper}"
        who = f", from {', '.join(self.writers)}" if self.writers else ""
        return f"{self.seq}: {self.kind.value}{times} at {dict(self.cut)}{who}"


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
