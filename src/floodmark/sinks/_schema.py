"""The table of sinks. How it came to be is in the migrations of the home; a test compares the two."""

from typing import Final

from sqlalchemy import BigInteger, Column, Table, Text

from floodmark.control.tables import METADATA

SINKS: Final = Table(
    "sink",
    METADATA,
    Column("name", Text, primary_key=True),
    Column("target", Text, nullable=False),
    Column("mode", Text, nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("query_id", Text),
    Column("progress", Text),
    Column("created_at", BigInteger, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
)
"""`progress` is a copy for those who ask: the record beside the rows is the truth."""

STREAM_SINKS: Final = Table(
    "stream_sink",
    METADATA,
    Column("sink", Text, primary_key=True),
    Column("stream_id", BigInteger, nullable=False),
    Column("fence", BigInteger, nullable=False),
    Column("progress", Text),
    Column("transaction_id", Text),
    Column("earlier", Text),
)
"""Of sinks that write to streams this is the truth: see `StreamRecords`."""
