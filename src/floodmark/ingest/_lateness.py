"""How late rows were found: counted by calendar days, to tell how much grace a job needs."""

from collections.abc import Mapping
from typing import Final

from sqlalchemy import Connection, select, text

from floodmark._util.ints import check_number
from floodmark.ingest._schema import LATENESS

_ADD: Final = text(
    "INSERT INTO ingest_lateness (job, days, row_count) VALUES (:job, :days, :rows) "
    "ON CONFLICT (job, days) DO UPDATE SET row_count = ingest_lateness.row_count + excluded.row_count"
)


def add_lateness(connection: Connection, job: str, lateness: Mapping[int, int]) -> None:
    """Count rows that were found so many calendar days after their own."""
    # In one order, or two who count at the same time could wait for each other.
    for days in sorted(lateness):
        rows = check_number("number of late rows", lateness[days])
        connection.execute(_ADD, {"job": job, "days": check_number("days of lateness", days), "rows": rows})


def load_lateness(connection: Connection, job: str) -> dict[int, int]:
    """Return how many rows were found how many days late."""
    rows = connection.execute(select(LATENESS).where(LATENESS.c.job == job).order_by(LATENESS.c.days))
    return {row.days: row.row_count for row in rows}
