"""The tables of a job file whose variables are in place, put together to a job."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from floodmark.errors import FloodmarkError
from floodmark.ingest._bound import Bound
from floodmark.ingest._calendar import zone_of
from floodmark.ingest._fit import check_fit
from floodmark.ingest._frozen import Frozen
from floodmark.ingest._grid import PERIODS, Grid
from floodmark.ingest._job import Job, Limits, TimeWatermark
from floodmark.ingest._spec_tables import place_of, read_secret, read_source, read_target, read_url
from floodmark.ingest._tables import Table
from floodmark.ingest._target_spec import Landing
from floodmark.ingest._unit import UnitWatermark
from floodmark.ingest._unit_rows import FORMATS
from floodmark.ingest._units import MOST_UNITS, SecondaryInput, listed_units
from floodmark.ingest._variables import Scalar

HEAD: Final = ("name", "zone", "after", "rules")
RULES: Final = ("floodmark", "dil")
_INPUT: Final = (
    *("path", "format", "url", "password", "table", "query", "preceding", "fields", "filters", "distinct"),
    *("may_be_empty", "most"),
)


def build_job(root: Table, folder: Path, variables: Mapping[str, Scalar], preceding: Job | None) -> Job:
    """Return the job that a file describes."""
    head, times = _must(root, "job"), _must(root, "time")
    head.only(*HEAD)
    name, zone = head.text("name"), head.text("zone")
    with head.locating("zone"):
        zone_of(zone)
    units, source, target = root.table("units"), root.table("source"), root.table("target")
    parts: dict[str, Any] = {"time": _time(times, zone), "variables": Frozen(variables), "limits": _limits(root)}
    if units is not None:
        parts["units"] = _units(units, folder, preceding)
    if source is not None:
        parts["source"] = read_source(source, folder)
    if target is not None:
        parts["target"] = read_target(target, folder)
    parts["compat"] = head.choice("rules", RULES, RULES[0]) == "dil"
    try:
        job = Job(name, zone, **parts)
        check_fit(job)
    except FloodmarkError as error:
        raise root.origin.located(error, _place_of(error)) from error
    return job


def _place_of(error: FloodmarkError) -> tuple[str, ...]:
    """Return the key that an error about several tables at once is about."""
    if "grace_days" in error.fields:
        return ("target", "mode")
    return tuple(str(error.fields.get("option", "job.name")).split("."))


def _must(root: Table, section: str) -> Table:
    table = root.table(section)
    if table is None:
        raise root.missing(section)
    return table


def _time(table: Table, zone: str) -> TimeWatermark:
    table.only("name", "from", "to", "grid", "partial", "grace_days", "abstinence_days", "settle")
    start, end = _bound(table, "from", zone), _bound(table, "to", zone)
    ends = {"grace": "grace_days", "abstinence": "abstinence_days"}
    with table.locating("from", by_field=ends):
        return TimeWatermark(
            table.optional_text("name") or "time",
            start,
            end,
            _grid(table, zone),
            partial=table.flag("partial", True),
            grace_days=table.number("grace_days", 0),
            abstinence_days=table.number("abstinence_days", 0),
            settle=table.micros("settle", 0),
        )


def _bound(table: Table, key: str, zone: str) -> Bound:
    text = table.text(key)
    with table.locating(key):
        return Bound.parse(text, zone)


def _grid(table: Table, zone: str) -> Grid:
    written = table.values.get("grid", "none")
    if isinstance(written, str):
        with table.locating("grid"):
            return Grid.plain(written)
    parts = []
    for part in table.tables("grid"):
        part.only("period", "from", "to")
        period, start = part.choice("period", PERIODS), _bound(part, "from", zone)
        parts.append((period, start, _bound(part, "to", zone) if "to" in part else None))
    with table.locating("grid", 0):
        return Grid.composite(parts)


def _units(table: Table, folder: Path, preceding: Job | None) -> UnitWatermark:
    table.only("name", "list", "input")
    name = table.optional_text("name") or "unit"
    source = table.table("input")
    if "list" in table and source is not None:
        raise table.refuse(
            "input",
            "The units are listed, and read from a secondary input too.",
            rule="Units are either listed or read.",
            remedy="Keep the one that is meant, and take the other out.",
        )
    if source is not None:
        return UnitWatermark(name, secondary=_secondary(source, folder, preceding))
    if "list" not in table:
        raise table.missing("list", "Units are listed, or read from [units.input].")
    with table.locating("list"):
        return UnitWatermark(name, listed_units(name, table.values["list"]))


def _secondary(table: Table, folder: Path, preceding: Job | None) -> SecondaryInput:
    table.only(*_INPUT)
    path, kind = table.optional_text("path"), table.optional_text("format")
    if table.flag("preceding", False):
        if path is not None or "url" in table:
            raise table.refuse(
                "preceding",
                "The units come from the preceding job, and from elsewhere too.",
                rule="They come from one place.",
                remedy="Keep the one that is meant.",
            )
        path, kind = _landed(table, preceding), "delta"
    elif path is not None:
        path = place_of(path, folder)
    values: dict[str, Any] = {
        "fields": table.texts("fields"),
        "path": path,
        "format": kind if kind is None or path is None else table.choice("format", FORMATS, kind),
        "url": read_url(table, folder) if "url" in table else None,
        "password": read_secret(table, "password", folder),
        "table": table.optional_text("table"),
        "query": table.optional_text("query"),
        "filters": table.mapping("filters"),
        "distinct": table.flag("distinct", False),
        "may_be_empty": table.flag("may_be_empty", False),
        "most": table.number("most", MOST_UNITS, least=1),
    }
    with table.locating(by_field={name: name for name in values}):
        return SecondaryInput(**values)


def _landed(table: Table, preceding: Job | None) -> str:
    if preceding is not None and isinstance(preceding.target, Landing) and preceding.target.path is not None:
        return preceding.target.path
    raise table.refuse(
        "preceding",
        "There is no preceding job." if preceding is None else f"The job {preceding.name!r} lands no Delta table.",
        rule="The preceding job is named by `after` in [job], and its target is the path of a Delta table.",
        remedy='Add after = "FILE.toml" to [job].' if preceding is None else "Give the units in another way.",
    )


def _limits(root: Table) -> Limits:
    table = root.table("limits")
    if table is None:
        return Limits()
    table.only("cells", "attempts")
    default = Limits()
    cells = _limit(table, "cells", "all", default.cells)
    return Limits(cells, _limit(table, "attempts", "unlimited", default.attempts))


def _limit(table: Table, key: str, word: str, default: int | None) -> int | None:
    return None if table.values.get(key) == word else table.number(key, default, least=1)
