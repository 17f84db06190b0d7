"""Files written into the directory of a table before a commit names them, and their statistics.

Each attempt has a directory of its own there, and a note beside the table's log until it is committed or removed. The
next process finds the notes of uncommitted attempts and removes their files. Files without a note are left to the
table's own vacuum.
"""

import hashlib
import json
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from floodmark.errors import InvalidValue

_NOTES_DIRECTORY: Final = "_floodmark"
"""Readers of a table skip names that begin with _."""
_ATTEMPT_PREFIX: Final = "floodmark-"
_NULL_PARTITION: Final = "__HIVE_DEFAULT_PARTITION__"
_ATTEMPT_PATTERN: Final = re.compile(r"[0-9a-z]{1,64}")


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A Parquet file inside the directory of a table that no commit names yet."""

    path: str
    """Path relative to the table, with / between directories."""
    size: int
    modified: int
    """Modification time in milliseconds."""
    rows: int
    stats: str
    """Statistics of its rows, as JSON."""
    partition: Mapping[str, str | None]
    """Partition values of its rows, if the table is partitioned."""


class Staging:
    """The attempts of one application to write to one table."""

    def __init__(self, table: Path, app: str) -> None:
        """Stage files for this table, under the name of the application."""
        self._table = table
        self._notes = table / _NOTES_DIRECTORY / hashlib.sha256(app.encode()).hexdigest()[:16]

    def begin(self, attempt: str) -> Path:
        """Write a note of an attempt, and return the directory for its files, which does not exist yet."""
        if not _ATTEMPT_PATTERN.fullmatch(attempt):
            raise InvalidValue(
                f"An attempt is named {attempt!r}.",
                rule="The name of an attempt is 1 to 64 digits and lowercase letters.",
                remedy="Use secrets.token_hex(8) as the name.",
                attempt=attempt,
            )
        self._notes.mkdir(parents=True, exist_ok=True)
        (self._notes / attempt).touch()
        return self.directory(attempt)

    def staged_files(self, attempt: str) -> tuple[StagedFile, ...]:
        """Return the files of a completely written attempt; files without rows and other files are deleted."""
        staged = []
        for path in sorted(self.directory(attempt).rglob("*")):
            if path.is_dir():
                continue
            metadata = None if path.suffix != ".parquet" else pq.read_metadata(path)
            if metadata is None or not metadata.num_rows:
                path.unlink()
                continue
            relative, status = path.relative_to(self._table), path.stat()
            partition = dict(_parse_partition(name) for name in relative.parts[1:-1])
            modified = status.st_mtime_ns // 1_000_000
            staged.append(
                StagedFile(
                    relative.as_posix(),
                    status.st_size,
                    modified,
                    metadata.num_rows,
                    file_statistics(metadata),
                    partition,
                )
            )
        return tuple(staged)

    def remove_note(self, attempt: str) -> None:
        """Remove the note of an attempt whose files were committed."""
        (self._notes / attempt).unlink(missing_ok=True)

    def open_attempts(self) -> list[str]:
        """Return the attempts that have a note."""
        return sorted(path.name for path in self._notes.iterdir()) if self._notes.is_dir() else []

    def remove(self, attempts: Iterable[str]) -> None:
        """Remove the files of uncommitted attempts, then their notes."""
        for attempt in attempts:
            shutil.rmtree(self.directory(attempt), ignore_errors=True)
            self.remove_note(attempt)

    def directory(self, attempt: str) -> Path:
        """Return the directory of an attempt's files."""
        return self._table / (_ATTEMPT_PREFIX + attempt)


def _parse_partition(directory: str) -> tuple[str, str | None]:
    name, _, value = directory.partition("=")
    return unquote(name), None if value == _NULL_PARTITION else unquote(value)


_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001 - the zone is appended if the column has one
_MAX_TEXT_BYTES: Final = 64
"""Longest text that is used as a bound."""
_EXACT_TEXT_WRITER: Final = "parquet-cpp-arrow"
"""The Parquet writer whose text bounds are exact; others may truncate them."""


def file_statistics(metadata: pq.FileMetaData) -> str:
    """Return the statistics of a file as JSON: the number of rows, and bounds and null counts of simple columns.

    Bounds are given for integers, dates, timestamps and short texts, for which they are exact or can be widened.
    """
    has_whole_texts = (metadata.created_by or "").startswith(_EXACT_TEXT_WRITER)
    schema = metadata.schema.to_arrow_schema()
    simple = {name: index for index, name in _top_level_columns(metadata) if name in schema.names}
    lowest: dict[str, Any] = {}
    highest: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for name, index in simple.items():
        kind = schema.field(name).type
        is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
        groups = [metadata.row_group(group).column(index).statistics for group in range(metadata.num_row_groups)]
        if not groups or any(group is None or not group.has_null_count for group in groups):
            continue
        nulls[name] = sum(group.null_count for group in groups)
        bounded = [group for group in groups if group.has_min_max]
        # A row group of nulls has no bounds; any other without bounds could contain any value.
        if not bounded or any(not group.has_min_max and group.num_values for group in groups):
            continue
        if is_text and not has_whole_texts:
            continue
        low = _format_bound(kind, min(group.min_raw for group in bounded), up=False)
        high = _format_bound(kind, max(group.max_raw for group in bounded), up=True)
        if low is not None and high is not None:
            lowest[name], highest[name] = low, high
    stats = {"numRecords": metadata.num_rows, "minValues": lowest, "maxValues": highest, "nullCount": nulls}
    return json.dumps(stats, separators=(",", ":"))


def _top_level_columns(metadata: pq.FileMetaData) -> list[tuple[int, str]]:
    """Return the columns that are not nested in others."""
    columns = ((index, metadata.schema.column(index)) for index in range(metadata.num_columns))
    return [(index, column.name) for index, column in columns if column.path == column.name]


def _format_bound(kind: pa.DataType, value: Any, *, up: bool) -> Any:
    """Return a bound in Delta Lake's format; None if there is none for this type."""
    if isinstance(value, bytes):
        return _format_text_bound(value) if pa.types.is_string(kind) or pa.types.is_large_string(kind) else None
    if not isinstance(value, int):
        return None
    if pa.types.is_signed_integer(kind):
        return value
    try:
        if pa.types.is_date32(kind):
            return (date(1970, 1, 1) + timedelta(days=value)).isoformat()
        if pa.types.is_timestamp(kind) and kind.unit == "us":
            # Bounds are in milliseconds, so they are rounded outwards.
            bound = _EPOCH + timedelta(milliseconds=-(-value // 1_000) if up else value // 1_000)
            return bound.isoformat(timespec="milliseconds") + ("" if kind.tz is None else "Z")
    except OverflowError:
        pass
    return None


def _format_text_bound(value: bytes) -> str | None:
    try:
        return value.decode() if len(value) <= _MAX_TEXT_BYTES else None
    except UnicodeDecodeError:
        return None
