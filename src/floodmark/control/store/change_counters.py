"""How one process learns that another has changed something: counters that are cheap to read.

PostgreSQL could also call its listeners. SQLite cannot, and a call is lost on whoever is just reconnecting; a counter
that has moved stays moved.
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
    """Say inside of `Home.write` that something about a topic changes: its counter rises together with the change.

    >>> with Home.open() as home:
    ...     with home.write() as connection:
    ...         announce_change(connection, "stream/orders")
    ...     home.changes("stream/orders")
    {'stream/orders': 1}

    Said several times in one transaction it counts once.
    """
    topics: set[str] | None = connection.info.get(_TOPICS)
    if topics is None:
        raise InvalidOption(
            f"A change of {topic!r} was announced outside of a transaction that writes.",
            rule="A change is announced by the transaction that makes it.",
            remedy="Use the connection that Home.write gives, before it ends.",
            topic=topic,
        )
    topics.add(check_id("topic", topic))


class ChangeAnnouncer:
    """Counts, as the last thing in a transaction, what was announced in it.

    Last, because everybody who announces the same topic has to wait from there to the end; and in one order, because
    two who count in different orders would wait for each other.
    """

    __slots__ = ("_connection", "_info", "_topics")

    def __init__(self, connection: Connection) -> None:
        """Listen to what is announced by way of this connection."""
        self._connection = connection
        self._info = connection.info
        self._topics: set[str] = set()
        self._info[_TOPICS] = self._topics

    def count(self) -> None:
        """Count it."""
        if self._topics:
            self._connection.execute(_INCREMENT, [{"topic": topic} for topic in sorted(self._topics)])

    def end(self) -> None:
        """Listen no more. The connection goes back to a pool, and others get it."""
        self._info.pop(_TOPICS, None)


class ChangeCounters:
    """The counters of a store, for any number of threads that poll."""

    __slots__ = ("_lock", "_store", "_watch")

    def __init__(self, store: Store) -> None:
        """Connect when they are first asked for."""
        self._store = store
        self._lock = Lock()
        self._watch: CounterReader | None = None

    def read(self, topics: Sequence[str]) -> dict[str, int]:
        """Return the counters of these topics, 0 for one that never changed; or of all that ever changed."""
        with self._lock, self._store.explained():
            was_open = self._watch is not None
            try:
                counted = self._count(topics)
            except Exception:
                # The connection may have been idle for long, and its other end be gone.
                if not was_open:
                    raise
                counted = self._count(topics)
            return {topic: counted.get(topic, 0) for topic in topics} if topics else dict(counted)

    def close(self) -> None:
        """Let go of the connection."""
        with self._lock:
            self._close()

    def _count(self, topics: Sequence[str]) -> dict[str, int]:
        if self._watch is None:
            self._watch = self._store.watch()
        try:
            return self._watch.counters(topics)
        except BaseException:
            self._close()
            raise

    def _close(self) -> None:
        if self._watch is not None:
            self._watch.close()
            self._watch = None
