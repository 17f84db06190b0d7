"""All schema migrations, in order. A released migration is never changed."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Migration:
    """One migration: its number, its title, and statements that SQLite and PostgreSQL both understand."""

    number: int
    about: str
    statements: tuple[str, ...]


MIGRATIONS: Final = (
    Migration(
        1,
        "computed watermarks and the queries that use them",
        (
            """
            CREATE TABLE watermark_incarnation (
                incarnation TEXT NOT NULL PRIMARY KEY,
                settings TEXT NOT NULL,
                parent TEXT,
                parent_seq BIGINT,
                created_at BIGINT NOT NULL
            )
            """,
            """
            CREATE TABLE watermark_step (
                incarnation TEXT NOT NULL REFERENCES watermark_incarnation (incarnation),
                seq BIGINT NOT NULL,
                watermark BIGINT,
                snapshot TEXT NOT NULL,
                at BIGINT NOT NULL,
                PRIMARY KEY (incarnation, seq)
            )
            """,
            """
            CREATE TABLE watermark_observation (
                incarnation TEXT NOT NULL REFERENCES watermark_incarnation (incarnation),
                seq BIGINT NOT NULL,
                batch_id BIGINT NOT NULL,
                statistics TEXT NOT NULL,
                at BIGINT NOT NULL,
                PRIMARY KEY (incarnation, seq, batch_id)
            )
            """,
            """
            CREATE TABLE streaming_query (
                query_id TEXT NOT NULL PRIMARY KEY,
                run_id TEXT NOT NULL,
                name TEXT,
                batch_id BIGINT NOT NULL,
                incarnations TEXT NOT NULL,
                spark_watermark BIGINT,
                state TEXT NOT NULL,
                error TEXT,
                warnings TEXT NOT NULL,
                started_at BIGINT NOT NULL,
                updated_at BIGINT NOT NULL
            )
            """,
        ),
    ),
    Migration(
        2,
        "the watermark under which each batch judges its rows",
        (
            """
            CREATE TABLE frame_place (
                frame TEXT NOT NULL,
                incarnation TEXT NOT NULL,
                before BIGINT,
                after BIGINT,
                at BIGINT NOT NULL,
                PRIMARY KEY (frame, incarnation)
            )
            """,
            """
            CREATE TABLE batch_watermark (
                query_id TEXT NOT NULL,
                frame TEXT NOT NULL,
                column_name TEXT NOT NULL,
                run_id TEXT NOT NULL,
                batch_id BIGINT NOT NULL,
                before BIGINT,
                after BIGINT,
                PRIMARY KEY (query_id, frame)
            )
            """,
        ),
    ),
    Migration(
        3,
        "leases, members and counters of changes",
        (
            """
            CREATE TABLE lease (
                name TEXT NOT NULL PRIMARY KEY,
                owner TEXT,
                token BIGINT NOT NULL,
                ttl BIGINT NOT NULL,
                renewed_at BIGINT NOT NULL
            )
            """,
            """
            CREATE TABLE member (
                name TEXT NOT NULL PRIMARY KEY,
                instance TEXT NOT NULL,
                ttl BIGINT NOT NULL,
                joined_at BIGINT NOT NULL,
                beat_at BIGINT NOT NULL
            )
            """,
            """
            CREATE TABLE change (
                topic TEXT NOT NULL PRIMARY KEY,
                number BIGINT NOT NULL
            )
            """,
        ),
    ),
    Migration(
        4,
        "streams",
        (
            """
            CREATE TABLE stream (
                stream_id BIGINT NOT NULL PRIMARY KEY,
                name TEXT NOT NULL UNIQUE,
                bucket BIGINT NOT NULL,
                state TEXT NOT NULL,
                settings TEXT NOT NULL,
                layout TEXT NOT NULL,
                version BIGINT NOT NULL,
                created_at BIGINT NOT NULL
            )
            """,
            """
            CREATE TABLE stream_segment (
                stream_id BIGINT NOT NULL,
                segment BIGINT NOT NULL,
                end_offset BIGINT NOT NULL,
                sealed BIGINT NOT NULL,
                PRIMARY KEY (stream_id, segment)
            )
            """,
            """
            CREATE TABLE stream_batch (
                stream_id BIGINT NOT NULL,
                segment BIGINT NOT NULL,
                first_offset BIGINT NOT NULL,
                events BIGINT NOT NULL,
                writer TEXT NOT NULL,
                first_number BIGINT NOT NULL,
                body BLOB NOT NULL,
                PRIMARY KEY (stream_id, segment, first_offset)
            )
            """,
            """
            CREATE TABLE stream_writer (
                stream_id BIGINT NOT NULL,
                writer TEXT NOT NULL,
                instance BIGINT NOT NULL,
                next_number BIGINT NOT NULL,
                is_named BIGINT NOT NULL,
                touched_at BIGINT NOT NULL,
                PRIMARY KEY (stream_id, writer)
            )
            """,
            """
            CREATE TABLE stream_key (
                stream_id BIGINT NOT NULL,
                time_key TEXT NOT NULL,
                bucket BIGINT NOT NULL,
                writers_version BIGINT NOT NULL,
                last_seq BIGINT NOT NULL,
                last_lower BIGINT,
                changed BIGINT NOT NULL,
                PRIMARY KEY (stream_id, time_key)
            )
            """,
            "CREATE INDEX stream_key_bucket ON stream_key (bucket)",
            """
            CREATE TABLE stream_mark (
                stream_id BIGINT NOT NULL,
                time_key TEXT NOT NULL,
                writer TEXT NOT NULL,
                state TEXT NOT NULL,
                heard_at BIGINT NOT NULL,
                time BIGINT,
                position TEXT NOT NULL,
                marked_since BIGINT,
                ahead_since BIGINT,
                set_aside BIGINT NOT NULL,
                version BIGINT NOT NULL,
                PRIMARY KEY (stream_id, time_key, writer)
            )
            """,
            """
            CREATE TABLE stream_entry (
                stream_id BIGINT NOT NULL,
                time_key TEXT NOT NULL,
                seq BIGINT NOT NULL,
                kind TEXT NOT NULL,
                lower BIGINT,
                upper BIGINT,
                writers TEXT NOT NULL,
                cut TEXT NOT NULL,
                at BIGINT NOT NULL,
                PRIMARY KEY (stream_id, time_key, seq)
            )
            """,
            "CREATE INDEX stream_entry_lower ON stream_entry (stream_id, time_key, kind, lower, seq)",
            "CREATE INDEX stream_entry_upper ON stream_entry (stream_id, time_key, kind, upper, seq)",
            """
            CREATE TABLE stream_transaction (
                stream_id BIGINT NOT NULL,
                transaction_id TEXT NOT NULL,
                writer TEXT NOT NULL,
                instance BIGINT NOT NULL,
                state TEXT NOT NULL,
                reason TEXT,
                expires_at BIGINT NOT NULL,
                request BIGINT,
                time_key TEXT,
                time BIGINT,
                position TEXT,
                outcome TEXT,
                PRIMARY KEY (stream_id, transaction_id)
            )
            """,
            "CREATE INDEX stream_transaction_writer ON stream_transaction (stream_id, writer, request)",
            """
            CREATE TABLE stream_transaction_batch (
                stream_id BIGINT NOT NULL,
                transaction_id TEXT NOT NULL,
                part BIGINT NOT NULL,
                events BIGINT NOT NULL,
                points BLOB NOT NULL,
                body BLOB NOT NULL,
                PRIMARY KEY (stream_id, transaction_id, part)
            )
            """,
        ),
    ),
    Migration(
        5,
        "reader groups",
        (
            """
            CREATE TABLE reader_group (
                name TEXT NOT NULL PRIMARY KEY,
                group_id BIGINT NOT NULL,
                version BIGINT NOT NULL,
                state TEXT NOT NULL,
                created_at BIGINT NOT NULL
            )
            """,
        ),
    ),
    Migration(
        6,
        "tokens of the service",
        (
            """
            CREATE TABLE token (
                token_id TEXT NOT NULL PRIMARY KEY,
                secret_hash TEXT NOT NULL,
                label TEXT NOT NULL,
                scopes TEXT NOT NULL,
                prefixes TEXT NOT NULL,
                created_at BIGINT NOT NULL,
                expires_at BIGINT
            )
            """,
        ),
    ),
    Migration(
        7,
        "timestamp bindings",
        (
            """
            CREATE TABLE binding_source (
                source_id BIGINT NOT NULL PRIMARY KEY,
                source TEXT NOT NULL UNIQUE,
                kind TEXT NOT NULL,
                identity TEXT NOT NULL,
                tick BIGINT NOT NULL,
                compaction_window BIGINT,
                release_after BIGINT,
                origin BIGINT NOT NULL,
                since BIGINT NOT NULL,
                upper BIGINT NOT NULL,
                minted_at BIGINT,
                created_at BIGINT NOT NULL
            )
            """,
            """
            CREATE TABLE binding_pair (
                source_id BIGINT NOT NULL,
                ts BIGINT NOT NULL,
                part BIGINT NOT NULL,
                end_offset BIGINT NOT NULL,
                PRIMARY KEY (source_id, ts, part)
            )
            """,
            """
            CREATE TABLE binding_watermark (
                source_id BIGINT NOT NULL,
                ts BIGINT NOT NULL,
                time_key TEXT NOT NULL,
                watermark BIGINT NOT NULL,
                PRIMARY KEY (source_id, ts, time_key)
            )
            """,
            """
            CREATE TABLE binding_hold (
                source_id BIGINT NOT NULL,
                holder TEXT NOT NULL,
                kind TEXT NOT NULL,
                ts BIGINT NOT NULL,
                taken_at BIGINT NOT NULL,
                moved_at BIGINT NOT NULL,
                heard_at BIGINT NOT NULL,
                PRIMARY KEY (source_id, holder)
            )
            """,
            """
            CREATE TABLE binding_alignment (
                alignment TEXT NOT NULL,
                member TEXT NOT NULL,
                watermark BIGINT,
                is_caught_up BIGINT NOT NULL,
                heard_at BIGINT NOT NULL,
                PRIMARY KEY (alignment, member)
            )
            """,
        ),
    ),
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
    Migration(
        14,
        "starts of sinks, and runs of queries",
        (
            "ALTER TABLE sink ADD COLUMN starts BIGINT NOT NULL DEFAULT 0",
            # Each start of a query announces its stops anew, so nothing is lost.
            "DROP TABLE bound_query",
            """
            CREATE TABLE bound_query (
                run TEXT NOT NULL PRIMARY KEY,
                query TEXT NOT NULL,
                names TEXT NOT NULL,
                stops TEXT NOT NULL,
                passed BIGINT NOT NULL,
                settles BIGINT NOT NULL,
                announced_at BIGINT NOT NULL
            )
            """,
            "ALTER TABLE bound_query_reader ADD COLUMN run TEXT NOT NULL DEFAULT ''",
        ),
    ),
    Migration(
        15,
        "checksums of stored events",
        (
            "ALTER TABLE stream_batch ADD COLUMN checksum BIGINT",
            "ALTER TABLE stream_transaction_batch ADD COLUMN checksum BIGINT",
        ),
    ),
    Migration(
        16,
        "decisions about origins of computed watermarks",
        (
            """
            CREATE TABLE origin_decision (
                lineage TEXT NOT NULL,
                number BIGINT NOT NULL,
                origin TEXT NOT NULL,
                name TEXT NOT NULL,
                action TEXT NOT NULL,
                decided_by TEXT NOT NULL,
                at BIGINT NOT NULL,
                PRIMARY KEY (lineage, number)
            )
            """,
        ),
    ),
    Migration(
        17,
        "idle sources, and the inputs of queries",
        (
            """
            CREATE TABLE binding_state (
                source_id BIGINT NOT NULL,
                ts BIGINT NOT NULL,
                state BIGINT NOT NULL,
                PRIMARY KEY (source_id, ts)
            )
            """,
            """
            CREATE TABLE bound_query_input (
                query TEXT NOT NULL,
                incarnation TEXT NOT NULL,
                place TEXT NOT NULL,
                at BIGINT NOT NULL,
                PRIMARY KEY (query, incarnation)
            )
            """,
        ),
    ),
    Migration(
        18,
        "retention of events, and columns that are added to streams",
        (
            "ALTER TABLE stream ADD COLUMN retains BIGINT NOT NULL DEFAULT 0",
            "ALTER TABLE stream_segment ADD COLUMN start_offset BIGINT NOT NULL DEFAULT 0",
            "ALTER TABLE stream_segment ADD COLUMN bytes BIGINT NOT NULL DEFAULT 0",
            """
            UPDATE stream_segment SET bytes = (
                SELECT COALESCE(SUM(LENGTH(body)), 0) FROM stream_batch
                WHERE stream_batch.stream_id = stream_segment.stream_id
                AND stream_batch.segment = stream_segment.segment
            )
            """,
            "ALTER TABLE stream_batch ADD COLUMN columns BIGINT",
            "ALTER TABLE stream_batch ADD COLUMN at BIGINT",
            "ALTER TABLE stream_transaction_batch ADD COLUMN columns BIGINT",
            """
            CREATE TABLE binding_floor (
                source_id BIGINT NOT NULL,
                part BIGINT NOT NULL,
                end_offset BIGINT NOT NULL,
                PRIMARY KEY (source_id, part)
            )
            """,
        ),
    ),
    Migration(
        19,
        "turns of units in the grace period",
        ("ALTER TABLE ingest_unit ADD COLUMN reread_at BIGINT",),
    ),
)
