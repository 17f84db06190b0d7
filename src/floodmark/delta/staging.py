"""Files that are written into the directory of a table before any commit names them, and their statistics.

Each attempt has a directory of its own there, and a note beside the table's log until it is over. The next
process finds the notes of attempts that were never committed, and removes their files. Files without a note
are left to the table's own vacuum.
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
"""What begins with _ is passed over by those who look for files of the table."""
_ATTEMPT_PREFIX: Final = "floodmark-"
_NULL_PARTITION: Final = "__HIVE_DEFAULT_PARTITION__"
_ATTEMPT_PATTERN: Final = re.compile(r"[0-9a-z]{1,64}")


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A Parquet file inside the directory of a table that no commit names yet."""

    path: str
    """Relative to the table, with / between directories."""
    size: int
    modified: int
    """In milliseconds."""
    rows: int
    stats: str
    """What is known of its rows, as JSON."""
    partition: Mapping[str, str | None]
    """Of a partitioned table, where the rows belong."""


class Staging:
    """The attempts of one application at one table."""

    def __init__(self, table: Path, app: str) -> None:
        """Stage for this table, under the name of the application."""
        self._table = table
        self._notes = table / _NOTES_DIRECTORY / hashlib.sha256(app.encode()).hexdigest()[:16]

    def begin(self, attempt: str) -> Path:
        """Note an attempt, and return the directory for its files, which is not there yet."""
        if not _ATTEMPT_PATTERN.fullmatch(attempt):
            raise InvalidValue(
                f"An attempt is named {attempt!r}.",
                rule="It is 1 to 64 digits and small letters.",
                remedy="Use secrets.token_hex(8).",
                attempt=attempt,
            )
        self._notes.mkdir(parents=True, exist_ok=True)
        (self._notes / attempt).touch()
        return self.directory(attempt)

    def found(self, attempt: str) -> tuple[StagedFile, ...]:
        """Return the files of an attempt that have rows, once all of them are written; whatever else is there goes."""
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

    def over(self, attempt: str) -> None:
        """Forget an attempt whose files were committed."""
        (self._notes / attempt).unlink(missing_ok=True)

    def open(self) -> list[str]:
        """Return the attempts that are noted."""
        return sorted(path.name for path in self._notes.iterdir()) if self._notes.is_dir() else []

    def remove(self, attempts: Iterable[str]) -> None:
        """Remove the files of attempts that were not committed, and then their notes."""
        for attempt in attempts:
            shutil.rmtree(self.directory(attempt), ignore_errors=True)
            self.over(attempt)

    def directory(self, attempt: str) -> Path:
        """Return where the files of an attempt are."""
        return self._table / (_ATTEMPT_PREFIX + attempt)


def _parse_partition(directory: str) -> tuple[str, str | None]:
    name, _, value = directory.partition("=")
    return unquote(name), None if value == _NULL_PARTITION else unquote(value)


_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001 - the zone is told or not, as the column has one
_MAX_TEXT_BYTES: Final = 64
"""Bytes of a text that is told."""
_EXACT_TEXT_WRITER: Final = "parquet-cpp-arrow"
"""Who writes the bounds of texts as they are; others may cut them."""


def file_statistics(metadata: pq.FileMetaData) -> str:
    """Return the statistics of a file as JSON: how many rows, and of simple columns the bounds and how many nulls.

    Bounds are told of whole numbers, dates, moments and short texts: of those they are exact, or can be made wider.
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
        found = [metadata.row_group(group).column(index).statistics for group in range(metadata.num_row_groups)]
        if not found or any(one is None or not one.has_null_count for one in found):
            continue
        nulls[name] = sum(one.null_count for one in found)
        told = [one for one in found if one.has_min_max]
        # A group of nulls has no bounds; any other that has none could have all.
        if not told or any(not one.has_min_max and one.num_values for one in found):
            continue
        if is_text and not has_whole_texts:
            continue
        low = _format_bound(kind, min(one.min_raw for one in told), up=False)
        high = _format_bound(kind, max(one.max_raw for one in told), up=True)
        if low is not None and high is not None:
            lowest[name], highest[name] = low, high
    stats = {"numRecords": metadata.num_rows, "minValues": lowest, "maxValues": highest, "nullCount": nulls}
    return json.dumps(stats, separators=(",", ":"))


def _top_level_columns(metadata: pq.FileMetaData) -> list[tuple[int, str]]:
    """Return the columns that are not inside of others."""
    found = ((index, metadata.schema.column(index)) for index in range(metadata.num_columns))
    return [(index, column.name) for index, column in found if column.path == column.name]


def _format_bound(kind: pa.DataType, value: Any, *, up: bool) -> Any:
    """Return a bound as Delta Lake writes it; None if it has none for this type."""
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
            # They are told in milliseconds, and must hold all the same.
            moment = _EPOCH + timedelta(milliseconds=-(-value // 1_000) if up else value // 1_000)
            return moment.isoformat(timespec="milliseconds") + ("" if kind.tz is None else "Z")
    except OverflowError:
        pass
    return None


def _format_text_bound(value: bytes) -> str | None:
    try:
        return value.decode() if len(value) <= _MAX_TEXT_BYTES else None
    except UnicodeDecodeError:
        return None
