"""The tables [source] and [target] of a job file, read into what they mean."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from floodmark._util.times import duration_micros
from floodmark.ingest._calendar import zone_of
from floodmark.ingest._rest_spec import AUTHS, PAGINGS, Auth, Pagination, RestSource
from floodmark.ingest._secrets import Secret
from floodmark.ingest._source_spec import FILE_FORMATS, FILE_TIMES, NULLS, WATERMARK_TYPES, FilesSource, SqlSource
from floodmark.ingest._tables import Table, dotted
from floodmark.ingest._target_spec import DRIFTS, MODES, Landing

Source = SqlSource | FilesSource | RestSource
KINDS: Final = ("sql", "files", "rest")


def read_source(table: Table, folder: Path) -> Source:
    """Return the source that a table describes; paths in it are relative to the folder of the job file."""
    kind = table.choice("kind", KINDS)
    return _READERS[kind](table, folder)


def read_target(table: Table, folder: Path) -> Landing:
    """Return the target that a table describes."""
    table.only("mode", "path", "stream", "keys", "newest_by", "range_column", "partition_by", "drift")
    path = table.optional_text("path")
    values: dict[str, Any] = {
        "mode": table.choice("mode", MODES),
        "path": None if path is None else place_of(path, folder),
        "stream": table.optional_text("stream"),
        "keys": table.texts("keys"),
        "newest_by": table.optional_text("newest_by"),
        "range_column": table.optional_text("range_column"),
        "partition_by": table.texts("partition_by"),
        "drift": table.choice("drift", DRIFTS, "freeze"),
    }
    with table.locating(by_field={name: name for name in values}):
        return Landing(**values)


def place_of(path: str, folder: Path) -> str:
    """Return a path as seen from the folder of the job file; what has a scheme, such as s3://, stays as it is.

    >>> place_of("landed/orders", Path("/jobs")), place_of("s3://lake/orders", Path("/jobs"))
    ('/jobs/landed/orders', 's3://lake/orders')
    """
    return path if "://" in path else str(folder / path)


def read_secret(table: Table, key: str, folder: Path) -> Secret | None:
    """Return the secret that a key refers to, or None if it is not there."""
    text = table.optional_text(key)
    return None if text is None else _referred(table, key, text, folder)


def read_url(table: Table, folder: Path) -> str | Secret:
    """Return the URL of a database, or a reference to it. A file of SQLite is relative to the folder of the job."""
    url = table.text("url")
    if Secret.is_reference(url):
        return _referred(table, "url", url, folder)
    scheme, _, path = url.partition(":///")
    is_relative = scheme.partition("+")[0] == "sqlite" and path and not path.startswith(("/", ":", "file:"))
    return f"{scheme}:///{folder / path}" if is_relative else url


def _referred(table: Table, key: str, text: str, folder: Path) -> Secret:
    with table.locating(key):
        secret = Secret.parse(text, dotted((*table.path, key)), folder=folder)
        if table.origin.environment is not None:
            secret.check(table.origin.environment)
        return secret


def _sql(table: Table, folder: Path) -> SqlSource:
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


def _files(table: Table, folder: Path) -> FilesSource:
    table.only(
        *("kind", "paths", "format", "time", "name_pattern", "name_format", "column", "zone", "schema", "options"),
    )
    values: dict[str, Any] = {
        "paths": tuple(place_of(path, folder) for path in table.texts("paths")),
        "format": table.choice("format", FILE_FORMATS),
        "time": table.choice("time", FILE_TIMES, "modified"),
        "zone": _zone(table),
        "options": table.mapping("options"),
        **{name: table.optional_text(name) for name in ("name_pattern", "name_format", "column", "schema")},
    }
    with table.locating(by_field={name: name for name in values}):
        return FilesSource(**values)


def _rest(table: Table, folder: Path) -> RestSource:
    table.only(
        *("kind", "url", "method", "params", "headers", "body", "records", "time_format", "zone", "pagination"),
        *("auth", "rate", "retries", "timeout", "schema"),
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
        **{name: table.optional_text(name) for name in ("body", "records", "schema")},
    }
    with table.locating(by_field={name: name for name in values}):
        return RestSource(**values)


def _pagination(table: Table) -> Pagination:
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


def _auth(table: Table, folder: Path) -> Auth:
    table.only("by", "secret", "user", "name")
    by, secret = table.choice("by", AUTHS), read_secret(table, "secret", folder)
    if secret is None:
        raise table.missing("secret", "It refers to a secret, as env:NAME or file:PATH.")
    values: dict[str, Any] = {"by": by, "secret": secret}
    values.update({name: table.optional_text(name) for name in ("user", "name")})
    with table.locating(by_field={name: name for name in values}):
        return Auth(**values)


def _rate(table: Table) -> float | None:
    """Return requests a second of a text such as "100 per 1 minute", or of a number."""
    value = table.values.get("rate")
    if value is None or (isinstance(value, int | float) and not isinstance(value, bool) and value > 0):
        return value
    if isinstance(value, str):
        count, per, time = value.partition(" per ")
        if per and count.strip().isdecimal() and int(count) > 0:
            with table.locating("rate"):
                return int(count) * 1e6 / duration_micros(time if time[:1].isdigit() else f"1 {time}", "rate", least=1)
    raise table.refuse(
        "rate",
        f"{dotted((*table.path, 'rate'))} is {value!r}.",
        rule="It is a number of requests a second, or so many in a time.",
        remedy='Write for example 5, or "100 per minute".',
    )


def _zone(table: Table) -> str | None:
    zone = table.optional_text("zone")
    if zone is not None:
        with table.locating("zone"):
            zone_of(zone)
    return zone


_READERS: Final[Mapping[str, Callable[[Table, Path], Source]]] = {"sql": _sql, "files": _files, "rest": _rest}
