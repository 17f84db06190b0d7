"""The current tables of a home. The migrations create them; a test compares the two."""

from typing import Final

from sqlalchemy import BigInteger, Column, ForeignKey, MetaData, Table, Text

METADATA: Final = MetaData()

WATERMARK_INCARNATIONS: Final = Table(
    "watermark_incarnation",
    METADATA,
    Column("incarnation", Text, primary_key=True),
    Column("settings", Text, nullable=False),
    # No foreign key: a child may outlive its parent.
    Column("parent", Text),
    Column("parent_seq", BigInteger),
    Column("created_at", BigInteger, nullable=False),
)

WATERMARK_STEPS: Final = Table(
    "watermark_step",
    METADATA,
    Column("incarnation", Text, ForeignKey(WATERMARK_INCARNATIONS.c.incarnation), primary_key=True),
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("watermark", BigInteger),
    Column("snapshot", Text, nullable=False),
    Column("at", BigInteger, nullable=False),
)

WATERMARK_OBSERVATIONS: Final = Table(
    "watermark_observation",
    METADATA,
    Column("incarnation", Text, ForeignKey(WATERMARK_INCARNATIONS.c.incarnation), primary_key=True),
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("batch_id", BigInteger, primary_key=True, autoincrement=False),
    Column("statistics", Text, nullable=False),
    Column("at", BigInteger, nullable=False),
)

ORIGIN_DECISIONS: Final = Table(
    "origin_decision",
    METADATA,
    # The first incarnation of a chain of forks: a decision holds in all of them.
    Column("lineage", Text, primary_key=True),
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("origin", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("action", Text, nullable=False),
    Column("decided_by", Text, nullable=False),
    Column("at", BigInteger, nullable=False),
)

FRAME_PLACES: Final = Table(
    "frame_place",
    METADATA,
    Column("frame", Text, primary_key=True),
    Column("incarnation", Text, primary_key=True),
    Column("before", BigInteger),
    Column("after", BigInteger),
    Column("at", BigInteger, nullable=False),
)

BATCH_WATERMARKS: Final = Table(
    "batch_watermark",
    METADATA,
    Column("query_id", Text, primary_key=True),
    Column("frame", Text, primary_key=True),
    Column("column_name", Text, nullable=False),
    Column("run_id", Text, nullable=False),
    Column("batch_id", BigInteger, nullable=False),
    Column("before", BigInteger),
    Column("after", BigInteger),
)

QUERIES: Final = Table(
    "streaming_query",
    METADATA,
    Column("query_id", Text, primary_key=True),
    Column("run_id", Text, nullable=False),
    Column("name", Text),
    Column("batch_id", BigInteger, nullable=False),
    Column("incarnations", Text, nullable=False),
    Column("spark_watermark", BigInteger),
    Column("state", Text, nullable=False),
    Column("error", Text),
    Column("warnings", Text, nullable=False),
    Column("started_at", BigInteger, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
)

LEASES: Final = Table(
    "lease",
    METADATA,
    Column("name", Text, primary_key=True),
    # NULL once released. The row stays, because the token must keep rising.
    Column("owner", Text),
    Column("token", BigInteger, nullable=False),
    Column("ttl", BigInteger, nullable=False),
    Column("renewed_at", BigInteger, nullable=False),
)

MEMBERS: Final = Table(
    "member",
    METADATA,
    Column("name", Text, primary_key=True),
    Column("instance", Text, nullable=False),
    Column("ttl", BigInteger, nullable=False),
    Column("joined_at", BigInteger, nullable=False),
    Column("beat_at", BigInteger, nullable=False),
)

CHANGE_COUNTERS: Final = Table(
    "change",
    METADATA,
    Column("topic", Text, primary_key=True),
    Column("number", BigInteger, nullable=False),
)

TOKENS: Final = Table(
    "token",
    METADATA,
    Column("token_id", Text, primary_key=True),
    Column("secret_hash", Text, nullable=False),
    Column("label", Text, nullable=False),
    Column("scopes", Text, nullable=False),
    Column("prefixes", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger),
)
