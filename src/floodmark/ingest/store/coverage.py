"""Stores the coverage of units, of which only changed rows are written, and how late rows were found."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from sqlalchemy import Connection, bindparam, delete, insert, select, text, update

from floodmark._util.ints import check_number
from floodmark.errors import UnknownUnit
from floodmark.ingest.calendar.ranges import Range
from floodmark.ingest.planning.coverage import Coverage, Failure, Success, UnitCoverage
from floodmark.ingest.store.tables import FAILURES, LATENESS, RANGES, UNITS

_MAX_KEYS: Final = 500
"""How many keys one statement lists: databases limit the number of parameters."""

_DELETE_RANGE: Final = delete(RANGES).where(
    RANGES.c.job == bindparam("j"),
    RANGES.c.unit == bindparam("u"),
    RANGES.c.kind == bindparam("k"),
    RANGES.c.lo == bindparam("l"),
)
_DELETE_FAILURE: Final = delete(FAILURES).where(
    FAILURES.c.job == bindparam("j"), FAILURES.c.unit == bindparam("u"), FAILURES.c.lo == bindparam("l")
)

CoverageChange = Callable[[UnitCoverage], UnitCoverage]


def load_coverage(connection: Connection, job: str) -> Coverage:
    """Return the coverage of all units that a job ever had."""
    rows = connection.execute(select(UNITS).where(UNITS.c.job == job)).all()
    ranges = _load_ranges(connection, job, None)
    empty: dict[str, list[Any]] = {}
    return {row.unit_key: _to_coverage(ranges.get(row.unit, empty), row) for row in rows}


def change_coverage(
    connection: Connection,
    job: str,
    keys: Collection[str],
    change: Callable[[str], CoverageChange],
    *,
    failures_in: Range | None = None,
) -> dict[str, tuple[UnitCoverage, UnitCoverage]]:
    """Lock units, change their coverage, and return the coverage of each before and after.

    `change(key)` returns the function that changes the coverage of that unit. A change that looks only at failures of
    the range `failures_in` gets no others: when a source is down, a unit has thousands.
    """
    rows: list[Any] = []
    for chunk in _chunks(sorted(keys)):
        # Lock units in key order to avoid deadlocks.
        query = select(UNITS).where(UNITS.c.job == job, UNITS.c.unit_key.in_(chunk)).order_by(UNITS.c.unit_key)
        rows += connection.execute(query.with_for_update()).all()
    missing = set(keys) - {row.unit_key for row in rows}
    if missing:
        raise UnknownUnit(
            f"The job {job!r} has no unit {min(missing)}.",
            rule="Coverage exists only for units that the job has registered.",
            remedy="Use a unit key from `Ingestion.plan` or `floodmark ingest plan --json`.",
            job=job,
            unit=min(missing),
        )
    ranges: dict[int, dict[str, list[Any]]] = {}
    for chunk in _chunks(rows):
        ranges |= _load_ranges(connection, job, [row.unit for row in chunk], failures_in)
    changed = {}
    deleted: list[dict[str, Any]] = []
    inserted: list[dict[str, Any]] = []
    for row in rows:
        before = _to_coverage(ranges.get(row.unit, {}), row)
        after = change(row.unit_key)(before)
        changed[row.unit_key] = before, after
        old, new = _range_rows(job, row.unit, before), _range_rows(job, row.unit, after)
        changes = [key for key in old.keys() | new.keys() if old.get(key) != new.get(key)]
        deleted += [{"j": job, "u": row.unit, "k": kind, "l": lo} for kind, lo in changes if (kind, lo) in old]
        inserted += [new[key] for key in changes if key in new]
        if before.failures != after.failures:
            _write_failures(connection, job, row.unit, before.failures, after.failures)
        if before.reread_at != after.reread_at:
            of_unit = (UNITS.c.job == job, UNITS.c.unit == row.unit)
            connection.execute(update(UNITS).where(*of_unit).values(reread_at=after.reread_at))
    if deleted:
        connection.execute(_DELETE_RANGE, deleted)
    if inserted:
        connection.execute(insert(RANGES), inserted)
    return changed


def register_units(connection: Connection, job: str, keys: Sequence[str], start: int, now: int) -> tuple[int, int, int]:
    """Set the units of a job; return how many are new, were reactivated, and were retired.

    The coverage of a retired unit is kept and is valid again when the unit is reactivated.
    """
    rows = connection.execute(select(UNITS).where(UNITS.c.job == job)).all()
    by_key = {row.unit_key: row for row in rows}
    number = max((row.unit for row in rows), default=0)
    new = [key for key in keys if key not in by_key]
    if new:
        connection.execute(
            insert(UNITS),
            [
                {"job": job, "unit": number + offset, "unit_key": key, "known_from": start, "retired_at": None}
                for offset, key in enumerate(new, 1)
            ],
        )
    listed = set(keys)
    reactivated = [row.unit for row in rows if row.retired_at is not None and row.unit_key in listed]
    retired = [row.unit for row in rows if row.retired_at is None and row.unit_key not in listed]
    earlier = [
        row.unit for row in rows if row.unit_key in listed and (row.known_from is None or row.known_from > start)
    ]
    updates: tuple[tuple[list[int], dict[str, Any]], ...] = (
        (reactivated, {"retired_at": None}),
        (retired, {"retired_at": now}),
        (earlier, {"known_from": start}),
    )
    for units, values in updates:
        for chunk in _chunks(units):
            connection.execute(update(UNITS).where(UNITS.c.job == job, UNITS.c.unit.in_(chunk)).values(**values))
    return len(new), len(reactivated), len(retired)


def unit_numbers(connection: Connection, job: str, keys: Collection[str]) -> dict[str, int]:
    """Return the stored number of each unit by its key."""
    numbers: dict[str, int] = {}
    for chunk in _chunks(sorted(keys)):
        rows = connection.execute(
            select(UNITS.c.unit_key, UNITS.c.unit).where(UNITS.c.job == job, UNITS.c.unit_key.in_(chunk))
        )
        numbers.update((row.unit_key, row.unit) for row in rows)
    return numbers


def _chunks(items: Sequence[Any]) -> Iterable[Sequence[Any]]:
    return (items[start : start + _MAX_KEYS] for start in range(0, len(items), _MAX_KEYS))


def _load_ranges(
    connection: Connection, job: str, units: Collection[int] | None, failures_in: Range | None = None
) -> dict[int, dict[str, list[Any]]]:
    ranges = select(RANGES.c.unit, RANGES.c.kind, RANGES.c.lo, RANGES.c.hi, RANGES.c.at).where(RANGES.c.job == job)
    failures = select(FAILURES).where(FAILURES.c.job == job)
    if units is not None:
        ranges = ranges.where(RANGES.c.unit.in_(units))
        failures = failures.where(FAILURES.c.unit.in_(units))
    if failures_in is not None:
        failures = failures.where(FAILURES.c.lo < failures_in.hi, FAILURES.c.hi > failures_in.lo)
    by_unit: dict[int, dict[str, list[Any]]] = {}
    for unit, kind, lo, hi, at in connection.execute(ranges.order_by(RANGES.c.unit, RANGES.c.kind, RANGES.c.lo)):
        value = Success(Range(lo, hi), at) if kind == "fresh" else Range(lo, hi)
        by_unit.setdefault(unit, {}).setdefault(kind, []).append(value)
    for row in connection.execute(failures.order_by(FAILURES.c.unit, FAILURES.c.lo)):
        failure = Failure(Range(row.lo, row.hi), row.attempts, row.at, row.error)
        by_unit.setdefault(row.unit, {}).setdefault("failures", []).append(failure)
    return by_unit


def _to_coverage(by_kind: dict[str, list[Any]], unit: Any) -> UnitCoverage:
    ranges = {kind: tuple(values) for kind, values in by_kind.items()}
    return UnitCoverage(**ranges, known_from=unit.known_from, reread_at=unit.reread_at)


def _range_rows(job: str, unit: int, coverage: UnitCoverage) -> dict[tuple[str, int], dict[str, Any]]:
    row = {"job": job, "unit": unit}
    rows = {
        (kind, lo): {**row, "kind": kind, "lo": lo, "hi": hi, "at": 0}
        for kind in ("covered", "backfilled", "wanted")
        for lo, hi in getattr(coverage, kind)
    }
    for success in coverage.fresh:
        lo, hi = success.range
        rows["fresh", lo] = {**row, "kind": "fresh", "lo": lo, "hi": hi, "at": success.at}
    return rows


def _write_failures(
    connection: Connection, job: str, unit: int, before: Sequence[Failure], after: Sequence[Failure]
) -> None:
    deleted, inserted = set(before) - set(after), set(after) - set(before)
    if deleted:
        connection.execute(_DELETE_FAILURE, [{"j": job, "u": unit, "l": failure.range.lo} for failure in deleted])
    if inserted:
        rows = [
            {
                "job": job,
                "unit": unit,
                "lo": failure.range.lo,
                "hi": failure.range.hi,
                "attempts": failure.attempts,
                "at": failure.at,
                "error": failure.error,
            }
            for failure in inserted
        ]
        connection.execute(insert(FAILURES), rows)


_ADD_LATENESS: Final = text(
    "INSERT INTO ingest_lateness (job, days, row_count) VALUES (:job, :days, :rows) "
    "ON CONFLICT (job, days) DO UPDATE SET row_count = ingest_lateness.row_count + excluded.row_count"
)


def add_lateness(connection: Connection, job: str, lateness: Mapping[int, int]) -> None:
    """Add to the counts of rows by how many calendar days after their own day they were found."""
    # Update rows in order of days to avoid deadlocks.
    for days in sorted(lateness):
        rows = check_number("number of late rows", lateness[days])
        connection.execute(_ADD_LATENESS, {"job": job, "days": check_number("days of lateness", days), "rows": rows})


def load_lateness(connection: Connection, job: str) -> dict[int, int]:
    """Return the counts of rows by how many calendar days late they were found."""
    rows = connection.execute(select(LATENESS).where(LATENESS.c.job == job).order_by(LATENESS.c.days))
    return {row.days: row.row_count for row in rows}
