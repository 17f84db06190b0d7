"""Builds a job from the tables of a job file whose variables are substituted."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from floodmark._util.times import duration_micros
from floodmark.errors import FloodmarkError
from floodmark.ingest.calendar.bound import Bound
from floodmark.ingest.calendar.clock import zone_of
from floodmark.ingest.calendar.grid import PERIODS, Grid
from floodmark.ingest.job.job import DRIFTS, MODES, Job, Landing, Limits, TimeWatermark, check_job
from floodmark.ingest.job.options import Frozen, Secret
from floodmark.ingest.job.source import (
    AUTHS,
    FILE_FORMATS,
    FILE_TIMES,
    NULLS,
    PAGINGS,
    WATERMARK_TYPES,
    Auth,
    FilesSource,
    Pagination,
    RestSource,
    SqlSource,
)
from floodmark.ingest.job.unit import INPUT_FORMATS, MAX_UNITS, SecondaryInput, UnitWatermark, listed_units
from floodmark.ingest.job.variables import Scalar
from floodmark.ingest.jobfile.tables import TomlTable, dotted_key

JOB_KEYS: Final = ("name", "zone", "after", "rules")
RULES: Final = ("floodmark", "dil")
_INPUT_KEYS: Final = (
    *("path", "format", "url", "password", "table", "query", "preceding", "fields", "filters", "distinct"),
    *("may_be_empty", "most"),
)


def build_job(root: TomlTable, folder: Path, variables: Mapping[str, Scalar], preceding: Job | None) -> Job:
    """Return the job that a file describes."""
    head, times = _required_table(root, "job"), _required_table(root, "time")
    head.only(*JOB_KEYS)
    name, zone = head.text("name"), head.text("zone")
    with head.locating("zone"):
        zone_of(zone)
    units, source, target = root.table("units"), root.table("source"), root.table("target")
    fields: dict[str, Any] = {"time": _time(times, zone), "variables": Frozen(variables), "limits": _limits(root)}
    if units is not None:
        fields["units"] = _units(units, folder, preceding)
    if source is not None:
        fields["source"] = read_source(source, folder)
    if target is not None:
        fields["target"] = read_target(target, folder)
    fields["compat"] = head.choice("rules", RULES, RULES[0]) == "dil"
    try:
        job = Job(name, zone, **fields)
        check_job(job)
    except FloodmarkError as error:
        raise root.origin.located(error, _key_of_error(error)) from error
    return job


def _key_of_error(error: FloodmarkError) -> tuple[str, ...]:
    """Return the key whose line is shown for an error that concerns several tables."""
    if "grace_days" in error.fields:
        return ("target", "mode")
    return tuple(str(error.fields.get("option", "job.name")).split("."))


def _required_table(root: TomlTable, section: str) -> TomlTable:
    table = root.table(section)
    if table is None:
        raise root.missing(section)
    return table


def _time(table: TomlTable, zone: str) -> TimeWatermark:
    table.only("name", "from", "to", "grid", "partial", "grace_days", "abstinence_days", "settle")
    start, end = _bound(table, "from", zone), _bound(table, "to", zone)
    keys = {"grace": "grace_days", "abstinence": "abstinence_days"}
    with table.locating("from", by_field=keys):
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


def _bound(table: TomlTable, key: str, zone: str) -> Bound:
    text = table.text(key)
    with table.locating(key):
        return Bound.parse(text, zone)


def _grid(table: TomlTable, zone: str) -> Grid:
    grid = table.values.get("grid", "none")
    if isinstance(grid, str):
        with table.locating("grid"):
            return Grid.plain(grid)
    parts = []
    for part in table.tables("grid"):
        part.only("period", "from", "to")
        period, start = part.choice("period", PERIODS), _bound(part, "from", zone)
        parts.append((period, start, _bound(part, "to", zone) if "to" in part else None))
    with table.locating("grid", 0):
        return Grid.composite(parts)


def _units(table: TomlTable, folder: Path, preceding: Job | None) -> UnitWatermark:
    table.only("name", "list", "input")
    name = table.optional_text("name") or "unit"
    source = table.table("input")
    if "list" in table and source is not None:
        raise table.refuse(
            "input",
            "Both list and [units.input] are set.",
            rule="Units are either listed or read from a secondary input.",
            remedy="Remove list, or remove [units.input].",
        )
    if source is not None:
        return UnitWatermark(name, secondary=_secondary(source, folder, preceding))
    if "list" not in table:
        raise table.missing("list", "Units are listed, or read from [units.input].")
    with table.locating("list"):
        return UnitWatermark(name, listed_units(name, table.values["list"]))


def _secondary(table: TomlTable, folder: Path, preceding: Job | None) -> SecondaryInput:
    table.only(*_INPUT_KEYS)
    path, kind = table.optional_text("path"), table.optional_text("format")
    if table.flag("preceding", False):
        if path is not None or "url" in table:
            raise table.refuse(
                "preceding",
                "preceding is set, and path or url too.",
                rule="Units are read from one input.",
                remedy="Remove path and url, or remove preceding.",
            )
        path, kind = _preceding_table(table, preceding), "delta"
    elif path is not None:
        path = resolve_path(path, folder)
    values: dict[str, Any] = {
        "fields": table.texts("fields"),
        "path": path,
        "format": kind if kind is None or path is None else table.choice("format", INPUT_FORMATS, kind),
        "url": read_url(table, folder) if "url" in table else None,
        "password": read_secret(table, "password", folder),
        "table": table.optional_text("table"),
        "query": table.optional_text("query"),
        "filters": table.mapping("filters"),
        "distinct": table.flag("distinct", False),
        "may_be_empty": table.flag("may_be_empty", False),
        "most": table.number("most", MAX_UNITS, least=1),
    }
    with table.locating(by_field={name: name for name in values}):
        return SecondaryInput(**values)


def _preceding_table(table: TomlTable, preceding: Job | None) -> str:
    if preceding is not None and isinstance(preceding.target, Landing) and preceding.target.path is not None:
        return preceding.target.path
    raise table.refuse(
        "preceding",
        "There is no preceding job." if preceding is None else f"The job {preceding.name!r} lands no Delta table.",
        rule="The preceding job is set by `after` in [job], and its target must be a Delta table.",
        remedy='Add after = "FILE.toml" to [job].'
        if preceding is None
        else "Use path or url in [units.input] instead.",
    )


def _limits(root: TomlTable) -> Limits:
    table = root.table("limits")
    if table is None:
        return Limits()
    table.only("cells", "attempts")
    default = Limits()
    cells = _limit(table, "cells", "all", default.cells)
    return Limits(cells, _limit(table, "attempts", "unlimited", default.attempts))


def _limit(table: TomlTable, key: str, word: str, default: int | None) -> int | None:
    return None if table.values.get(key) == word else table.number(key, default, least=1)


Source = SqlSource | FilesSource | RestSource
SOURCE_KINDS: Final = ("sql", "files", "rest")


def read_source(table: TomlTable, folder: Path) -> Source:
    """Return the source of a job; its paths are relative to the folder of the job file."""
    kind = table.choice("kind", SOURCE_KINDS)
    return _SOURCE_READERS[kind](table, folder)


def read_target(table: TomlTable, folder: Path) -> Landing:
    """Return the target of a job; its path is relative to the folder of the job file."""
    table.only("mode", "path", "stream", "keys", "newest_by", "range_column", "partition_by", "drift")
    path = table.optional_text("path")
    values: dict[str, Any] = {
        "mode": table.choice("mode", MODES),
        "path": None if path is None else resolve_path(path, folder),
        "stream": table.optional_text("stream"),
        "keys": table.texts("keys"),
        "newest_by": table.optional_text("newest_by"),
        "range_column": table.optional_text("range_column"),
        "partition_by": table.texts("partition_by"),
        "drift": table.choice("drift", DRIFTS, "freeze"),
    }
    with table.locating(by_field={name: name for name in values}):
        return Landing(**values)


def resolve_path(path: str, folder: Path) -> str:
    """Resolve a path relative to the folder of the job file; a URL such as s3://... is unchanged.

    >>> resolve_path("landed/orders", Path("/jobs")), resolve_path("s3://lake/orders", Path("/jobs"))
    ('/jobs/landed/orders', 's3://lake/orders')
    """
    return path if "://" in path else str(folder / path)


def read_secret(table: TomlTable, key: str, folder: Path) -> Secret | None:
    """Return the secret of a key, or None if the key is missing."""
    text = table.optional_text(key)
    return None if text is None else _parse_secret(table, key, text, folder)


def read_url(table: TomlTable, folder: Path) -> str | Secret:
    """Return the URL of a database, or a reference to it. SQLite files are relative to the folder of the job file."""
    url = table.text("url")
    if Secret.is_reference(url):
        return _parse_secret(table, "url", url, folder)
    scheme, _, path = url.partition(":///")
    is_relative = scheme.partition("+")[0] == "sqlite" and path and not path.startswith(("/", ":", "file:"))
    return f"{scheme}:///{folder / path}" if is_relative else url


def _parse_secret(table: TomlTable, key: str, text: str, folder: Path) -> Secret:
    with table.locating(key):
        secret = Secret.parse(text, dotted_key((*table.path, key)), folder=folder)
        if table.origin.environment is not None:
            secret.check(table.origin.environment)
        return secret


def _read_sql(table: TomlTable, folder: Path) -> SqlSource:
    table.only(
        *("kind", "url", "password", "table", "query", "watermark", "watermark_type", "pattern", "zone", "nulls"),
        *("fallback", "columns", "where", "units", "split_by", "splits", "connections"),
    )
    values: dict[str, Any] = {
        "url": read_url(table, folder),
        "password": read_secret(table, "password", folder),
        "watermark_type": table.choice("watermark_type", WATERMARK_TYPES, "timestamp"),
        "zone": _zone(table),
        "nulls": table.choice("nulls", NULLS, "fail"),
        "columns": table.texts("columns"),
        "units": table.mapping("units"),
        "splits": table.number("splits", 1, least=1),
        "connections": table.number("connections", 8, least=1),
        **{
            name: table.optional_text(name)
            for name in ("table", "query", "watermark", "pattern", "fallback", "where", "split_by")
        },
    }
    with table.locating(by_field={name: name for name in values}):
        return SqlSource(**values)


def _read_files(table: TomlTable, folder: Path) -> FilesSource:
    table.only(
        *("kind", "paths", "format", "time", "name_pattern", "name_format", "column", "zone", "schema", "options"),
    )
    values: dict[str, Any] = {
        "paths": tuple(resolve_path(path, folder) for path in table.texts("paths")),
        "format": table.choice("format", FILE_FORMATS),
        "time": table.choice("time", FILE_TIMES, "modified"),
        "zone": _zone(table),
        "options": table.mapping("options"),
        **{name: table.optional_text(name) for name in ("name_pattern", "name_format", "column", "schema")},
    }
    with table.locating(by_field={name: name for name in values}):
        return FilesSource(**values)


def _read_rest(table: TomlTable, folder: Path) -> RestSource:
    table.only(
        *("kind", "url", "method", "params", "headers", "body", "records", "time_format", "zone", "pagination"),
        *("auth", "rate", "retries", "timeout", "max_response_bytes", "schema"),
    )
    pages, auth = table.table("pagination"), table.table("auth")
    values: dict[str, Any] = {
        "url": table.text("url"),
        "method": table.choice("method", ("GET", "POST"), "GET"),
        "params": table.mapping("params"),
        "headers": table.mapping("headers"),
        "time_format": table.optional_text("time_format") or "iso",
        "zone": _zone(table),
        "pagination": Pagination() if pages is None else _pagination(pages),
        "auth": None if auth is None else _auth(auth, folder),
        "rate": _rate(table),
        "retries": table.number("retries", 5),
        "timeout": table.micros("timeout", 60_000_000),
        "max_response_bytes": table.number("max_response_bytes", 64 << 20, least=1),
        **{name: table.optional_text(name) for name in ("body", "records", "schema")},
    }
    with table.locating(by_field={name: name for name in values}):
        return RestSource(**values)


def _pagination(table: TomlTable) -> Pagination:
    table.only("by", "param", "next", "size", "size_param", "first", "total", "max_pages")
    values: dict[str, Any] = {
        "by": table.choice("by", PAGINGS),
        "size": table.number("size", None, least=1),
        "first": table.number("first", None),
        "max_pages": table.number("max_pages", 100_000, least=1),
        **{name: table.optional_text(name) for name in ("param", "next", "size_param", "total")},
    }
    with table.locating(by_field={name: name for name in values}):
        return Pagination(**values)


def _auth(table: TomlTable, folder: Path) -> Auth:
    table.only("by", "secret", "user", "name")
    by, secret = table.choice("by", AUTHS), read_secret(table, "secret", folder)
    if secret is None:
        raise table.missing("secret", "It must be a reference to a secret: env:NAME or file:PATH.")
    values: dict[str, Any] = {"by": by, "secret": secret}
    values.update({name: table.optional_text(name) for name in ("user", "name")})
    with table.locating(by_field={name: name for name in values}):
        return Auth(**values)


def _rate(table: TomlTable) -> float | None:
    """Return requests per second, from a number or a string such as "100 per 1 minute"."""
    value = table.values.get("rate")
    if value is None or (isinstance(value, int | float) and not isinstance(value, bool) and value > 0):
        return value
    if isinstance(value, str):
        count, per, period = value.partition(" per ")
        if per and count.strip().isdecimal() and int(count) > 0:
            with table.locating("rate"):
                return (
                    int(count)
                    * 1e6
                    / duration_micros(period if period[:1].isdigit() else f"1 {period}", "rate", least=1)
                )
    raise table.refuse(
        "rate",
        f"{dotted_key((*table.path, 'rate'))} is {value!r}.",
        rule="It must be a number of requests per second, or a number per period.",
        remedy='Set for example rate = 5, or rate = "100 per minute".',
    )


def _zone(table: TomlTable) -> str | None:
    zone = table.optional_text("zone")
    if zone is not None:
        with table.locating("zone"):
            zone_of(zone)
    return zone


_SOURCE_READERS: Final[Mapping[str, Callable[[TomlTable, Path], Source]]] = {
    "sql": _read_sql,
    "files": _read_files,
    "rest": _read_rest,
}
