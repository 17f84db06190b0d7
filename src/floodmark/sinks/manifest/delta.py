"""A table of Delta Lake as a target: the commit that adds the files of a batch carries its manifest."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from floodmark.delta import DeltaCommits, StagedFile
from floodmark.errors import StateError, TableConflict, TableFailed
from floodmark.sinks.manifest.target import Manifest, ManifestPart

_MANIFEST_KEY: Final = "floodmark.closing"
_MARKS_KEY: Final = "floodmark.marks"
_COMMIT_ATTEMPTS: Final = 5


@dataclass(frozen=True, slots=True)
class _AttemptFiles:
    """What an attempt has made: files, and those that give way to them in the version of the table that was seen."""

    files: tuple[StagedFile, ...] = ()
    gone: tuple[str, ...] = ()


class DeltaManifestLog:
    """The commits of a sink in a table."""

    noun = "table"

    def __init__(self, path: Path, sink: str, schema: str, *, replaces: bool = False) -> None:
        """Write rows of this schema, JSON, to the table at this path; with `replaces` they take the place of others."""
        self.sink = sink
        self._path = path
        self._schema = schema
        self._replaces = replaces
        self._table: DeltaCommits | None = None
        self._left: list[str] = []
        self._made: dict[str, _AttemptFiles] = {}

    @property
    def place(self) -> str:
        """The directory of the table."""
        return str(self._path)

    @property
    def address(self) -> str:
        """What names the table."""
        return f"delta://{self._path}"

    @property
    def table(self) -> DeltaCommits:
        """The table, once it is open."""
        if self._table is None:
            raise StateError(
                f"The table {self._path} is not open.",
                rule="A sink is started before it writes.",
                remedy="Call start() first.",
                sink=self.sink,
            )
        return self._table

    def open(self) -> str | None:
        """Return the id of the table, or None if there is none; refuse one that does not fit."""
        self._table = DeltaCommits.find(self._path, f"floodmark.sink.{self.sink}")
        if self._table is None:
            return None
        self._check(self._table)
        self._left = self._table.staging.open()
        return self._table.table_id

    def make(self) -> None:
        """Make the table."""
        DeltaCommits.open(self._path, f"floodmark.sink.{self.sink}", _all_nullable(self._schema))

    def newest(self) -> Manifest | None:
        """Return the last record of the sink, as of the version of the table that is seen."""
        found = self.table.newest()
        return None if found is None else Manifest.load(found.metadata[_MANIFEST_KEY])

    def has_rows(self) -> bool:
        """Return whether the table has any file."""
        return self.table.has_rows()

    def begin(self, attempt: str) -> Path:
        """Return the directory in which the files of an attempt are to be written."""
        return self.table.staging.begin(attempt)

    def made(self, attempt: str) -> list[ManifestPart]:
        """Return the files that an attempt has made."""
        files = self.table.staging.found(attempt)
        self._made[attempt] = _AttemptFiles(files)
        return [ManifestPart(file.path, file.rows) for file in files]

    def look(self) -> DeltaCommits:
        """Return the table as it is now. What is made of its files holds for this version."""
        self.table.reload()
        self._check(self.table)
        return self.table

    def replaced(self, attempt: str, gone: Sequence[str], rows: int) -> list[ManifestPart]:
        """Return so many rows as what an attempt has made; its files take the place of those that are `gone`.

        Rows that were only copied are in its files too, and are not told of.
        """
        files = self.table.staging.found(attempt)
        self._made[attempt] = _AttemptFiles(files, tuple(gone))
        if not files:
            self.table.staging.remove([attempt])
        return [ManifestPart(attempt, rows)]

    def give_up(self, attempt: str) -> None:
        """Remove what an attempt has made that will not be committed."""
        self._made.pop(attempt, None)
        self.table.staging.remove([attempt])

    def add(self, record: Manifest) -> bool:
        """Commit a record, with the files of the attempt that it closes.

        Those that take the place of others are committed to the version that they were made from, or given up.
        """
        table, attempt = self.table, record.attempt or ""
        made = self._made.pop(attempt, _AttemptFiles()) if record.parts else _AttemptFiles()
        holds_here = self._replaces and bool(record.parts)
        progress = record.progress
        marks = {} if progress is None else {key: mark.time for key, mark in progress.marks.items()}
        # Which files they are, the commit says itself.
        lean = Manifest(record.sink, record.number, record.token, record.attempt, (), progress)
        said = {_MANIFEST_KEY: lean.save().decode(), _MARKS_KEY: json.dumps(marks)}
        for _ in range(_COMMIT_ATTEMPTS):
            if table.number != record.number - 1:
                break
            # Whoever has changed the table since makes the commit a conflict.
            self._check(table)
            try:
                table.commit(made.files, record.number, said, remove=made.gone, next_version=holds_here)
            except TableConflict:
                table.reload()
                if holds_here and table.number == record.number - 1:
                    self.give_up(attempt)
                    raise
            except TableFailed:
                table.reload()
                if not self._is_there(record):
                    raise
            else:
                self._over(record)
                return True
            if self._is_there(record):
                self._over(record)
                return True
        return False

    def clean(self, record: Manifest) -> None:
        """Remove the files of attempts that were there before the record, and were never committed."""
        self.table.sweep(self._left, () if record.attempt is None else (record.attempt,))

    def close(self) -> None:
        """Let go."""
        self._table = None

    def _check(self, table: DeltaCommits) -> None:
        table.check(self._schema, replaces=self._replaces)

    def _is_there(self, record: Manifest) -> bool:
        newest = self.newest()
        return newest is not None and newest.token == record.token

    def _over(self, record: Manifest) -> None:
        if record.attempt is not None:
            self.table.staging.over(record.attempt)


def _all_nullable(schema: str) -> str:
    """Return a schema in which anything may be null: what a query says today of its columns binds no other."""

    def widened(value: object) -> object:
        if isinstance(value, list):
            return [widened(one) for one in value]
        if isinstance(value, dict):
            told = {name: widened(one) for name, one in value.items()}
            return told | {name: True for name in ("nullable", "containsNull", "valueContainsNull") if name in told}
        return value

    return json.dumps(widened(json.loads(schema)))
