"""Coverage of the units of a job as rows of tables, written where it changes; and how late rows were found."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from sqlalchemy import Connection, bindparam, delete, insert, select, text, update

from floodmark._util.ints import check_number
from floodmark.errors import UnknownUnit
from floodmark.ingest.calendar.ranges import Range
from floodmark.ingest.planning.coverage import Coverage, Failure, Success, UnitCoverage
from floodmark.ingest.store.tables import FAILURES, LATENESS, RANGES, UNITS

_CHUNK: Final = 500
"""How many keys a statement may name: databases limit it."""

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
    """Return what is known of all units that a job ever had."""
    rows = connection.execute(select(UNITS).where(UNITS.c.job == job)).all()
    known = _load_ranges(connection, job, None)
    empty: dict[str, list[Any]] = {}
    return {row.unit_key: _coverage(known.get(row.unit, empty), row.known_from) for row in rows}


def change_coverage(
    connection: Connection, job: str, keys: Collection[str], change: Callable[[str], CoverageChange]
) -> dict[str, tuple[UnitCoverage, UnitCoverage]]:
    """Change what is known of units, whose rows are locked for it; return what was known before and after.

    `change(key)` says how a unit changes.
    """
    rows: list[Any] = []
    for some in _chunks(sorted(keys)):
        # Always in one order, or two who record at the same time could wait for each other.
        wanted = select(UNITS).where(UNITS.c.job == job, UNITS.c.unit_key.in_(some)).order_by(UNITS.c.unit_key)
        rows += connection.execute(wanted.with_for_update()).all()
    missing = set(keys) - {row.unit_key for row in rows}
    if missing:
        raise UnknownUnit(
            f"The job {job!r} has no unit {min(missing)}.",
            rule="What is known is kept by the units that the job has had.",
            remedy="Name a unit as the plan does.",
            job=job,
            unit=min(missing),
        )
    known: dict[int, dict[str, list[Any]]] = {}
    for some_rows in _chunks(rows):
        known |= _load_ranges(connection, job, [row.unit for row in some_rows])
    changed = {}
    gone: list[dict[str, Any]] = []
    come: list[dict[str, Any]] = []
    for row in rows:
        before = _coverage(known.get(row.unit, {}), row.known_from)
        after = change(row.unit_key)(before)
        changed[row.unit_key] = before, after
        old, new = _range_rows(job, row.unit, before), _range_rows(job, row.unit, after)
        changes = [place for place in old.keys() | new.keys() if old.get(place) != new.get(place)]
        gone += [{"j": job, "u": row.unit, "k": kind, "l": lo} for kind, lo in changes if (kind, lo) in old]
        come += [new[place] for place in changes if place in new]
        if before.failures != after.failures:
            _write_failures(connection, job, row.unit, before.failures, after.failures)
    if gone:
        connection.execute(_DELETE_RANGE, gone)
    if come:
        connection.execute(insert(RANGES), come)
    return changed


def register_units(connection: Connection, job: str, keys: Sequence[str], start: int, now: int) -> tuple[int, int, int]:
    """Make the units of a job exactly these; return how many are new, came back, and were retired.

    What is known of a retired unit stays, and counts again when it comes back.
    """
    rows = connection.execute(select(UNITS).where(UNITS.c.job == job)).all()
    by_key = {row.unit_key: row for row in rows}
    number = max((row.unit for row in rows), default=0)
    new = [key for key in keys if key not in by_key]
    if new:
        connection.execute(
            insert(UNITS),
            [
                {"job": job, "unit": number + place, "unit_key": key, "known_from": start, "retired_at": None}
                for place, key in enumerate(new, 1)
            ],
        )
    listed = set(keys)
    back = [row.unit for row in rows if row.retired_at is not None and row.unit_key in listed]
    gone = [row.unit for row in rows if row.retired_at is None and row.unit_key not in listed]
    earlier = [
        row.unit for row in rows if row.unit_key in listed and (row.known_from is None or row.known_from > start)
    ]
    for units, values in ((back, {"retired_at": None}), (gone, {"retired_at": now}), (earlier, {"known_from": start})):
        for some in _chunks(units):
            connection.execute(update(UNITS).where(UNITS.c.job == job, UNITS.c.unit.in_(some)).values(**values))
    return len(new), len(back), len(gone)


def unit_numbers(connection: Connection, job: str, keys: Collection[str]) -> dict[str, int]:
    """Return the numbers under which units are kept."""
    found: dict[str, int] = {}
    for some in _chunks(sorted(keys)):
        rows = connection.execute(
            select(UNITS.c.unit_key, UNITS.c.unit).where(UNITS.c.job == job, UNITS.c.unit_key.in_(some))
        )
        found.update((row.unit_key, row.unit) for row in rows)
    return found


def _chunks(some: Sequence[Any]) -> Iterable[Sequence[Any]]:
    return (some[start : start + _CHUNK] for start in range(0, len(some), _CHUNK))


def _load_ranges(connection: Connection, job: str, units: Collection[int] | None) -> dict[int, dict[str, list[Any]]]:
    ranges = select(RANGES.c.unit, RANGES.c.kind, RANGES.c.lo, RANGES.c.hi, RANGES.c.at).where(RANGES.c.job == job)
    failures = select(FAILURES).where(FAILURES.c.job == job)
    if units is not None:
        ranges = ranges.where(RANGES.c.unit.in_(units))
        failures = failures.where(FAILURES.c.unit.in_(units))
    found: dict[int, dict[str, list[Any]]] = {}
    for unit, kind, lo, hi, at in connection.execute(ranges.order_by(RANGES.c.unit, RANGES.c.kind, RANGES.c.lo)):
        one = Success(Range(lo, hi), at) if kind == "fresh" else Range(lo, hi)
        found.setdefault(unit, {}).setdefault(kind, []).append(one)
    for row in connection.execute(failures.order_by(FAILURES.c.unit, FAILURES.c.lo)):
        failure = Failure(Range(row.lo, row.hi), row.attempts, row.at, row.error)
        found.setdefault(row.unit, {}).setdefault("failures", []).append(failure)
    return found


def _coverage(parts: dict[str, list[Any]], known_from: int | None) -> UnitCoverage:
    return UnitCoverage(**{kind: tuple(some) for kind, some in parts.items()}, known_from=known_from)


def _range_rows(job: str, unit: int, known: UnitCoverage) -> dict[tuple[str, int], dict[str, Any]]:
    row = {"job": job, "unit": unit}
    rows = {
        (kind, one.lo): {**row, "kind": kind, "lo": one.lo, "hi": one.hi, "at": 0}
        for kind in ("covered", "backfilled", "wanted")
        for one in getattr(known, kind)
    }
    for success in known.fresh:
        lo, hi = success.range
        rows["fresh", lo] = {**row, "kind": "fresh", "lo": lo, "hi": hi, "at": success.at}
    return rows


def _write_failures(
    connection: Connection, job: str, unit: int, before: Sequence[Failure], after: Sequence[Failure]
) -> None:
    gone, come = [one for one in before if one not in after], [one for one in after if one not in before]
    if gone:
        connection.execute(_DELETE_FAILURE, [{"j": job, "u": unit, "l": one.range.lo} for one in gone])
    if come:
        rows = [
            {"lo": one.range.lo, "hi": one.range.hi, "attempts": one.attempts, "at": one.at, "error": one.error}
            for one in come
        ]
        connection.execute(insert(FAILURES), [{"job": job, "unit": unit, **row} for row in rows])


_ADD_LATENESS: Final = text(
    "INSERT INTO ingest_lateness (job, days, row_count) VALUES (:job, :days, :rows) "
    "ON CONFLICT (job, days) DO UPDATE SET row_count = ingest_lateness.row_count + excluded.row_count"
)


def add_lateness(connection: Connection, job: str, lateness: Mapping[int, int]) -> None:
    """Count rows that were found so many calendar days after their own."""
    # In one order, or two who count at the same time could wait for each other.
    for days in sorted(lateness):
        rows = check_number("number of late rows", lateness[days])
        connection.execute(_ADD_LATENESS, {"job": job, "days": check_number("days of lateness", days), "rows": rows})


def load_lateness(connection: Connection, job: str) -> dict[int, int]:
    """Return how many rows were found how many days late."""
    rows = connection.execute(select(LATENESS).where(LATENESS.c.job == job).order_by(LATENESS.c.days))
    return {row.days: row.row_count for row in rows}
