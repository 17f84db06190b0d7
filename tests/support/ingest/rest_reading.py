"""Reading from REST services in tests: rows of a plan, a clock that does not wait, and rows as Python has them."""

from typing import Any

import pyarrow as pa

from floodmark.ingest import PlannedRange, Range, RestSource, Unit
from floodmark.ingest.extract.rest.client import RestClock
from floodmark.ingest.extract.rest.split import RestSplit, rest_splits

HOUR = 3_600_000_000


class NoWaiting(RestClock):
    """Time passes only where somebody waits, and chance is always the largest."""

    def __init__(self, start: float = 0.0) -> None:
        self.time = start
        self.waits: list[float] = []

    def now(self) -> float:
        return self.time

    def elapsed(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.time += seconds

    def chance(self) -> float:
        return 1.0


def row_of(lo: int = 0, hi: int = HOUR, **unit: Any) -> PlannedRange:
    return PlannedRange(Unit.of(unit), Range(lo, hi), Range(lo, hi), "new", ("new",))


def part_of(
    source: RestSource,
    row: PlannedRange | None = None,
    *,
    zone: str = "UTC",
    schema: pa.Schema | None = None,
    clock: RestClock | None = None,
    concurrency: int = 1,
) -> RestSplit:
    (part,) = rest_splits(source, zone, row or row_of(), schema=schema, concurrency=concurrency)
    return RestSplit(part.source, part.zone, part.row, part.concurrency, part.schema, clock or NoWaiting())


def table_of(source: RestSource, row: PlannedRange | None = None, **options: Any) -> pa.Table:
    batches = list(part_of(source, row, **options).read())
    return pa.Table.from_batches(batches)


def rows_of(source: RestSource, row: PlannedRange | None = None, **options: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = table_of(source, row, **options).to_pylist()
    return rows
