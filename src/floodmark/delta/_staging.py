"""Files that are written into the directory of a table before any commit names them.

Each attempt has a directory of its own there, and a note beside the table's log while it is not over. Whoever comes
next finds the notes of attempts that were never committed, and removes their files. Files without a note are left to
the table's own vacuum.
"""

import hashlib
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import unquote

import pyarrow.parquet as pq

from floodmark.delta._stats import stats_of
from floodmark.errors import InvalidValue

_NOTES: Final = "_floodmark"
"""What begins with _ is passed over by those who look for files of the table."""
_FILES: Final = "floodmark-"
_NO_VALUE: Final = "__HIVE_DEFAULT_PARTITION__"
_ATTEMPT: Final = re.compile(r"[0-9a-z]{1,64}")


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
        self._notes = table / _NOTES / hashlib.sha256(app.encode()).hexdigest()[:16]

    def begin(self, attempt: str) -> Path:
        """Note an attempt, and return the directory for its files, which is not there yet."""
        if not _ATTEMPT.fullmatch(attempt):
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
            partition = dict(_part(name) for name in relative.parts[1:-1])
            modified = status.st_mtime_ns // 1_000_000
            staged.append(
                StagedFile(
                    relative.as_posix(), status.st_size, modified, metadata.num_rows, stats_of(metadata), partition
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
        return self._table / (_FILES + attempt)


def _part(directory: str) -> tuple[str, str | None]:
    name, _, value = directory.partition("=")
    return unquote(name), None if value == _NO_VALUE else unquote(value)
