"""The source of a job (SQL, files, REST), and the conversion of moments to values of a watermark column.

A watermark column holds wall times, dates, numbers or strings; a range is between two moments. Each value of a column
has one moment, and a larger value never has an earlier one:

| watermark_type | the moment of a value |
|---|---|
| `timestamp` | the wall time in the source's zone; the *later* moment if it is repeated, the skip if it is skipped |
| `timestamptz` | itself |
| `date` | its midnight, as for `timestamp` |
| `epoch-*` | itself, in seconds, milliseconds or microseconds after the epoch |
| `text` | the first wall time with this text, by the pattern |

The edge of a moment is the smallest value whose moment is not before it. Adjacent ranges share an edge, which the
first excludes and the second includes: no row is lost or read twice. A repeated hour is read after its second pass.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from itertools import pairwise
from typing import Any, ClassVar, Final, Literal

from floodmark.errors import InvalidOption
from floodmark.ingest.calendar.clock import EPOCH, MICROSECOND, wall_not_before, zone_of
from floodmark.ingest.job.options import (
    SECRET_NAMES,
    Frozen,
    Secret,
    invalid_option,
    refuse_password,
    require_above_zero,
    require_one_of,
    require_text,
)

WatermarkType = Literal["timestamp", "timestamptz", "date", "epoch-seconds", "epoch-millis", "epoch-micros", "text"]
WATERMARK_TYPES: Final = ("timestamp", "timestamptz", "date", "epoch-seconds", "epoch-millis", "epoch-micros", "text")
Nulls = Literal["fail", "skip", "read"]
NULLS: Final = ("fail", "skip", "read")
FileTime = Literal["modified", "name", "column"]
FILE_TIMES: Final = ("modified", "name", "column")
FILE_FORMATS: Final = ("csv", "json", "parquet", "orc", "avro", "text", "binary")


@dataclass(frozen=True, slots=True)
class SqlSource:
    """A table or a query of a SQL database, read by ranges of a watermark column.

    >>> SqlSource(url="sqlite:///shop.db", table="orders", watermark="updated_at", zone="UTC").nulls
    'fail'
    """

    kind: ClassVar[str] = "sql"
    url: str | Secret
    """A SQLAlchemy URL without password; or a reference to a secret with the whole URL."""
    watermark: str | None = None
    """The column that ranges select by. None only if the query uses {{range.from}} and {{range.to}}."""
    table: str | None = None
    query: str | None = None
    """Exactly one of table and query is set. {{range.from}}, {{range.to}} and {{unit.FIELD}} become values.

    Such a variable stands by itself in a query, outside quotes and comments: LIKE '%' || {{unit.id}}. In the name of a
    table, its value is a part of one name, also if it has a dot.
    """
    password: Secret | None = None
    watermark_type: WatermarkType = "timestamp"
    pattern: str | None = None
    """The strftime pattern of a watermark of the type text; the strings must sort like their times."""
    zone: str | None = None
    """The zone of timestamps without zone; by default that of the job."""
    nulls: Nulls = "fail"
    """Rows without watermark: fail the cell, skip them, or read them in each run (mode merge only)."""
    fallback: str | None = None
    """A column to use where the watermark is NULL."""
    columns: tuple[str, ...] = ()
    """The columns to read; by default all."""
    where: str | None = None
    """An additional SQL condition."""
    units: Mapping[str, str] = field(default_factory=dict)
    """The column of each field of a unit; by default the column with the same name."""
    split_by: str | None = None
    splits: int = 1
    """How many queries a large cell is read in, split by ranges of `split_by` (default: the watermark)."""
    connections: int = 8
    """How many queries may run at once."""

    def __post_init__(self) -> None:
        """Validate the source."""
        object.__setattr__(self, "units", Frozen(self.units))
        if isinstance(self.url, str):
            _check_url(self.url)
        if (self.table is None) == (self.query is None):
            raise invalid_option(
                "table" if self.table is not None else "query",
                "Both table and query are set." if self.table else "Neither table nor query is set.",
                "A SQL source is read by a table or by a query.",
                "Set exactly one of table and query.",
            )
        if self.watermark is None and not _names_both_ends(self.query):
            raise invalid_option(
                "watermark",
                "The source has no watermark column.",
                "A range is selected by a column, or by a query that uses both {{range.from}} and {{range.to}}.",
                'Set watermark = "COLUMN".',
            )
        require_one_of("watermark_type", self.watermark_type, WATERMARK_TYPES)
        require_one_of("nulls", self.nulls, NULLS)
        if (self.watermark_type == "text") != (self.pattern is not None):
            raise invalid_option(
                "pattern",
                f"watermark_type is {self.watermark_type!r} and pattern is {self.pattern!r}.",
                "The watermark type text needs a pattern; other types do not take one.",
                "Set for example watermark_type = 'text' and pattern = '%Y-%m-%dT%H:%M:%S'.",
            )
        if self.zone is not None:
            zone_of(self.zone)
        for name in ("splits", "connections"):
            require_above_zero(name, getattr(self, name))


@dataclass(frozen=True, slots=True)
class FilesSource:
    """Files, which are listed when a plan is made and read exactly as listed.

    >>> FilesSource(paths=("drops/*.csv",), format="csv").time
    'modified'
    """

    kind: ClassVar[str] = "files"
    paths: tuple[str, ...]
    """Paths or patterns such as drops/*.csv; they may contain {{unit.FIELD}}."""
    format: str
    time: FileTime = "modified"
    """What gives the time of rows: the modification time of the file, its name, or a column.

    With `modified` and `name`, rows get the columns `_file` and `_file_time`. With `column`, they get only `_file`, and
    each cell scans all files. With `modified`, a file that changes is read again at its new time; rows landed before
    stay.
    """
    name_pattern: str | None = None
    """For the time `name`: a regular expression with a group `time`.

    It is searched in the file name, or in the whole path if the expression contains a `/`.
    """
    name_format: str | None = None
    """The strptime format of that group."""
    column: str | None = None
    """For the time `column`: the column."""
    zone: str | None = None
    schema: str | None = None
    """The columns as a Spark schema string; by default they are inferred from the files."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Options of Spark's reader. Rows that cannot be parsed fail the cell, unless `mode` is set otherwise."""

    def __post_init__(self) -> None:
        """Validate the source."""
        object.__setattr__(self, "options", Frozen(self.options))
        if not self.paths:
            raise invalid_option(
                "paths", "The source has no paths.", "At least one path is needed.", 'Set paths = ["drops/*.csv"].'
            )
        require_one_of("format", self.format, FILE_FORMATS)
        require_one_of("time", self.time, FILE_TIMES)
        required = {"modified": (), "name": ("name_pattern", "name_format"), "column": ("column",)}[self.time]
        for name in ("name_pattern", "name_format", "column"):
            if (getattr(self, name) is not None) != (name in required):
                raise invalid_option(
                    name,
                    f"time is {self.time!r}, and {name} is {getattr(self, name)!r}.",
                    "The time name needs name_pattern and name_format, the time column needs column.",
                    f"Set {name}." if name in required else f"Remove {name}.",
                )
        if self.name_pattern is not None:
            _check_name_pattern(self.name_pattern)
        if self.zone is not None:
            zone_of(self.zone)


def _check_url(url: str) -> None:
    require_text("url", url)
    refuse_password(url, "url")
    if "://" not in url:
        raise invalid_option(
            "url",
            "The URL has no scheme.",
            "It must be a SQLAlchemy URL, or a reference to a secret.",
            'Set for example "postgresql://USER@HOST/DATABASE", "sqlite:///FILE" or "env:NAME".',
        )


def _names_both_ends(query: str | None) -> bool:
    return query is not None and all(re.search(rf"\{{\{{\s*range\.{end}\s*\}}\}}", query) for end in ("from", "to"))


def _check_name_pattern(pattern: str) -> None:
    try:
        groups = re.compile(pattern).groupindex
    except re.error as error:
        raise invalid_option(
            "name_pattern",
            f"name_pattern is not a regular expression: {error}.",
            "It must be a Python regular expression.",
            "Set for example 'orders-(?P<time>[0-9]{8})'.",
        ) from error
    if "time" not in groups:
        raise invalid_option(
            "name_pattern",
            "name_pattern has no group named time.",
            "The group `time` extracts the time from the name.",
            "Set for example 'orders-(?P<time>[0-9]{8})'.",
        )


Paging = Literal["none", "cursor", "offset", "page", "link"]
PAGINGS: Final = ("none", "cursor", "offset", "page", "link")
AuthKind = Literal["bearer", "basic", "header", "query"]
AUTHS: Final = ("bearer", "basic", "header", "query")
TIME_FORMATS: Final = ("iso", "epoch-seconds", "epoch-millis", "epoch-micros")
_REQUIRED_KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "none": (),
    "cursor": ("param", "next"),
    "offset": ("param", "size"),
    "page": ("param",),
    "link": (),
}


@dataclass(frozen=True, slots=True)
class Pagination:
    """How the next page of a reply is requested. A page without records is always the last.

    >>> Pagination(by="offset", param="skip", size=100).first
    0
    """

    by: Paging = "none"
    param: str | None = None
    """The parameter that carries the cursor, the offset or the number of the page."""
    next: str | None = None
    """The path of the next cursor in a reply, as names separated by dots."""
    size: int | None = None
    size_param: str | None = None
    """The number of records per page is `size`; `size_param` is the parameter that requests it."""
    first: int | None = None
    """The first offset (default: 0) or page (default: 1)."""
    total: str | None = None
    """The path of the total number of records in a reply."""
    max_pages: int = 100_000

    def __post_init__(self) -> None:
        """Validate the pagination."""
        require_one_of("by", self.by, PAGINGS)
        if self.first is None:
            object.__setattr__(self, "first", 1 if self.by == "page" else 0)
        for name in _REQUIRED_KEYS[self.by]:
            if getattr(self, name) is None:
                raise invalid_option(
                    name,
                    f"Pagination by {self.by} has no {name}.",
                    f"It needs {' and '.join(_REQUIRED_KEYS[self.by])}.",
                    f"Set {name} in [source.pagination].",
                )
        require_above_zero("size", self.size)
        require_above_zero("max_pages", self.max_pages)


@dataclass(frozen=True, slots=True)
class Auth:
    """The authentication of requests; the secret is a reference and is sent with each request.

    >>> Auth(by="bearer", secret=Secret("env", "SHOP_TOKEN"))
    Auth(by='bearer', secret=Secret(kind='env', name='SHOP_TOKEN'), user=None, name=None)
    """

    by: AuthKind
    secret: Secret
    user: str | None = None
    """For basic: the user."""
    name: str | None = None
    """For header and query: the name of the header or parameter."""

    def __post_init__(self) -> None:
        """Validate the authentication."""
        require_one_of("by", self.by, AUTHS)
        for name, users in (("user", ("basic",)), ("name", ("header", "query"))):
            if (getattr(self, name) is not None) != (self.by in users):
                raise invalid_option(
                    name,
                    f"Authentication by {self.by} has {name} = {getattr(self, name)!r}.",
                    "basic needs user; header and query need name; other combinations are not allowed.",
                    f"Set {name}." if self.by in users else f"Remove {name}.",
                )


@dataclass(frozen=True, slots=True)
class RestSource:
    """A REST service with JSON replies.

    >>> source = RestSource(url="https://api.example/orders", params={"since": "{{range.from}}", "to": "{{range.to}}"})
    >>> source.method, source.retries
    ('GET', 5)
    """

    kind: ClassVar[str] = "rest"
    url: str
    """`url`, `params`, `headers` and `body` may contain {{range.from}}, {{range.to}} and {{unit.FIELD}}."""
    method: Literal["GET", "POST"] = "GET"
    params: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: str | None = None
    records: str | None = None
    """The path of the list of records in a reply, as names separated by dots; by default the reply is the list."""
    time_format: str = "iso"
    """The format of {{range.from}} and {{range.to}}: iso, epoch-seconds, -millis, -micros, or a strftime pattern."""
    zone: str | None = None
    """The zone of these times; by default that of the job."""
    pagination: Pagination = Pagination()
    auth: Auth | None = None
    rate: float | None = None
    """The maximum number of requests per second, over the whole run."""
    retries: int = 5
    timeout: int = 60_000_000
    """The timeout of one request, in microseconds."""
    max_response_bytes: int = 64 << 20
    """A response with more bytes than this after decompression fails the cell; it is held in memory as a whole."""
    schema: str | None = None
    """The columns as a Spark schema string."""

    def __post_init__(self) -> None:
        """Validate the source."""
        object.__setattr__(self, "params", Frozen(self.params))
        object.__setattr__(self, "headers", Frozen(self.headers))
        require_text("url", self.url)
        refuse_password(self.url, "url")
        if not self.url.startswith(("http://", "https://")):
            raise invalid_option(
                "url",
                "The URL starts neither with https:// nor with http://.",
                "A REST service is called over HTTP or HTTPS.",
                'Set for example "https://api.example/orders".',
            )
        require_one_of("method", self.method, ("GET", "POST"))
        if self.body is not None and self.method == "GET":
            raise invalid_option(
                "body", "A GET request has a body.", "Only POST has a body.", 'Set method = "POST", or use params.'
            )
        for header in self.headers:
            if header.lower() in ("authorization", "cookie", "proxy-authorization", "x-api-key"):
                raise invalid_option(
                    "headers",
                    f"The header {header} contains a secret in plain text.",
                    "Credentials must be references to secrets.",
                    'Use [source.auth], for example by = "bearer" and secret = "env:NAME".',
                )
        for name in self.params:
            if name.lower() in SECRET_NAMES:
                raise invalid_option(
                    "params",
                    f"The parameter {name} contains a secret in plain text.",
                    "Credentials must be references to secrets.",
                    f'Use [source.auth] with by = "query", name = "{name}" and secret = "env:NAME".',
                )
        if self.time_format not in TIME_FORMATS and "%" not in self.time_format:
            require_one_of("time_format", self.time_format, TIME_FORMATS)
        if self.zone is not None:
            zone_of(self.zone)
        require_above_zero("rate", self.rate)
        require_above_zero("timeout", self.timeout)
        require_above_zero("max_response_bytes", self.max_response_bytes)
        if self.retries < 0:
            raise invalid_option(
                "retries", f"retries is {self.retries}.", "It must be 0 or more.", "Set retries = 0 for none."
            )


FILE_TIME_COLUMN: Final = "_file_time"
"""The column with the time of the file that a row is from."""


def watermark_column(source: Any) -> str | None:
    """Return the column with the time of a source's rows, or None if it has none.

    For files with a time of their own, that is the column `_file_time`.

    >>> watermark_column(FilesSource(paths=("x/*.csv",), format="csv"))
    '_file_time'
    >>> watermark_column(FilesSource(paths=("x/*.csv",), format="csv", time="column", column="at"))
    'at'
    """
    if isinstance(source, SqlSource):
        return source.watermark
    if isinstance(source, FilesSource):
        return source.column if source.time == "column" else FILE_TIME_COLUMN
    return None


WatermarkValue = datetime | date | int | str

EPOCH_UNITS: Final = {"epoch-seconds": 1_000_000, "epoch-millis": 1_000, "epoch-micros": 1}
"""Microseconds per unit of each numeric watermark type."""
_DAY: Final = timedelta(days=1)
_LONGEST_PERIOD: Final = timedelta(days=800)

# Each differs from the previous one in another field of the date, or by more than twelve hours.
_SORT_SAMPLES: Final = tuple(
    datetime.fromisoformat(text)
    for text in (
        "1999-12-31T23:59:59.999999",
        "2009-10-02T09:10:20.000001",
        "2010-09-01T21:10:20.000001",
        "2010-09-10T02:03:04.000001",
        "2010-10-02T01:59:59.000001",
        "2010-10-02T09:58:59.000001",
        "2010-10-02T11:08:09.000001",
        "2010-10-02T13:07:05.000001",
    )
)


def first_value_at(micros: int, kind: WatermarkType, zone: str, pattern: str | None = None) -> WatermarkValue:
    """Return the smallest value of this watermark type whose moment is not before `micros`.

    >>> first_value_at(1_500_000, "epoch-seconds", "UTC"), first_value_at(1_500_000, "date", "UTC")
    (2, datetime.date(1970, 1, 2))
    >>> first_value_at(5_400_000_000, "text", "Asia/Kolkata", "%Y-%m-%d %H")
    '1970-01-01 07'
    """
    if kind in EPOCH_UNITS:
        return -(-micros // EPOCH_UNITS[kind])
    if kind == "timestamptz":
        return EPOCH + timedelta(microseconds=micros)
    local = wall_not_before(micros, zone_of(zone))
    if kind == "date":
        return local.date() if local.time() == time.min else local.date() + _DAY
    return local if kind == "timestamp" else _first_text_at(local, pattern or "")


def check_text_pattern(pattern: str) -> None:
    """Raise `InvalidOption` for a pattern whose strings do not sort like their times.

    >>> check_text_pattern("%d.%m.%Y")
    Traceback (most recent call last):
    floodmark.errors.InvalidOption: Strings of the pattern '%d.%m.%Y' do not sort like their times. ... [invalid-option]
    """
    texts = [sample.strftime(pattern) for sample in _SORT_SAMPLES]
    if any(one > other for one, other in pairwise(texts)) or texts[0] >= texts[-1]:
        raise _invalid_pattern(pattern, f"Strings of the pattern {pattern!r} do not sort like their times.")
    if {"%z", "%Z"} & {pattern[at : at + 2] for at in range(len(pattern))}:
        raise _invalid_pattern(pattern, f"The pattern {pattern!r} contains a zone.")


def _first_text_at(local: datetime, pattern: str) -> str:
    check_text_pattern(pattern)
    text = local.strftime(pattern)
    if text != (local - MICROSECOND).strftime(pattern):
        return text
    # An earlier time has the same text, so the edge is the next text.
    low, step = local, MICROSECOND
    while (local + step).strftime(pattern) == text:
        low, step = local + step, step * 2
        if step > _LONGEST_PERIOD:
            raise _invalid_pattern(pattern, f"Strings of the pattern {pattern!r} do not change for years.")
    high = local + step
    while high - low > MICROSECOND:
        middle = low + (high - low) // 2
        low, high = (middle, high) if middle.strftime(pattern) == text else (low, middle)
    return high.strftime(pattern)


def _invalid_pattern(pattern: str, fact: str) -> InvalidOption:
    return InvalidOption(
        fact,
        rule="Watermarks of the type text are compared as strings: year, month, day, hour, ... in full digits.",
        remedy="Use a query that formats the watermark like '%Y-%m-%dT%H:%M:%S', and set that pattern.",
        option="pattern",
        pattern=pattern,
    )
