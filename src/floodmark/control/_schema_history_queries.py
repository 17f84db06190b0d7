"""The steps of the schema that are about queries which write exactly once."""

from typing import Final

from floodmark.control._migration import Migration

QUERY_MIGRATIONS: Final = (
    Migration(
        12,
        "queries that are told where their batches end",
        (
            """
            CREATE TABLE bound_query (
                query TEXT NOT NULL PRIMARY KEY,
                names TEXT NOT NULL,
                stops TEXT NOT NULL,
                passed BIGINT NOT NULL,
                settles BIGINT NOT NULL
            )
            """,
            """
            CREATE TABLE bound_query_reader (
                incarnation TEXT NOT NULL PRIMARY KEY,
                query TEXT NOT NULL,
                source TEXT NOT NULL,
                name TEXT NOT NULL,
                first TEXT NOT NULL
            )
            """,
        ),
    ),
    Migration(
        13,
        "queries that write to streams",
        (
            "ALTER TABLE stream_transaction ADD COLUMN marks TEXT",
            """
            CREATE TABLE stream_sink (
                sink TEXT NOT NULL PRIMARY KEY,
                stream_id BIGINT NOT NULL,
                fence BIGINT NOT NULL,
                progress TEXT,
                transaction_id TEXT,
                earlier TEXT
            )
            """,
        ),
    ),
)
