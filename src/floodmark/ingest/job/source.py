"""Where a job reads from (SQL, files, REST), and where a moment lies in the values of a watermark column.

A watermark column holds wall times, dates, numbers or texts; a range is of moments. Each value of a column has one
moment, and a larger value never an earlier one:

| watermark_type | the moment of a value |
|---|---|
| `timestamp` | when a clock in the source's zone shows it: the *later* time of two; that of the skip if never |
| `timestamptz` | itself |
| `date` | its midnight, as `timestamp` says |
| `epoch-*` | itself, so many seconds, milliseconds or microseconds after the epoch |
| `text` | the first wall time that is written so, by the pattern |

The edge of a moment is the smallest value whose moment is not before it. So ranges that touch share an edge: what one
reads up to, without it, the next reads from. No row is lost between them, and none is read twice. An hour that comes
twice is read when it is over.
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
    """As SQLAlchemy writes it, without a password; or a reference to all of it."""
    watermark: str | None = None
    """The column whose ranges are read. None only where the query names {{range.from}} and {{range.to}} itself."""
    table: str | None = None
    query: str | None = None
    """One of the two. A query may name {{range.from}}, {{range.to}} and {{unit.FIELD}}: they become literals."""
    password: Secret | None = None
    watermark_type: WatermarkType = "timestamp"
    pattern: str | None = None
    """How a watermark of the type text is written, as strftime says it; such a text must sort as its time does."""
    zone: str | None = None
    """In which zone the database keeps timestamps without one; by default that of the job."""
    nulls: Nulls = "fail"
    """Rows without a watermark: the cell fails, they are left out, or they are read in each run (mode merge only)."""
    fallback: str | None = None
    """A column that counts where the watermark is NULL."""
    columns: tuple[str, ...] = ()
    """Which columns are read; by default all."""
    where: str | None = None
    """A condition that each row must meet as well."""
    units: Mapping[str, str] = field(default_factory=dict)
    """Which column a field of a unit is; by default the one of the same name."""
    split_by: str | None = None
    splits: int = 1
    """A large cell may be read in so many queries, by ranges of a column; by default of the watermark."""
    connections: int = 8
    """How many queries are open at once."""

    def __post_init__(self) -> None:
        """Refuse what cannot be read."""
        object.__setattr__(self, "units", Frozen(self.units))
        if isinstance(self.url, str):
            _check_url(self.url)
        if (self.table is None) == (self.query is None):
            raise invalid_option(
                "table" if self.table is not None else "query",
                "The source has both table and query." if self.table else "The source has neither table nor query.",
                "A SQL source is either a table or a query.",
                "Keep the one that is meant.",
            )
        if self.watermark is None and not _names_both_ends(self.query):
            raise invalid_option(
                "watermark",
                "The source has no watermark column.",
                "A range is read by a column, or by a query that names both {{range.from}} and {{range.to}}.",
                'Add watermark = "COLUMN".',
            )
        require_one_of("watermark_type", self.watermark_type, WATERMARK_TYPES)
        require_one_of("nulls", self.nulls, NULLS)
        if (self.watermark_type == "text") != (self.pattern is not None):
            raise invalid_option(
                "pattern",
                f"The watermark's type is {self.watermark_type!r} and its pattern {self.pattern!r}.",
                "A text has a pattern, and nothing else has one.",
                "Write for example watermark_type = 'text' and pattern = '%Y-%m-%dT%H:%M:%S'.",
            )
        if self.zone is not None:
            zone_of(self.zone)
        for name in ("splits", "connections"):
            require_above_zero(name, getattr(self, name))


@dataclass(frozen=True, slots=True)
class FilesSource:
    """Files, which are listed when a plan is made, and read exactly as listed.

    >>> FilesSource(paths=("drops/*.csv",), format="csv").time
    'modified'
    """

    kind: ClassVar[str] = "files"
    paths: tuple[str, ...]
    """Paths or patterns such as drops/*.csv; they may name {{unit.FIELD}}."""
    format: str
    time: FileTime = "modified"
    """What places a file in time: when it was modified, its name, or a column of its rows.

    With one of the first two the rows get the columns `_file` and `_file_time`; with the last one only `_file`, and
    each cell looks through all files. A file that is modified later is read again, at its new time, if that is what
    places it; what was landed of it before stays.
    """
    name_pattern: str | None = None
    """For the time in a name: a regular expression with a group `time`.

    It is looked for in the last part of the path, or in all of it if there is a `/` in the expression.
    """
    name_format: str | None = None
    """How that group is written, as strptime says it."""
    column: str | None = None
    """For the time in rows: their column."""
    zone: str | None = None
    schema: str | None = None
    """The columns, as Spark writes schemas; by default they are found in the files."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Of Spark's reader. What cannot be parsed fails the cell, unless `mode` says otherwise."""

    def __post_init__(self) -> None:
        """Refuse what cannot be read."""
        object.__setattr__(self, "options", Frozen(self.options))
        if not self.paths:
            raise invalid_option(
                "paths", "The source has no paths.", "It has at least one.", 'Add paths = ["drops/*.csv"].'
            )
        require_one_of("format", self.format, FILE_FORMATS)
        require_one_of("time", self.time, FILE_TIMES)
        needed = {"modified": (), "name": ("name_pattern", "name_format"), "column": ("column",)}[self.time]
        for name in ("name_pattern", "name_format", "column"):
            if (getattr(self, name) is not None) != (name in needed):
                raise invalid_option(
                    name,
                    f"time is {self.time!r}, and {name} is {getattr(self, name)!r}.",
                    "A time in the name needs name_pattern and name_format, one in rows needs column.",
                    f"Add {name}." if name in needed else f"Leave {name} out.",
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
            "It is written as SQLAlchemy writes it, or refers to a secret.",
            'Write for example "postgresql://USER@HOST/DATABASE", "sqlite:///FILE" or "env:NAME".',
        )


def _names_both_ends(query: str | None) -> bool:
    return query is not None and all(re.search(rf"\{{\{{\s*range\.{end}\s*\}}\}}", query) for end in ("from", "to"))


def _check_name_pattern(pattern: str) -> None:
    try:
        groups = re.compile(pattern).groupindex
    except re.error as error:
        raise invalid_option(
            "name_pattern",
            f"name_pattern is no regular expression: {error}.",
            "It is one as Python writes them.",
            "Write for example 'orders-(?P<time>[0-9]{8})'.",
        ) from error
    if "time" not in groups:
        raise invalid_option(
            "name_pattern",
            "name_pattern has no group that is called time.",
            "That group is where the time stands in a name.",
            "Write for example 'orders-(?P<time>[0-9]{8})'.",
        )


Paging = Literal["none", "cursor", "offset", "page", "link"]
PAGINGS: Final = ("none", "cursor", "offset", "page", "link")
AuthKind = Literal["bearer", "basic", "header", "query"]
AUTHS: Final = ("bearer", "basic", "header", "query")
TIME_FORMATS: Final = ("iso", "epoch-seconds", "epoch-millis", "epoch-micros")
_NEEDED: Final[Mapping[str, tuple[str, ...]]] = {
    "none": (),
    "cursor": ("param", "next"),
    "offset": ("param", "size"),
    "page": ("param",),
    "link": (),
}


@dataclass(frozen=True, slots=True)
class Pagination:
    """How one page leads to the next. A page without records is the last one in each case.

    >>> Pagination(by="offset", param="skip", size=100).first
    0
    """

    by: Paging = "none"
    param: str | None = None
    """The parameter that carries the cursor, the offset or the number of the page."""
    next: str | None = None
    """Where in an answer the next cursor is, as names with dots between them."""
    size: int | None = None
    size_param: str | None = None
    """How many records a page has, and the parameter that says so."""
    first: int | None = None
    """The first offset or page; by default 0 of offsets, and 1 of pages."""
    total: str | None = None
    """Where in an answer the number of all records is."""
    max_pages: int = 100_000

    def __post_init__(self) -> None:
        """Refuse what leads nowhere."""
        require_one_of("by", self.by, PAGINGS)
        if self.first is None:
            object.__setattr__(self, "first", 1 if self.by == "page" else 0)
        for name in _NEEDED[self.by]:
            if getattr(self, name) is None:
                raise invalid_option(
                    name,
                    f"Pagination by {self.by} has no {name}.",
                    f"It needs {' and '.join(_NEEDED[self.by])}.",
                    f"Add {name}.",
                )
        require_above_zero("size", self.size)
        require_above_zero("max_pages", self.max_pages)


@dataclass(frozen=True, slots=True)
class Auth:
    """Who asks. The secret is referred to, and given with each request.

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
        """Refuse what lacks a part."""
        require_one_of("by", self.by, AUTHS)
        for name, users in (("user", ("basic",)), ("name", ("header", "query"))):
            if (getattr(self, name) is not None) != (self.by in users):
                raise invalid_option(
                    name,
                    f"Authentication by {self.by} has {name} = {getattr(self, name)!r}.",
                    "basic has a user, header and query have a name, and nothing else has them.",
                    f"Add {name}." if self.by in users else f"Leave {name} out.",
                )


@dataclass(frozen=True, slots=True)
class RestSource:
    """A REST service that answers in JSON.

    >>> source = RestSource(url="https://api.example/orders", params={"since": "{{range.from}}", "to": "{{range.to}}"})
    >>> source.method, source.retries
    ('GET', 5)
    """

    kind: ClassVar[str] = "rest"
    url: str
    """It, `params`, `headers` and `body` may name {{range.from}}, {{range.to}} and {{unit.FIELD}}."""
    method: Literal["GET", "POST"] = "GET"
    params: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: str | None = None
    records: str | None = None
    """Where in an answer the records are, as names with dots between them; by default the answer is the list."""
    time_format: str = "iso"
    """How {{range.from}} and {{range.to}} are written: iso, epoch-seconds, -millis, -micros, or as strftime says it."""
    zone: str | None = None
    """In which zone they are written; by default that of the job."""
    pagination: Pagination = Pagination()
    auth: Auth | None = None
    rate: float | None = None
    """At most so many requests a second, over the whole run."""
    retries: int = 5
    timeout: int = 60_000_000
    """In microseconds, for one request."""
    schema: str | None = None
    """The columns, as Spark writes schemas."""

    def __post_init__(self) -> None:
        """Refuse what cannot be asked."""
        object.__setattr__(self, "params", Frozen(self.params))
        object.__setattr__(self, "headers", Frozen(self.headers))
        require_text("url", self.url)
        refuse_password(self.url, "url")
        if not self.url.startswith(("http://", "https://")):
            raise invalid_option(
                "url",
                "The URL begins neither with https:// nor with http://.",
                "A REST service is asked over HTTP.",
                'Write for example "https://api.example/orders".',
            )
        require_one_of("method", self.method, ("GET", "POST"))
        if self.body is not None and self.method == "GET":
            raise invalid_option(
                "body", "A GET has a body.", "Only a POST has one.", 'Write method = "POST", or use params.'
            )
        for header in self.headers:
            if header.lower() in ("authorization", "cookie", "proxy-authorization", "x-api-key"):
                raise invalid_option(
                    "headers",
                    f"The header {header} stands in plain words.",
                    "What proves who asks is a secret, and is referred to.",
                    'Use [source.auth], for example by = "bearer" and secret = "env:NAME".',
                )
        for name in self.params:
            if name.lower() in SECRET_NAMES:
                raise invalid_option(
                    "params",
                    f"The parameter {name} stands in plain words.",
                    "What proves who asks is a secret, and is referred to.",
                    f'Use [source.auth] with by = "query", name = "{name}" and secret = "env:NAME".',
                )
        if self.time_format not in TIME_FORMATS and "%" not in self.time_format:
            require_one_of("time_format", self.time_format, TIME_FORMATS)
        if self.zone is not None:
            zone_of(self.zone)
        require_above_zero("rate", self.rate)
        require_above_zero("timeout", self.timeout)
        if self.retries < 0:
            raise invalid_option("retries", f"retries is {self.retries}.", "It is 0 or more.", "Give 0 for none.")


FILE_TIME_COLUMN: Final = "_file_time"
"""The column that rows of files get: the time of their file, where a file has one."""


def watermark_column(source: Any) -> str | None:
    """Return the column of a source's rows that places them in time, if there is one.

    Files that have a time themselves give it to their rows, in a column of its own.

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
"""How many microseconds a number counts."""
_DAY: Final = timedelta(days=1)
_LONGEST: Final = timedelta(days=800)

# Each is later than the one before by another part of a date, or by more hours than twelve.
_LADDER: Final = tuple(
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
    """Return the smallest value of a column of this type whose moment is not before this one.

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
    """Refuse a pattern whose texts do not sort as their times do.

    >>> check_text_pattern("%d.%m.%Y")
    Traceback (most recent call last):
    floodmark.errors.InvalidOption: Texts of the pattern '%d.%m.%Y' do not sort as their times do. ... [invalid-option]
    """
    texts = [one.strftime(pattern) for one in _LADDER]
    if any(one > other for one, other in pairwise(texts)) or texts[0] >= texts[-1]:
        raise _invalid_pattern(pattern, f"Texts of the pattern {pattern!r} do not sort as their times do.")
    if {"%z", "%Z"} & {pattern[at : at + 2] for at in range(len(pattern))}:
        raise _invalid_pattern(pattern, f"The pattern {pattern!r} has a zone in it.")


def _first_text_at(local: datetime, pattern: str) -> str:
    check_text_pattern(pattern)
    text = local.strftime(pattern)
    if text != (local - MICROSECOND).strftime(pattern):
        return text
    # Not the first that is written so: the next text is the edge.
    low, step = local, MICROSECOND
    while (local + step).strftime(pattern) == text:
        low, step = local + step, step * 2
        if step > _LONGEST:
            raise _invalid_pattern(pattern, f"Texts of the pattern {pattern!r} do not change for years.")
    high = local + step
    while high - low > MICROSECOND:
        middle = low + (high - low) // 2
        low, high = (middle, high) if middle.strftime(pattern) == text else (low, middle)
    return high.strftime(pattern)


def _invalid_pattern(pattern: str, fact: str) -> InvalidOption:
    return InvalidOption(
        fact,
        rule="A watermark that is a text is compared as a text: year, month, day, hour and so on, in full digits.",
        remedy="Read a query whose watermark is written so, and name its pattern, such as '%Y-%m-%dT%H:%M:%S'.",
        option="pattern",
        pattern=pattern,
    )
