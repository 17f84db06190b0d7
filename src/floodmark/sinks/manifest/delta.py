"""A Delta table as a target: the commit that adds the files of a batch carries its manifest."""

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
    """The files that an attempt has written, and those that they replace in the table version it has read."""

    files: tuple[StagedFile, ...] = ()
    removed: tuple[str, ...] = ()


class DeltaManifestLog:
    """The manifests of a sink, kept in the commits of a Delta table."""

    noun = "table"

    def __init__(self, path: Path, sink: str, schema: str, *, replaces: bool = False) -> None:
        """Write rows of this JSON schema to the table at `path`; with `replaces`, files may replace others."""
        self.sink = sink
        self._path = path
        self._schema = schema
        self._replaces = replaces
        self._table: DeltaCommits | None = None
        self._leftovers: list[str] = []
        self._attempts: dict[str, _AttemptFiles] = {}

    @property
    def location(self) -> str:
        """Directory of the table."""
        return str(self._path)

    @property
    def address(self) -> str:
        """URL of the table."""
        return f"delta://{self._path}"

    @property
    def table(self) -> DeltaCommits:
        """The open table."""
        if self._table is None:
            raise StateError(
                f"The table {self._path} is not open.",
                rule="A sink must be started before it writes.",
                remedy="Call start() first.",
                sink=self.sink,
            )
        return self._table

    def open(self) -> str | None:
        """Return the id of the table, or None if it does not exist; raise an error if the rows do not fit."""
        self._table = DeltaCommits.find(self._path, f"floodmark.sink.{self.sink}")
        if self._table is None:
            return None
        self._check(self._table)
        self._leftovers = self._table.staging.open_attempts()
        return self._table.table_id

    def create(self) -> None:
        """Create the table."""
        DeltaCommits.open(self._path, f"floodmark.sink.{self.sink}", _all_nullable(self._schema))

    def newest(self) -> Manifest | None:
        """Return the last manifest of the sink, as of the loaded version of the table."""
        commit = self.table.newest_commit()
        return None if commit is None else Manifest.load(commit.metadata[_MANIFEST_KEY])

    def has_rows(self) -> bool:
        """Return whether the table has any file."""
        return self.table.has_rows()

    def attempt_directory(self, attempt: str) -> Path:
        """Return the directory for the files of an attempt."""
        return self.table.staging.begin(attempt)

    def attempt_parts(self, attempt: str) -> list[ManifestPart]:
        """Return the files that an attempt has written."""
        files = self.table.staging.staged_files(attempt)
        self._attempts[attempt] = _AttemptFiles(files)
        return [ManifestPart(file.path, file.rows) for file in files]

    def reload(self) -> DeltaCommits:
        """Load and return the current version of the table, from which replaced rows are computed."""
        self.table.reload()
        self._check(self.table)
        return self.table

    def replacement_parts(self, attempt: str, removed: Sequence[str], rows: int) -> list[ManifestPart]:
        """Register that the files of an attempt replace the `removed` ones, and return one part with `rows` rows.

        `rows` counts the batch's rows only; the files also contain rows copied from the removed files.
        """
        files = self.table.staging.staged_files(attempt)
        self._attempts[attempt] = _AttemptFiles(files, tuple(removed))
        if not files:
            self.table.staging.remove([attempt])
        return [ManifestPart(attempt, rows)]

    def discard(self, attempt: str) -> None:
        """Remove the files of an attempt that will not be committed."""
        self._attempts.pop(attempt, None)
        self.table.staging.remove([attempt])

    def add(self, record: Manifest) -> bool:
        """Commit a manifest with the files of the attempt that it closes.

        Files that replace others are committed only to the table version they were computed from.
        """
        table, attempt = self.table, record.attempt or ""
        files = self._attempts.pop(attempt, _AttemptFiles()) if record.parts else _AttemptFiles()
        is_replacing = self._replaces and bool(record.parts)
        progress = record.progress
        marks = {} if progress is None else {key: mark.time for key, mark in progress.marks.items()}
        # The commit itself lists the files.
        lean = Manifest(record.sink, record.number, record.token, record.attempt, (), progress)
        metadata = {_MANIFEST_KEY: lean.save().decode(), _MARKS_KEY: json.dumps(marks)}
        for _ in range(_COMMIT_ATTEMPTS):
            if table.number != record.number - 1:
                break
            # If another writer changes the table after this check, the commit raises TableConflict.
            self._check(table)
            try:
                table.commit(files.files, record.number, metadata, remove=files.removed, next_version=is_replacing)
            except TableConflict:
                table.reload()
                if is_replacing and table.number == record.number - 1:
                    self.discard(attempt)
                    raise
            except TableFailed:
                table.reload()
                if not self._is_committed(record):
                    raise
            else:
                self._release_attempt(record)
                return True
            if self._is_committed(record):
                self._release_attempt(record)
                return True
        return False

    def clean(self, record: Manifest) -> None:
        """Remove the uncommitted files that `open` found."""
        self.table.sweep(self._leftovers, () if record.attempt is None else (record.attempt,))

    def close(self) -> None:
        """Release the table."""
        self._table = None

    def _check(self, table: DeltaCommits) -> None:
        table.check(self._schema, replaces=self._replaces)

    def _is_committed(self, record: Manifest) -> bool:
        newest = self.newest()
        return newest is not None and newest.token == record.token

    def _release_attempt(self, record: Manifest) -> None:
        if record.attempt is not None:
            self.table.staging.remove_note(record.attempt)


def _all_nullable(schema: str) -> str:
    """Return the schema with everything nullable, so that later queries may write null where this one does not."""

    def widened(value: object) -> object:
        if isinstance(value, list):
            return [widened(item) for item in value]
        if isinstance(value, dict):
            items = {name: widened(item) for name, item in value.items()}
            return items | {name: True for name in ("nullable", "containsNull", "valueContainsNull") if name in items}
        return value

    return json.dumps(widened(json.loads(schema)))
