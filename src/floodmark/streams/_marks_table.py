"""The marks log of a stream and key, as rows with an index by time."""

from typing import Any, Final

from sqlalchemy import Select, bindparam, func, select

from floodmark.control import Home
from floodmark.errors import UnknownName
from floodmark.streams._entries import EntryKind, MarkEntry
from floodmark.streams._mark_rows import entry_of
from floodmark.streams._schema import ENTRIES

_E: Final = ENTRIES.c
_HERE: Final = (_E.stream_id == bindparam("s"), _E.time_key == bindparam("k"))
_WATERMARKS: Final = select(ENTRIES).where(*_HERE, _E.kind == EntryKind.WATERMARK.value).limit(1)
_NEWEST: Final = _WATERMARKS.order_by(_E.lower.desc())
_LOWER_AT_MOST: Final = _NEWEST.where(_E.lower <= bindparam("t"))
_LOWER_AT_LEAST: Final = _WATERMARKS.where(_E.lower >= bindparam("t")).order_by(_E.lower)
_UPPER_AT_MOST: Final = _WATERMARKS.where(_E.upper <= bindparam("t")).order_by(_E.upper.desc(), _E.seq.desc())
# Two looks at the ends of the index; asked for together, SQLite would read all of it.
_ENDS: Final = select(
    select(func.min(_E.seq)).where(*_HERE).scalar_subquery().label("first"),
    select(func.max(_E.seq)).where(*_HERE).scalar_subquery().label("last"),
)
_ENTRY: Final = select(ENTRIES).where(*_HERE, _E.seq == bindparam("n"))
_PAGE: Final = select(ENTRIES).where(*_HERE, _E.seq > bindparam("after")).order_by(_E.seq).limit(bindparam("most"))


class MarksTable:
    """The entries of one stream and key; it finds what `cut_at` and its like ask for by an index."""

    __slots__ = ("_here", "_home")

    def __init__(self, home: Home, stream: int, key: str) -> None:
        """Read those of this stream and key."""
        self._home = home
        self._here = {"s": stream, "k": key}

    def newest(self) -> MarkEntry | None:
        """Return the last watermark."""
        return self._one(_NEWEST)

    def newest_with_lower_at_most(self, time: int) -> MarkEntry | None:
        """Return the last watermark whose `lower` is not above `time`."""
        return self._one(_LOWER_AT_MOST, t=time)

    def oldest_with_lower_at_least(self, time: int) -> MarkEntry | None:
        """Return the first watermark whose `lower` is not below `time`."""
        return self._one(_LOWER_AT_LEAST, t=time)

    def newest_with_upper_at_most(self, time: int) -> MarkEntry | None:
        """Return the last watermark whose `upper` is not above `time`."""
        return self._one(_UPPER_AT_MOST, t=time)

    def numbers(self) -> range:
        """Return the numbers of all entries that are kept."""
        with self._home.read() as connection:
            first, last = connection.execute(_ENDS, self._here).one()
        return range(0) if first is None else range(first, last + 1)

    def entry(self, number: int) -> MarkEntry:
        """Return the entry of that number."""
        found = self._one(_ENTRY, n=number)
        if found is None:
            raise UnknownName(
                f"The marks log has no entry {number}.",
                rule="Entries are kept as long as the stream's marks_retention says, the newest for ever.",
                remedy="Look at the entries that are kept.",
                number=number,
            )
        return found

    def page(self, after: int, most: int) -> list[MarkEntry]:
        """Return entries in their order, from behind a number on."""
        with self._home.read() as connection:
            return [entry_of(row) for row in connection.execute(_PAGE, {**self._here, "after": after, "most": most})]

    def _one(self, wanted: Select[Any], **values: int) -> MarkEntry | None:
        with self._home.read() as connection:
            row = connection.execute(wanted, {**self._here, **values}).one_or_none()
        return None if row is None else entry_of(row)
