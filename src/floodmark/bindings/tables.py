"""The tables of timestamp bindings. The home's migrations create them; a test compares both."""

from typing import Final

from sqlalchemy import BigInteger, Column, Table, Text

from floodmark.control.tables import METADATA


def _source_id() -> "Column[int]":
    # No foreign key: every writer locks the source's row, and dropping a source deletes its rows in all tables.
    return Column("source_id", BigInteger, primary_key=True, autoincrement=False)


SOURCES: Final = Table(
    "binding_source",
    METADATA,
    _source_id(),
    Column("source", Text, nullable=False, unique=True),
    Column("kind", Text, nullable=False),
    Column("identity", Text, nullable=False),
    Column("tick", BigInteger, nullable=False),
    Column("compaction_window", BigInteger),
    Column("release_after", BigInteger),
    Column("origin", BigInteger, nullable=False),
    Column("since", BigInteger, nullable=False),
    Column("upper", BigInteger, nullable=False),
    Column("minted_at", BigInteger),
    Column("created_at", BigInteger, nullable=False),
)
"""`source_id` distinguishes a source from a dropped one of the same name; `minted_at` is by the store's clock."""

PAIRS: Final = Table(
    "binding_pair",
    METADATA,
    _source_id(),
    Column("ts", BigInteger, primary_key=True, autoincrement=False),
    Column("part", BigInteger, primary_key=True, autoincrement=False),
    Column("end_offset", BigInteger, nullable=False),
)
"""The end of each partition at a timestamp."""

FLOORS: Final = Table(
    "binding_floor",
    METADATA,
    _source_id(),
    Column("part", BigInteger, primary_key=True, autoincrement=False),
    Column("end_offset", BigInteger, nullable=False),
)
"""The end of each partition at the last timestamp below `since`, which compaction has removed.

A reader that holds `since` may continue inside that timestamp: retention of the source's events goes no further.
"""

WATERMARK_STEPS: Final = Table(
    "binding_watermark",
    METADATA,
    _source_id(),
    Column("ts", BigInteger, primary_key=True, autoincrement=False),
    Column("time_key", Text, primary_key=True),
    Column("watermark", BigInteger, nullable=False),
)
"""One row for each rise of a watermark; it holds until the next row."""

STATES: Final = Table(
    "binding_state",
    METADATA,
    _source_id(),
    Column("ts", BigInteger, primary_key=True, autoincrement=False),
    Column("state", BigInteger, nullable=False),
)
"""One row for each change of a source's state, as an index into `STATE_NAMES`; it holds until the next row."""

HOLDS: Final = Table(
    "binding_hold",
    METADATA,
    _source_id(),
    Column("holder", Text, primary_key=True),
    Column("kind", Text, nullable=False),
    Column("ts", BigInteger, nullable=False),
    Column("taken_at", BigInteger, nullable=False),
    Column("moved_at", BigInteger, nullable=False),
    Column("heard_at", BigInteger, nullable=False),
)

ALIGNMENTS: Final = Table(
    "binding_alignment",
    METADATA,
    Column("alignment", Text, primary_key=True),
    Column("member", Text, primary_key=True),
    Column("watermark", BigInteger),
    Column("is_caught_up", BigInteger, nullable=False),
    Column("heard_at", BigInteger, nullable=False),
)

TOPIC_TIMES: Final = Table(
    "topic_time",
    METADATA,
    _source_id(),
    Column("part", BigInteger, primary_key=True, autoincrement=False),
    Column("newest", BigInteger),
    Column("read_to", BigInteger, nullable=False),
    Column("moved_at", BigInteger, nullable=False),
)
"""For each partition of a topic: the greatest event time read, the offset read up to, and when either last changed."""

TABLES_BY_SOURCE: Final = (PAIRS, FLOORS, WATERMARK_STEPS, STATES, HOLDS, TOPIC_TIMES, SOURCES)

QUERIES: Final = Table(
    "bound_query",
    METADATA,
    Column("run", Text, primary_key=True),
    Column("query", Text, nullable=False),
    Column("names", Text, nullable=False),
    Column("stops", Text, nullable=False),
    Column("passed", BigInteger, nullable=False),
    Column("settles", BigInteger, nullable=False),
    Column("announced_at", BigInteger, nullable=False),
)
"""The runs of exactly-once queries. `query` is the name of the sink, `names` are the DataFrames whose readers have yet
to register."""

QUERY_READERS: Final = Table(
    "bound_query_reader",
    METADATA,
    Column("incarnation", Text, primary_key=True),
    Column("query", Text, nullable=False),
    Column("source", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("first", Text, nullable=False),
    Column("run", Text, nullable=False, server_default=""),
)
"""The readers of each query, the offset at which each began, and the last run that it belongs to."""

QUERY_INPUTS: Final = Table(
    "bound_query_input",
    METADATA,
    Column("query", Text, primary_key=True),
    Column("incarnation", Text, primary_key=True),
    Column("place", Text, nullable=False),
    Column("at", BigInteger, nullable=False),
)
"""Where the last batch of each query has ended in each input; only of queries with an input that does not hold the
watermark while it is idle."""
