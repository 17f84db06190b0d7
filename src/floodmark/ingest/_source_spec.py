"""Where a job reads from: a SQL database, or files. How it is read is not said here, only what."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Final, Literal

from floodmark.ingest._calendar import zone_of
from floodmark.ingest._frozen import Frozen
from floodmark.ingest._secrets import Secret, refuse_password
from floodmark.ingest._spec_checks import refused, require_above_zero, require_one_of, require_text

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
            raise refused(
                "table" if self.table is not None else "query",
                "The source has both table and query." if self.table else "The source has neither table nor query.",
                "A SQL source is either a table or a query.",
                "Keep the one that is meant.",
            )
        if self.watermark is None and not _names_both_ends(self.query):
            raise refused(
                "watermark",
                "The source has no watermark column.",
                "A range is read by a column, or by a query that names both {{range.from}} and {{range.to}}.",
                'Add watermark = "COLUMN".',
            )
        require_one_of("watermark_type", self.watermark_type, WATERMARK_TYPES)
        require_one_of("nulls", self.nulls, NULLS)
        if (self.watermark_type == "text") != (self.pattern is not None):
            raise refused(
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
            raise refused("paths", "The source has no paths.", "It has at least one.", 'Add paths = ["drops/*.csv"].')
        require_one_of("format", self.format, FILE_FORMATS)
        require_one_of("time", self.time, FILE_TIMES)
        needed = {"modified": (), "name": ("name_pattern", "name_format"), "column": ("column",)}[self.time]
        for name in ("name_pattern", "name_format", "column"):
            if (getattr(self, name) is not None) != (name in needed):
                raise refused(
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
        raise refused(
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
        raise refused(
            "name_pattern",
            f"name_pattern is no regular expression: {error}.",
            "It is one as Python writes them.",
            "Write for example 'orders-(?P<time>[0-9]{8})'.",
        ) from error
    if "time" not in groups:
        raise refused(
            "name_pattern",
            "name_pattern has no group that is called time.",
            "That group is where the time stands in a name.",
            "Write for example 'orders-(?P<time>[0-9]{8})'.",
        )
