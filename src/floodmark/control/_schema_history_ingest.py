"""The later steps of the schema of a home: what it keeps of ingestion."""

from typing import Final

from floodmark.control._migration import Migration

INGEST_MIGRATIONS: Final = (
    Migration(
        11,
        "jobs that read by watermark",
        (
            """
            CREATE TABLE ingest_job (
                name TEXT NOT NULL PRIMARY KEY,
                definition TEXT NOT NULL,
                created_at BIGINT NOT NULL,
                updated_at BIGINT NOT NULL
            )
            """,
            """
            CREATE TABLE ingest_unit (
                job TEXT NOT NULL,
                unit BIGINT NOT NULL,
                unit_key TEXT NOT NULL,
                known_from BIGINT,
                retired_at BIGINT,
                PRIMARY KEY (job, unit)
            )
            """,
            "CREATE UNIQUE INDEX ingest_unit_key ON ingest_unit (job, unit_key)",
            """
            CREATE TABLE ingest_range (
                job TEXT NOT NULL,
                unit BIGINT NOT NULL,
                kind TEXT NOT NULL,
                lo BIGINT NOT NULL,
                hi BIGINT NOT NULL,
                at BIGINT NOT NULL,
                PRIMARY KEY (job, unit, kind, lo)
            )
            """,
            """
            CREATE TABLE ingest_failure (
                job TEXT NOT NULL,
                unit BIGINT NOT NULL,
                lo BIGINT NOT NULL,
                hi BIGINT NOT NULL,
                attempts BIGINT NOT NULL,
                at BIGINT NOT NULL,
                error TEXT NOT NULL,
                PRIMARY KEY (job, unit, lo)
            )
            """,
            """
            CREATE TABLE ingest_run (
                job TEXT NOT NULL,
                run BIGINT NOT NULL,
                owner TEXT NOT NULL,
                token BIGINT NOT NULL,
                state TEXT NOT NULL,
                planned_at BIGINT NOT NULL,
                plan TEXT NOT NULL,
                started_at BIGINT NOT NULL,
                ended_at BIGINT,
                PRIMARY KEY (job, run)
            )
            """,
            """
            CREATE TABLE ingest_attempt (
                job TEXT NOT NULL,
                run BIGINT NOT NULL,
                unit BIGINT NOT NULL,
                lo BIGINT NOT NULL,
                hi BIGINT NOT NULL,
                reason TEXT NOT NULL,
                state TEXT NOT NULL,
                row_count BIGINT,
                took BIGINT,
                error TEXT NOT NULL,
                at BIGINT NOT NULL,
                PRIMARY KEY (job, run, unit, lo)
            )
            """,
            """
            CREATE TABLE ingest_event (
                job TEXT NOT NULL,
                event BIGINT NOT NULL,
                kind TEXT NOT NULL,
                actor TEXT NOT NULL,
                details TEXT NOT NULL,
                at BIGINT NOT NULL,
                PRIMARY KEY (job, event)
            )
            """,
            """
            CREATE TABLE ingest_lateness (
                job TEXT NOT NULL,
                days BIGINT NOT NULL,
                row_count BIGINT NOT NULL,
                PRIMARY KEY (job, days)
            )
            """,
        ),
    ),
)
