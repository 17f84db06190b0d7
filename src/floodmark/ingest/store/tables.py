"""The tables of ingestion. The migrations of the home create them; a test compares the two."""

from typing import Final

from sqlalchemy import BigInteger, Column, Table, Text

from floodmark.control.tables import METADATA


def _key(name: str) -> Column[int]:
    return Column(name, BigInteger, primary_key=True, autoincrement=False)


def _number(name: str, *, nullable: bool = False) -> Column[int]:
    return Column(name, BigInteger, nullable=nullable)


def _text(name: str) -> Column[str]:
    return Column(name, Text, nullable=False)


JOBS: Final = Table(
    "ingest_job",
    METADATA,
    Column("name", Text, primary_key=True),
    _text("definition"),
    _number("created_at"),
    _number("updated_at"),
)

UNITS: Final = Table(
    "ingest_unit",
    METADATA,
    Column("job", Text, primary_key=True),
    _key("unit"),
    _text("unit_key"),
    _number("known_from", nullable=True),
    _number("retired_at", nullable=True),
    _number("reread_at", nullable=True),
)
"""A transaction that changes the coverage of a unit locks the unit's row first."""

RANGES: Final = Table(
    "ingest_range",
    METADATA,
    Column("job", Text, primary_key=True),
    _key("unit"),
    Column("kind", Text, primary_key=True),
    _key("lo"),
    _number("hi"),
    _number("at"),
)
"""The merged ranges of a unit's coverage by kind (covered, backfilled, wanted, fresh); only fresh ones use `at`."""

FAILURES: Final = Table(
    "ingest_failure",
    METADATA,
    Column("job", Text, primary_key=True),
    _key("unit"),
    _key("lo"),
    _number("hi"),
    _number("attempts"),
    _number("at"),
    _text("error"),
)

RUNS: Final = Table(
    "ingest_run",
    METADATA,
    Column("job", Text, primary_key=True),
    _key("run"),
    _text("owner"),
    _number("token"),
    _text("state"),
    _number("planned_at"),
    _text("plan"),
    _number("started_at"),
    _number("ended_at", nullable=True),
)

ATTEMPTS: Final = Table(
    "ingest_attempt",
    METADATA,
    Column("job", Text, primary_key=True),
    _key("run"),
    _key("unit"),
    _key("lo"),
    _number("hi"),
    _text("reason"),
    _text("state"),
    _number("row_count", nullable=True),
    _number("took", nullable=True),
    _text("error"),
    _number("at"),
)
"""The attempts of the newest runs. Coverage does not depend on them."""

EVENTS: Final = Table(
    "ingest_event",
    METADATA,
    Column("job", Text, primary_key=True),
    _key("event"),
    _text("kind"),
    _text("actor"),
    _text("details"),
    _number("at"),
)

LATENESS: Final = Table(
    "ingest_lateness",
    METADATA,
    Column("job", Text, primary_key=True),
    _key("days"),
    _number("row_count"),
)
