"""Readers in different processes coordinate through the home: stops and inputs of a query, and alignment.

Spark separates the code that starts an exactly-once query, which knows where its batches must end, from the readers of
its sources, which know only their offsets. The query names the DataFrames that it reads; a reader that begins under
such a name registers its offsets, and can then read the stops that remain.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import uuid4

from sqlalchemy import delete, func, insert, select, update

from floodmark._util.codec import from_json, to_json
from floodmark.bindings.history import check_text
from floodmark.bindings.offsets import BatchStop, QueryInput, SourceOffset, position_key
from floodmark.bindings.tables import ALIGNMENTS, QUERIES, QUERY_INPUTS, QUERY_READERS
from floodmark.control import Home
from floodmark.control.store.base import upsert_row


@dataclass(frozen=True, slots=True)
class QueryReader:
    """One source of a query."""

    query: str
    key: str
    """The key of the reader in the positions of the query: see `position_key`."""
    first: SourceOffset
    """The offset at which it began."""


@dataclass(frozen=True, slots=True)
class QueryStops:
    """What a reader must know about its query."""

    key: str
    """The key of the reader in the positions of the query."""
    remaining: tuple[BatchStop, ...]
    """The stops that are not passed yet."""
    extra_empty_batch: bool
    """Whether to run one extra empty batch, so that windows closed by the last batch are emitted."""
    readers: int = 1
    """How many readers the query has."""


class QueryReaders:
    """The queries of a home whose readers must end batches at given stops.

    >>> with Home.open() as home:
    ...     readers = QueryReaders(home)
    ...     run = readers.announce("out", {"a1": 1}, [], extra_empty_batch=True)
    ...     readers.register("a1", "orders", SourceOffset("q", None, {}))
    ...     readers.find("q").query, readers.stops("q").extra_empty_batch, readers.find("r")
    ('out', True, None)
    """

    __slots__ = ("_home",)

    def __init__(self, home: Home) -> None:
        """Read and write the queries of `home`."""
        self._home = home

    def announce(
        self,
        query: str,
        names: Mapping[str, int],
        stops: Sequence[BatchStop],
        *,
        extra_empty_batch: bool,
        incarnations: Iterable[str] = (),
    ) -> str:
        """Announce a run of a query that is about to start, and return its id.

        Args:
            query: The name of the query's sink. Several processes may announce runs of it; each run has its own stops.
            names: The DataFrames whose readers will register, if the query begins; each with its number among those
                that read the same source.
            stops: Where batches of the run must end.
            extra_empty_batch: Whether readers run one more batch after the last rows.
            incarnations: The readers of the checkpoint, if the query resumes.
        """
        run = uuid4().hex
        row = {
            "run": run,
            "query": query,
            "names": to_json(dict(names), "names"),
            "stops": to_json([stop.save() for stop in stops], "stops"),
            "passed": 0,
            "settles": int(extra_empty_batch),
        }
        own = QUERY_READERS.c.query == query, QUERY_READERS.c.incarnation.in_(list(incarnations))
        earlier = select(QUERIES.c.run).where(QUERIES.c.query == query).order_by(QUERIES.c.announced_at.desc())
        with self._home.write() as connection:
            connection.execute(insert(QUERIES).values(**row, announced_at=self._home.now(connection)))
            connection.execute(update(QUERY_READERS).where(*own).values(run=run))
            old = connection.execute(earlier.offset(_RUNS_KEPT)).scalars().all()
            connection.execute(delete(QUERIES).where(QUERIES.c.run.in_(old)))
        return run

    def stop_expecting(self, run: str) -> None:
        """End registration: later readers of the same DataFrames belong to other runs."""
        with self._home.write() as connection:
            connection.execute(update(QUERIES).where(QUERIES.c.run == run).values(names="{}"))

    def register(self, name: str, source: str, first: SourceOffset) -> None:
        """Register the reader of a DataFrame with its first offset, if a query expects it."""
        with self._home.write() as connection:
            runs = connection.execute(select(QUERIES.c.run, QUERIES.c.query, QUERIES.c.names)).all()
            run = next((run for run in runs if name in from_json(run.names)), None)
            if run is not None:
                row = {
                    "incarnation": first.incarnation,
                    "query": run.query,
                    "source": position_key(source, from_json(run.names)[name]),
                    "name": name,
                    "first": to_json(first.save(), "offset"),
                    "run": run.run,
                }
                upsert_row(connection, QUERY_READERS, row)

    def names(self, run: str) -> set[str]:
        """Return the DataFrames whose readers have registered for a run."""
        with self._home.read() as connection:
            names = select(QUERY_READERS.c.name).where(QUERY_READERS.c.run == run)
            return set(connection.execute(names).scalars())

    def find(self, incarnation: str) -> QueryReader | None:
        """Return the reader with this incarnation; None if no query has one."""
        with self._home.read() as connection:
            reader = select(QUERY_READERS).where(QUERY_READERS.c.incarnation == incarnation)
            row = connection.execute(reader).one_or_none()
        return None if row is None else QueryReader(row.query, row.source, SourceOffset.load(from_json(row.first)))

    def stops(self, incarnation: str) -> QueryStops | None:
        """Return the remaining stops for the reader with this incarnation; None if no query has such a reader."""
        reader = (
            select(QUERY_READERS.c.source, QUERIES.c.stops, QUERIES.c.passed, QUERIES.c.settles, _COUNT_READERS)
            .join(QUERIES, QUERIES.c.run == QUERY_READERS.c.run)
            .where(QUERY_READERS.c.incarnation == incarnation)
        )
        with self._home.read() as connection:
            row = connection.execute(reader).one_or_none()
        if row is None:
            return None
        remaining = tuple(BatchStop.load(stop) for stop in from_json(row.stops)[row.passed :])
        return QueryStops(row.source, remaining, bool(row.settles), row.readers)

    def record_passed(self, run: str, count: int) -> None:
        """Record that the first `count` stops of a run are passed, so that its readers no longer wait there."""
        with self._home.write() as connection:
            connection.execute(update(QUERIES).where(QUERIES.c.run == run).values(passed=count))

    def forget(self, query: str) -> None:
        """Delete a query and its readers."""
        with self._home.write() as connection:
            for table in (QUERY_READERS, QUERIES):
                connection.execute(delete(table).where(table.c.query == query))


_OF_SAME_RUN: Final = QUERY_READERS.alias("of_same_run")
_COUNT_READERS: Final = (
    select(func.count()).where(_OF_SAME_RUN.c.run == QUERIES.c.run).scalar_subquery().label("readers")
)

_RUNS_KEPT: Final = 20
"""How many runs of a query are kept, since an earlier process may still be running."""

_SILENT_AFTER: Final = 60_000_000
"""A reader without a heartbeat for this many microseconds no longer holds back the others."""


class AlignedReaders:
    """The reported event-time progress of the readers of an alignment, in microseconds.

    >>> with Home.open() as home:
    ...     together = AlignedReaders(home, "orders and payments")
    ...     together.report("orders", 5_000, is_caught_up=False)
    ...     together.report("payments", 2_000, is_caught_up=False)
    ...     together.slowest_other("orders"), together.slowest_other("payments")
    (2000, 5000)
    """

    __slots__ = ("_home", "_name")

    def __init__(self, home: Home, name: str) -> None:
        """Use the alignment `name` of this home."""
        self._home = home
        self._name = check_text("alignment", name)

    def report(self, member: str, watermark: int | None, *, is_caught_up: bool) -> None:
        """Report the watermark of a reader, and whether it has read everything there is."""
        with self._home.write() as connection:
            now = self._home.now(connection)
            values = {"watermark": watermark, "is_caught_up": int(is_caught_up), "heard_at": now}
            upsert_row(connection, ALIGNMENTS, {"alignment": self._name, "member": member, **values})

    def slowest_other(self, member: str) -> int | None:
        """Return the lowest watermark of the other live readers that have unread rows; None if there is none."""
        others = ALIGNMENTS.c.alignment == self._name, ALIGNMENTS.c.member != member
        with self._home.read() as connection:
            now = self._home.now(connection)
            lagging = (*others, ALIGNMENTS.c.heard_at >= now - _SILENT_AFTER, ALIGNMENTS.c.is_caught_up == 0)
            rows = connection.execute(select(ALIGNMENTS).where(*lagging)).all()
        if any(row.heard_at > now for row in rows):
            # The clock was set back: a dead reader must not hold the others until it has caught up.
            self._home.rewind_times(ALIGNMENTS.c.heard_at, ALIGNMENTS.c.member)
        return min((row.watermark for row in rows if row.watermark is not None), default=None)


class QueryInputs:
    """Where the last batch of each query has ended in each of its inputs, for readers that must know the others.

    >>> a, b = SourceOffset("a", 2, {0: 7}, mark=Mark("at", 50)), SourceOffset("b", 1, {}, state="idle")
    >>> with Home.open() as home:
    ...     inputs = QueryInputs(home)
    ...     inputs.record("q1", [a.save(), b.save()])
    ...     inputs.others(b), inputs.others(a), inputs.others(replace(b, step=1))
    ([QueryInput(micros=50, is_left_out=False)], [QueryInput(micros=None, is_left_out=True)], None)
    """

    __slots__ = ("_home",)

    def __init__(self, home: Home) -> None:
        """Read and write the inputs of queries of `home`."""
        self._home = home

    def record(self, query: str, ends: Sequence[Mapping[str, Any]]) -> None:
        """Record where a batch has ended: the saved offsets of all inputs that have an incarnation."""
        with self._home.write() as connection:
            now = self._home.now(connection)
            connection.execute(delete(QUERY_INPUTS).where(QUERY_INPUTS.c.query == query))
            connection.execute(delete(QUERY_INPUTS).where(QUERY_INPUTS.c.at < now - _INPUTS_KEPT))
            rows = [
                {
                    "query": query,
                    "incarnation": str(end["incarnation"]),
                    "place": to_json(dict(end), "offset"),
                    "at": now,
                }
                for end in ends
            ]
            if rows:
                connection.execute(insert(QUERY_INPUTS), rows)

    def others(self, own: SourceOffset) -> list[QueryInput] | None:
        """Return the other inputs as they were when a batch ended at `own`; None if no such batch is recorded."""
        same_query = select(QUERY_INPUTS.c.query).where(QUERY_INPUTS.c.incarnation == own.incarnation)
        rows = select(QUERY_INPUTS.c.incarnation, QUERY_INPUTS.c.place).where(QUERY_INPUTS.c.query.in_(same_query))
        with self._home.read() as connection:
            places = {row.incarnation: from_json(row.place) for row in connection.execute(rows)}
        recorded = places.pop(own.incarnation, None)
        if recorded is None or SourceOffset.load(recorded) != own:
            return None
        return [_query_input(place) for place in places.values()]


_INPUTS_KEPT: Final = 30 * 86_400_000_000
"""How long the inputs of a query that no longer runs are kept, in microseconds."""


def _query_input(place: Mapping[str, Any]) -> QueryInput:
    if "cut" not in place:
        # The offset of a computed watermark, which handles idle origins itself.
        return QueryInput(place.get("watermark"))
    offset = SourceOffset.load(place)
    micros = None if offset.mark is None else offset.mark.micros
    return QueryInput(micros, is_left_out=offset.state not in (None, "active"))
