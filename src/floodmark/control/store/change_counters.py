"""Change counters: how a process learns cheaply that another has changed something.

PostgreSQL's LISTEN/NOTIFY has no counterpart in SQLite and loses notifications during a reconnect; a counter that has
moved stays moved.
"""

from collections.abc import Sequence
from threading import Lock
from typing import Final

from sqlalchemy import Connection, text

from floodmark._util.names import check_id
from floodmark.control.store.base import CounterReader, Store
from floodmark.errors import InvalidOption

_TOPICS: Final = "floodmark_changed_topics"
_INCREMENT: Final = text(
    "INSERT INTO change (topic, number) VALUES (:topic, 1) ON CONFLICT (topic) DO UPDATE SET number = change.number + 1"
)


def announce_change(connection: Connection, topic: str) -> None:
    """Raise the counter of a topic when the transaction of `Home.write` commits.

    >>> with Home.open() as home:
    ...     with home.write() as connection:
    ...         announce_change(connection, "stream/orders")
    ...     home.changes("stream/orders")
    {'stream/orders': 1}

    Several calls in one transaction raise the counter once.
    """
    topics: set[str] | None = connection.info.get(_TOPICS)
    if topics is None:
        raise InvalidOption(
            f"A change of {topic!r} was announced outside of a write transaction.",
            rule="The transaction that makes a change announces it.",
            remedy="Pass the connection of `with home.write() as connection:`, inside that block.",
            topic=topic,
        )
    topics.add(check_id("topic", topic))


class ChangeAnnouncer:
    """Raises the counters of the announced topics as the last statement of a transaction.

    Last, because it locks the topic until the commit; in topic order, to avoid deadlocks.
    """

    __slots__ = ("_connection", "_info", "_topics")

    def __init__(self, connection: Connection) -> None:
        """Collect the topics announced on this connection."""
        self._connection = connection
        self._info = connection.info
        self._topics: set[str] = set()
        self._info[_TOPICS] = self._topics

    def count(self) -> None:
        """Raise the counters."""
        if self._topics:
            self._connection.execute(_INCREMENT, [{"topic": topic} for topic in sorted(self._topics)])

    def end(self) -> None:
        """Stop collecting, before the connection returns to its pool."""
        self._info.pop(_TOPICS, None)


class ChangeCounters:
    """The change counters of a store; threads may share it."""

    __slots__ = ("_lock", "_reader", "_store")

    def __init__(self, store: Store) -> None:
        """Connect on the first read."""
        self._store = store
        self._lock = Lock()
        self._reader: CounterReader | None = None

    def read(self, topics: Sequence[str]) -> dict[str, int]:
        """Return the counters of these topics (0 for one without changes), or of all topics."""
        with self._lock, self._store.translate_errors():
            was_open = self._reader is not None
            try:
                counters = self._read_once(topics)
            except Exception:
                # An idle connection may have been dropped: reconnect once.
                if not was_open:
                    raise
                counters = self._read_once(topics)
            return {topic: counters.get(topic, 0) for topic in topics} if topics else dict(counters)

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            self._close()

    def _read_once(self, topics: Sequence[str]) -> dict[str, int]:
        if self._reader is None:
            self._reader = self._store.open_counter_reader()
        try:
            return self._reader.counters(topics)
        except BaseException:
            self._close()
            raise

    def _close(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None
