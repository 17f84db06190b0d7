"""How a query that writes exactly once and the readers of its sources find each other, though Spark parts them.

Whoever starts the query knows where its batches must end; a reader, in another process, knows only its offsets. So
both meet in the home. What is started names the DataFrames that it reads; a reader that begins under such a name says
which offsets are its own; and from there on it is told the stops, until they are passed.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sqlalchemy import delete, select, update

from floodmark._util.codec import from_json, to_json
from floodmark.bindings._places import Stop
from floodmark.bindings._schema import QUERIES, QUERY_READERS
from floodmark.bindings._source_offset import SourceOffset
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
    left: tuple[Stop, ...]
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

    def expect(self, query: str, names: Iterable[str], stops: Sequence[Stop], *, settles: bool) -> None:
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
        left = tuple(Stop.load(stop) for stop in from_json(row.stops)[row.passed :])
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
