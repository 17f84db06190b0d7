"""The later steps of the schema of a home: what it keeps of Kafka."""

from typing import Final

from floodmark.control._migration import Migration

KAFKA_MIGRATIONS: Final = (
    Migration(
        8,
        "streams whose events are in Kafka",
        (
            "ALTER TABLE stream ADD COLUMN log TEXT",
            """
            CREATE TABLE stream_sealing (
                stream_id BIGINT NOT NULL PRIMARY KEY,
                attempt BIGINT NOT NULL,
                layout TEXT NOT NULL,
                seals BIGINT NOT NULL
            )
            """,
            """
            CREATE TABLE stream_sent (
                stream_id BIGINT NOT NULL,
                writer TEXT NOT NULL,
                position TEXT NOT NULL,
                first_number BIGINT NOT NULL,
                found BLOB NOT NULL,
                looked_by TEXT NOT NULL,
                PRIMARY KEY (stream_id, writer)
            )
            """,
        ),
    ),
    Migration(
        9,
        "how far time has come in the partitions of topics",
        (
            """
            CREATE TABLE topic_time (
                source_id BIGINT NOT NULL,
                part BIGINT NOT NULL,
                newest BIGINT,
                read_to BIGINT NOT NULL,
                moved_at BIGINT NOT NULL,
                PRIMARY KEY (source_id, part)
            )
            """,
        ),
    ),
    Migration(
        10,
        "sinks that write exactly once",
        (
            """
            CREATE TABLE sink (
                name TEXT NOT NULL PRIMARY KEY,
                target TEXT NOT NULL,
                mode TEXT NOT NULL,
                version BIGINT NOT NULL,
                query_id TEXT,
                progress TEXT,
                created_at BIGINT NOT NULL,
                updated_at BIGINT NOT NULL
            )
            """,
        ),
    ),
)
