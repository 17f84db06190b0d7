"""Readers in different processes coordinate through the home: stops of a query, and alignment in event time.

Spark separates the code that starts an exactly-once query, which knows where its batches must end, from the readers of
its sources, which know only their offsets. The query names the DataFrames that it reads; a reader that begins under
such a name registers its offsets, and is then told the stops that are not passed yet.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import delete, select, update

from floodmark._util.codec import from_json, to_json
from floodmark.bindings.history import check_text
from floodmark.bindings.offsets import BatchStop, SourceOffset
from floodmark.bindings.tables import ALIGNMENTS, QUERIES, QUERY_READERS
from floodmark.control import Home
from floodmark.control.store.base import upsert_row


@dataclass(frozen=True, slots=True)
class QueryReader:
    """One source of a query."""

    query: str
    source: str
    first: SourceOffset
    """Where it has begun."""


@dataclass(frozen=True, slots=True)
class QueryStops:
    """What a reader must know of its query."""

    source: str
    left: tuple[BatchStop, ...]
    """Where batches must end, of those that are not passed yet."""
    settles: bool
    """Whether an empty batch follows the last one, in which comes out what that has closed."""


class QueryReaders:
    """The queries of a home whose readers are told where to stop.

    >>> with Home.open() as home:
    ...     readers = QueryReaders(home)
    ...     readers.expect("out", ["a1"], [], settles=True)
    ...     readers.begin("a1", "orders", SourceOffset("q", None, {}))
    ...     readers.find("q").query, readers.stops("q").settles, readers.find("r")
    ('out', True, None)
    """

    __slots__ = ("_home",)

    def __init__(self, home: Home) -> None:
        """Keep them in this home."""
        self._home = home

    def expect(self, query: str, names: Iterable[str], stops: Sequence[BatchStop], *, settles: bool) -> None:
        """Say that a query is about to start, which DataFrames will begin to be read, and where it must stop."""
        row = {
            "query": query,
            "names": to_json(sorted(names), "names"),
            "stops": to_json([stop.save() for stop in stops], "stops"),
            "passed": 0,
            "settles": int(settles),
        }
        with self._home.write() as connection:
            upsert_row(connection, QUERIES, row)

    def begun(self, query: str) -> None:
        """Say that all have begun: who else reads the same DataFrames is another query."""
        with self._home.write() as connection:
            connection.execute(update(QUERIES).where(QUERIES.c.query == query).values(names="[]"))

    def begin(self, name: str, source: str, first: SourceOffset) -> None:
        """As a reader, say which offsets are of this DataFrame, if a query waits for it."""
        with self._home.write() as connection:
            rows = connection.execute(select(QUERIES.c.query, QUERIES.c.names)).all()
            query = next((row.query for row in rows if name in from_json(row.names)), None)
            if query is not None:
                row = {
                    "incarnation": first.incarnation,
                    "query": query,
                    "source": source,
                    "name": name,
                    "first": to_json(first.save(), "offset"),
                }
                upsert_row(connection, QUERY_READERS, row)

    def names(self, query: str) -> set[str]:
        """Return the DataFrames of a query that have ever begun to be read."""
        with self._home.read() as connection:
            wanted = select(QUERY_READERS.c.name).where(QUERY_READERS.c.query == query)
            return set(connection.execute(wanted).scalars())

    def find(self, incarnation: str) -> QueryReader | None:
        """Return whose offsets these are; None if no such query has begun with them."""
        with self._home.read() as connection:
            wanted = select(QUERY_READERS).where(QUERY_READERS.c.incarnation == incarnation)
            row = connection.execute(wanted).one_or_none()
        return None if row is None else QueryReader(row.query, row.source, SourceOffset.load(from_json(row.first)))

    def stops(self, incarnation: str) -> QueryStops | None:
        """Return what the reader with these offsets must know; None if it is of no such query."""
        wanted = (
            select(QUERY_READERS.c.source, QUERIES.c.stops, QUERIES.c.passed, QUERIES.c.settles)
            .join(QUERIES, QUERIES.c.query == QUERY_READERS.c.query)
            .where(QUERY_READERS.c.incarnation == incarnation)
        )
        with self._home.read() as connection:
            row = connection.execute(wanted).one_or_none()
        if row is None:
            return None
        left = tuple(BatchStop.load(stop) for stop in from_json(row.stops)[row.passed :])
        return QueryStops(row.source, left, bool(row.settles))

    def passed(self, query: str, count: int) -> None:
        """Say that so many of the stops are behind: nobody waits there any more."""
        with self._home.write() as connection:
            connection.execute(update(QUERIES).where(QUERIES.c.query == query).values(passed=count))

    def forget(self, query: str) -> None:
        """Forget a query and its readers."""
        with self._home.write() as connection:
            for table in (QUERY_READERS, QUERIES):
                connection.execute(delete(table).where(table.c.query == query))


_SILENT_AFTER: Final = 60_000_000
"""After so many microseconds a reader that says nothing is waited for no more."""


class AlignedReaders:
    """What the readers of an alignment have told of themselves, in microseconds of event time.

    >>> with Home.open() as home:
    ...     together = AlignedReaders(home, "orders and payments")
    ...     together.report("orders", 5_000, is_caught_up=False)
    ...     together.report("payments", 2_000, is_caught_up=False)
    ...     together.slowest_other("orders"), together.slowest_other("payments")
    (2000, 5000)
    """

    __slots__ = ("_home", "_name")

    def __init__(self, home: Home, name: str) -> None:
        """Speak in this home under a name that the readers share."""
        self._home = home
        self._name = check_text("alignment", name)

    def report(self, member: str, watermark: int | None, *, is_caught_up: bool) -> None:
        """Say how far a reader has come, and whether it has read all there is."""
        with self._home.write() as connection:
            now = self._home.now(connection)
            values = {"watermark": watermark, "is_caught_up": int(is_caught_up), "heard_at": now}
            upsert_row(connection, ALIGNMENTS, {"alignment": self._name, "member": member, **values})

    def slowest_other(self, member: str) -> int | None:
        """Return the lowest watermark of the other readers that have anything to read; None if there is none."""
        others = ALIGNMENTS.c.alignment == self._name, ALIGNMENTS.c.member != member
        with self._home.read() as connection:
            oldest = self._home.now(connection) - _SILENT_AFTER
            heard = (*others, ALIGNMENTS.c.heard_at >= oldest, ALIGNMENTS.c.is_caught_up == 0)
            found = connection.execute(select(ALIGNMENTS.c.watermark).where(*heard)).scalars().all()
        known = [watermark for watermark in found if watermark is not None]
        return min(known, default=None)
