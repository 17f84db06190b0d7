"""The current tables of streams. The migrations of the home create them; a test compares the two."""

from typing import Final

from sqlalchemy import BigInteger, Column, Index, LargeBinary, Table, Text

from floodmark.control.tables import METADATA


def _stream_id() -> "Column[int]":
    # No foreign key: deleting a stream deletes its rows, and each write checks the row it updates.
    return Column("stream_id", BigInteger, primary_key=True, autoincrement=False)


STREAMS: Final = Table(
    "stream",
    METADATA,
    _stream_id(),
    Column("name", Text, nullable=False, unique=True),
    Column("bucket", BigInteger, nullable=False),
    Column("state", Text, nullable=False),
    Column("settings", Text, nullable=False),
    Column("layout", Text, nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("log", Text),
    Column("retains", BigInteger, nullable=False, server_default="0"),
)
"""`version` counts changes of settings, layout and state; `log` is the Kafka topic, NULL for events in the home.

`retains` is 1 if the settings have a retention of events.
"""

SEGMENTS: Final = Table(
    "stream_segment",
    METADATA,
    _stream_id(),
    Column("segment", BigInteger, primary_key=True, autoincrement=False),
    Column("end_offset", BigInteger, nullable=False),
    Column("sealed", BigInteger, nullable=False),
    Column("start_offset", BigInteger, nullable=False, server_default="0"),
    Column("bytes", BigInteger, nullable=False, server_default="0"),
)
"""`sealed` is 0 for open; 1 for sealed, with a final `end_offset`; 2 for being sealed, with the end not known yet.

Retention has removed the events before `start_offset`. `bytes` is the size of the events from there on, in the home.
"""

SEALINGS: Final = Table(
    "stream_sealing",
    METADATA,
    _stream_id(),
    Column("attempt", BigInteger, nullable=False),
    Column("layout", Text, nullable=False),
    Column("seals", BigInteger, nullable=False),
)
"""Seals in progress of streams in Kafka: the new layout, and whether the whole stream is sealed.

A process that takes a seal over increments `attempt`.
"""

SENT: Final = Table(
    "stream_sent",
    METADATA,
    _stream_id(),
    Column("writer", Text, primary_key=True),
    Column("position", Text, nullable=False),
    Column("first_number", BigInteger, nullable=False),
    Column("found", LargeBinary, nullable=False),
    Column("looked_by", Text, nullable=False),
)
"""For each writer to Kafka: its uncommitted events lie after `position`; those already in Kafka are in `found`.

`found` has a bit for each event from `first_number` on. `looked_by` is the process that scanned Kafka last and knows
of everything sent since.
"""

BATCHES: Final = Table(
    "stream_batch",
    METADATA,
    _stream_id(),
    Column("segment", BigInteger, primary_key=True, autoincrement=False),
    Column("first_offset", BigInteger, primary_key=True, autoincrement=False),
    Column("events", BigInteger, nullable=False),
    Column("writer", Text, nullable=False),
    Column("first_number", BigInteger, nullable=False),
    Column("body", LargeBinary, nullable=False),
    Column("checksum", BigInteger),
    Column("columns", BigInteger),
    Column("at", BigInteger),
)
"""Events, as Arrow record batches; `first_number` is the writer's number of the first event.

`columns` is the number of columns in `body`, and `at` when it was stored. Batches of earlier releases have neither, and
no checksum.
"""

WRITERS: Final = Table(
    "stream_writer",
    METADATA,
    _stream_id(),
    Column("writer", Text, primary_key=True),
    Column("instance", BigInteger, nullable=False),
    Column("next_number", BigInteger, nullable=False),
    Column("is_named", BigInteger, nullable=False),
    Column("touched_at", BigInteger, nullable=False),
)
"""All writers: the newest instance of each, and how many events it has written."""

KEYS: Final = Table(
    "stream_key",
    METADATA,
    _stream_id(),
    Column("time_key", Text, primary_key=True),
    Column("bucket", BigInteger, nullable=False),
    Column("writers_version", BigInteger, nullable=False),
    Column("last_seq", BigInteger, nullable=False),
    Column("last_lower", BigInteger),
    Column("changed", BigInteger, nullable=False),
)
"""The state of the watermark of each stream and key; `changed` counts the reports of its writers."""
Index("stream_key_bucket", KEYS.c.bucket)

MARKS: Final = Table(
    "stream_mark",
    METADATA,
    _stream_id(),
    Column("time_key", Text, primary_key=True),
    Column("writer", Text, primary_key=True),
    Column("state", Text, nullable=False),
    Column("heard_at", BigInteger, nullable=False),
    Column("time", BigInteger),
    Column("position", Text, nullable=False),
    Column("marked_since", BigInteger),
    Column("ahead_since", BigInteger),
    Column("set_aside", BigInteger, nullable=False),
    Column("version", BigInteger, nullable=False),
)

ENTRIES: Final = Table(
    "stream_entry",
    METADATA,
    _stream_id(),
    Column("time_key", Text, primary_key=True),
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("kind", Text, nullable=False),
    Column("lower", BigInteger),
    Column("upper", BigInteger),
    Column("writers", Text, nullable=False),
    Column("cut", Text, nullable=False),
    Column("at", BigInteger, nullable=False),
)
Index("stream_entry_lower", *(ENTRIES.c[name] for name in ("stream_id", "time_key", "kind", "lower", "seq")))
Index("stream_entry_upper", *(ENTRIES.c[name] for name in ("stream_id", "time_key", "kind", "upper", "seq")))

TRANSACTIONS: Final = Table(
    "stream_transaction",
    METADATA,
    _stream_id(),
    Column("transaction_id", Text, primary_key=True),
    Column("writer", Text, nullable=False),
    Column("instance", BigInteger, nullable=False),
    Column("state", Text, nullable=False),
    Column("reason", Text),
    Column("expires_at", BigInteger, nullable=False),
    Column("request", BigInteger),
    Column("time_key", Text),
    Column("time", BigInteger),
    Column("position", Text),
    Column("outcome", Text),
    Column("marks", Text),
)
"""`request` is the sequence number of a commit among those of its writer; `outcome` is the outcome of its mark.

`marks` holds the `CommitMarks` of a commit with several times or with the position of earlier events.
"""
Index("stream_transaction_writer", TRANSACTIONS.c.stream_id, TRANSACTIONS.c.writer, TRANSACTIONS.c.request)

TRANSACTION_BATCHES: Final = Table(
    "stream_transaction_batch",
    METADATA,
    _stream_id(),
    Column("transaction_id", Text, primary_key=True),
    Column("part", BigInteger, primary_key=True, autoincrement=False),
    Column("events", BigInteger, nullable=False),
    Column("points", LargeBinary, nullable=False),
    Column("body", LargeBinary, nullable=False),
    Column("checksum", BigInteger),
    Column("columns", BigInteger),
)
"""Staged events of uncommitted transactions; `points` are the positions of their keys in the key space."""

GROUPS: Final = Table(
    "reader_group",
    METADATA,
    Column("name", Text, primary_key=True),
    Column("group_id", BigInteger, nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("state", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
)
"""`version` counts changes of the state."""

ALL_TABLES: Final = (
    STREAMS,
    SEGMENTS,
    SEALINGS,
    SENT,
    BATCHES,
    WRITERS,
    KEYS,
    MARKS,
    ENTRIES,
    TRANSACTIONS,
    TRANSACTION_BATCHES,
)
"""The tables with rows of a stream, which are deleted with it."""
