"""What is known of the times in the partitions of topics, kept in the home. It only ever rises, whoever tells it."""

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import Connection, select

from floodmark.bindings._schema import TOPIC_TIMES
from floodmark.bindings._sources import find
from floodmark.control import Home
from floodmark.control.store.base import upsert_row


@dataclass(frozen=True, slots=True)
class Read:
    """The greatest event time in what was read of a partition, in microseconds, and how far it was read."""

    newest: int | None
    read_to: int


class TopicTimes:
    """The times of one source.

    >>> with Home.open() as home:
    ...     _ = Bindings(home).register("orders", kind="kafka", identity=1)
    ...     times = TopicTimes(home, "orders")
    ...     times.report({0: Read(70, 5)})
    ...     times.report({0: Read(50, 9)})
    ...     times.known()
    {0: Read(newest=70, read_to=9)}

    Whoever reads rows reports what it has seen. A task that runs again, or twice, says nothing new by that.
    """

    __slots__ = ("_home", "_source")

    def __init__(self, home: Home, source: str) -> None:
        """Keep them in this home."""
        self._home = home
        self._source = source

    def known(self) -> dict[int, Read]:
        """Return what was reported of each partition."""
        with self._home.read() as connection:
            return _known(connection, find(connection, self._source).source_id)

    def report(self, seen: Mapping[int, Read]) -> None:
        """Add what somebody has seen."""
        if not seen:
            return
        with self._home.write() as connection:
            # The lock keeps two who report from losing each other's word.
            source_id = find(connection, self._source, lock=True).source_id
            known, now = _known(connection, source_id), self._home.now(connection)
            for part, told in seen.items():
                merged = _merged(known.get(part), told)
                if merged != known.get(part):
                    values = {"newest": merged.newest, "read_to": merged.read_to, "moved_at": now}
                    upsert_row(connection, TOPIC_TIMES, {"source_id": source_id, "part": part, **values})


def _known(connection: Connection, source_id: int) -> dict[int, Read]:
    rows = connection.execute(select(TOPIC_TIMES).where(TOPIC_TIMES.c.source_id == source_id))
    return {row.part: Read(row.newest, row.read_to) for row in rows}


def _merged(known: Read | None, told: Read) -> Read:
    if known is None:
        return told
    times = [time for time in (known.newest, told.newest) if time is not None]
    return Read(max(times, default=None), max(known.read_to, told.read_to))
