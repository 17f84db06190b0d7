"""Commits to a table under the name of an application, each with a number of its own.

Delta Lake stores the last number of each application, but does not check that it rises. It does detect two commits of
one application from the same table version. So the number is read, and the commit is made, on one handle that is not
refreshed in between: a writer that was overtaken gets a conflict.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import time_ns
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Field, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from floodmark.delta.staging import StagedFile, Staging
from floodmark.errors import TableConflict, TableFailed, TableUnfit

_APP_KEY: Final = "floodmark.app"
_NUMBER_KEY: Final = "floodmark.number"
_HISTORY_LIMITS: Final = (1, 20, 400, None)
"""How many commits are searched in turn, the newest first; None searches the whole log."""
_CHECKPOINT_INTERVAL: Final = 10
"""Number of commits between two checkpoints of a table with few files; 100 for others."""
_FEW_FILES: Final = 10_000


@dataclass(frozen=True, slots=True)
class AppCommit:
    """A commit of an application, with its metadata."""

    number: int
    metadata: Mapping[str, str]


class DeltaCommits:
    """One table, as one application writes to it. Not thread-safe.

    >>> from tempfile import mkdtemp
    >>> schema = '{"type": "struct", "fields": [{"name": "id", "type": "long", "nullable": true, "metadata": {}}]}'
    >>> table = DeltaCommits.open(Path(mkdtemp()) / "orders", "nightly", schema)
    >>> table.number, table.has_rows()
    (0, False)
    >>> table.commit((), 1, {"through": "2026-01-01"})
    >>> table.number, table.newest_commit().metadata["through"]
    (1, '2026-01-01')
    """

    def __init__(self, table: DeltaTable, path: Path, app: str) -> None:
        """Write to an open table."""
        self._table = table
        self._path = path
        self._app = app
        self.staging = Staging(path, app)
        """Files that are written but not committed."""

    @classmethod
    def open(
        cls, path: str | Path, app: str, schema: str | None = None, *, partition_by: Sequence[str] = ()
    ) -> "DeltaCommits":
        """Open a table; if it does not exist and a schema (JSON) is given, create it."""
        location = Path(path).absolute()
        table = cls.find(location, app)
        if table is None and schema is not None:
            # Another process may create it at the same time: the first one counts.
            with suppress(CommitFailedError, DeltaError):
                DeltaTable.create(str(location), Schema.from_json(schema), partition_by=list(partition_by))
            table = cls.find(location, app)
        if table is None:
            raise TableFailed(
                f"There is no Delta Lake table in {location}, and none could be created.",
                rule="A Delta Lake table has a log, in the directory _delta_log.",
                remedy="Name the directory of a table, or a directory that this program may write.",
                table=str(location),
            )
        return table

    @classmethod
    def find(cls, path: str | Path, app: str) -> "DeltaCommits | None":
        """Open a table; return None if it does not exist."""
        location = Path(path).absolute()
        try:
            # Only a path that does not exist means "no table"; one that cannot be read is an error.
            return cls(DeltaTable(str(location)), location, app) if location.exists() else None
        except TableNotFoundError:
            return None
        except DeltaError as error:
            raise _table_failed(location, "opened", error) from error

    @property
    def table_id(self) -> str:
        """Id of the table, which differs if it is deleted and created again."""
        return str(self._table.metadata().id)

    @property
    def version(self) -> int:
        """The loaded version of the table."""
        return int(self._table.version())

    @property
    def schema(self) -> str:
        """The schema of the table, as JSON."""
        return str(self._table.schema().to_json())

    @property
    def arrow_schema(self) -> pa.Schema:
        """The schema of the table, as an Arrow schema."""
        return pa.schema(self._table.schema())

    @property
    def partition_by(self) -> tuple[str, ...]:
        """The partition columns."""
        return tuple(self._table.metadata().partition_columns)

    @property
    def number(self) -> int:
        """The last number that the application has committed, as of the loaded version; 0 if none."""
        return int(self._table.transaction_version(self._app) or 0)

    @property
    def path(self) -> Path:
        """Directory of the table."""
        return self._path

    def has_rows(self) -> bool:
        """Return whether the table has any file."""
        return bool(self._table.file_uris())

    def files(self) -> pa.Table:
        """Return one row for each file.

        Columns are `path` as in the directory, size_bytes, num_records, and for each column X min.X, max.X,
        null_count.X and partition.X.
        """
        actions = pa.table(self._table.get_add_actions(flatten=True))
        paths = pa.array([unquote(path) for path in actions.column("path").to_pylist()], pa.string())
        return actions.set_column(0, "path", paths)

    def add_columns(self, fields: str) -> None:
        """Add columns, given as the JSON fields of a schema. They are NULL in existing rows.

        Afterwards the newest version is loaded.
        """
        try:
            self._table.alter.add_columns([Field.from_json(json.dumps(field)) for field in json.loads(fields)])
        except DeltaError as error:
            raise _table_failed(self._path, "given more columns", error) from error

    def last_number(self, app: str) -> int | None:
        """Return the last number of any application, as of the loaded version; None if it has none."""
        return self._table.transaction_version(app)

    def commit_metadata(self) -> Iterator[Mapping[str, Any]]:
        """Yield the metadata of each commit in the log, by any application, the newest first.

        A long log is read only as far as the caller iterates.
        """
        seen = 0
        for limit in _HISTORY_LIMITS:
            commits = self._read_log(limit)
            yield from commits[seen:]
            seen = len(commits)
            if limit is not None and seen < limit:
                return

    def reload(self) -> None:
        """Load the newest version."""
        try:
            self._table = DeltaTable(str(self._path))
        except DeltaError as error:
            raise _table_failed(self._path, "read", error) from error

    def newest_commit(self) -> AppCommit | None:
        """Return the last commit of the application, even if others have committed since.

        It is an error if the log no longer has that commit: a table keeps its log only for some time.
        """
        number = self.number
        if not number:
            return None
        for limit in _HISTORY_LIMITS:
            for commit in self._own_commits(limit):
                if commit.number == number:
                    return commit
        raise TableFailed(
            f"The table {self._path} records that {self._app!r} made commit {number}, but its log no longer has it.",
            rule="A table keeps its log for delta.logRetentionDuration, 30 days by default.",
            remedy="Start over with a new table, and set its delta.logRetentionDuration above the longest pause.",
            table=str(self._path),
            app=self._app,
            number=number,
        )

    def check(self, rows: str | None = None, *, replaces: bool = False) -> None:
        """Raise an error if rows with this schema (JSON) do not fit, or if the table needs more than adding files.

        With `replaces`, also if files of the table cannot be replaced by others.

        >>> schema = '{"type": "struct", "fields": [{"name": "id", "type": "long", "nullable": true, "metadata": {}}]}'
        >>> import tempfile
        >>> table = DeltaCommits.open(tempfile.mkdtemp(), "nightly", schema)
        >>> table.check(schema.replace("long", "string"))
        Traceback (most recent call last):
        floodmark.errors.TableUnfit: ... id is long in the table and string in the rows. ... [table-unfit]
        """
        metadata = self._table.metadata()
        features = unsupported_features(self.schema, metadata.configuration, list(metadata.partition_columns))
        if replaces:
            features += rewrite_blockers(metadata.configuration, self._table.protocol().reader_features or ())
        if features:
            raise TableUnfit(
                f"The table {self._path} uses features that Floodmark does not support: {'; '.join(features)}.",
                rule="Files are added to the table as they are.",
                remedy="Remove these features from the table, or write to a table without them.",
                table=str(self._path),
                needs=features,
            )
        differences = [] if rows is None else schema_differences(self.schema, rows)
        if differences:
            raise TableUnfit(
                f"The rows do not fit the table {self._path}: {'; '.join(differences)}.",
                rule="Rows must have the columns and types of the table.",
                remedy="Select and cast the columns, alter the table first, or write to another table.",
                table=str(self._path),
                differences=differences,
            )

    def commit(
        self,
        files: Iterable[StagedFile],
        number: int,
        metadata: Mapping[str, str],
        *,
        remove: Iterable[str] = (),
        also: Mapping[str, int] | None = None,
        next_version: bool = False,
    ) -> None:
        """Atomically add files to the table, under a number and with metadata. Afterwards the newest version is loaded.

        Args:
            files: The files to add.
            number: The number of the commit, above the last one of the application.
            metadata: Stored with the commit.
            remove: Paths of files to remove, as `files()` returns them.
            also: Numbers of other applications to set.
            next_version: Whether any other commit since the loaded version is a conflict; for files that were
                computed from exactly that version.

        Raises TableConflict if the number does not rise, if one of the applications has committed since the loaded
        version, or if a file to remove is gone; call `reload` then.
        """
        if number <= self.number:
            raise self._conflict(number, f"its last number is {self.number}")
        all_metadata = {**metadata, _APP_KEY: self._app, _NUMBER_KEY: str(number)}
        now = time_ns() // 1_000_000
        actions: list[AddAction | RemoveAction] = [
            *(AddAction(file.path, file.size, file.partition, file.modified, True, file.stats) for file in files),
            *(RemoveAction(path, True, now) for path in remove),
        ]
        numbers = {self._app: number, **(also or {})}
        try:
            self._table.create_write_transaction(
                actions,
                "append",
                self._table.schema(),
                list(self.partition_by),
                commit_properties=CommitProperties(
                    custom_metadata=all_metadata,
                    # By default the client retries on the newest version.
                    max_commit_retries=0 if next_version else None,
                    app_transactions=[Transaction(*item) for item in numbers.items()],
                ),
            )
        except CommitFailedError as error:
            raise self._conflict(number, str(error).rstrip(".")) from error
        except DeltaError as error:
            raise _table_failed(self._path, "written", error) from error
        self._load_commits()

    def sweep(self, attempts: Sequence[str], committed: Iterable[str] = ()) -> list[str]:
        """Remove the files of uncommitted attempts, and return these attempts; `committed` are known to be committed.

        Call it only for attempts noted before all their possible writers were fenced; later ones may still be written.
        """
        kept = set(committed)
        used = {Path(uri).parts for uri in self._table.file_uris()} if attempts else set()
        swept = []
        for attempt in attempts:
            parts = self.staging.directory(attempt).parts
            if attempt in kept or any(path[: len(parts)] == parts for path in used):
                self.staging.remove_note(attempt)
            else:
                self.staging.remove([attempt])
                swept.append(attempt)
        return swept

    def _load_commits(self) -> None:
        """Load the commits since, and write a checkpoint if one is due.

        A handle re-reads all commits since its last checkpoint at each update. With a checkpoint every ten commits and
        a new handle a commit takes 6 ms; with one every hundred or more it takes 60.
        """
        try:
            self._table.update_incremental()
            version = self._table.version()
            if version % _CHECKPOINT_INTERVAL == 0 and (
                version % 100 == 0 or len(self._table.file_uris()) < _FEW_FILES
            ):
                self._table.create_checkpoint()
                self._table = DeltaTable(str(self._path))
        except DeltaError as error:
            raise _table_failed(self._path, "read", error) from error

    def _own_commits(self, limit: int | None) -> list[AppCommit]:
        return [
            AppCommit(int(entry[_NUMBER_KEY]), {name: value for name, value in entry.items() if isinstance(value, str)})
            for entry in self._read_log(limit)
            if entry.get(_APP_KEY) == self._app and str(entry.get(_NUMBER_KEY)).isdecimal()
        ]

    def _read_log(self, limit: int | None) -> list[Mapping[str, Any]]:
        try:
            return list(self._table.history(limit))
        except DeltaError as error:
            raise _table_failed(self._path, "read", error) from error

    def _conflict(self, number: int, why: str) -> TableConflict:
        return TableConflict(
            f"Commit {number} of {self._app!r} to the table {self._path} was refused: {why}.",
            rule="Numbers of an application rise, and a commit follows the version that its writer has read.",
            remedy="Reload the table, and decide again what to commit.",
            table=str(self._path),
            app=self._app,
            number=number,
        )


def _table_failed(path: Path, done: str, error: Exception) -> TableFailed:
    return TableFailed(
        f"The table {path} could not be {done}: {str(error).rstrip('.')}.",
        rule="The table's directory and log must be readable and writable.",
        remedy="Check the path, permissions and free space, then start again; only complete commits are visible.",
        table=str(path),
    )


SchemaJson = Mapping[str, Any]

_PARTITION_TYPES: Final = ("boolean", "byte", "date", "integer", "long", "short", "string")
_COLUMN_RULES: Final = ("delta.constraints", "delta.generationExpression", "delta.identity", "delta.invariants")

_REWRITE_BLOCKERS: Final = {
    "appendOnly": "append-only (delta.appendOnly)",
    "enableChangeDataFeed": "the change data feed, in which copied rows would appear as new",
}


def schema_differences(table: str, rows: str) -> list[str]:
    """Return the differences between the columns of rows and those of a table; both schemas are JSON.

    The order of columns and their metadata do not matter.

    >>> def schema(*columns):
    ...     return json.dumps({"type": "struct", "fields": [dict(zip(("name", "type"), column)) for column in columns]})
    >>> schema_differences(schema(("id", "long"), ("at", "timestamp")), schema(("at", "date"), ("item", "string")))
    ['at is timestamp in the table and date in the rows', 'id is missing in the rows', 'item is not in the table']
    """
    return _struct_differences(json.loads(table), json.loads(rows), "")


def unsupported_features(schema: str, configuration: Mapping[str, str | None], partition_by: list[str]) -> list[str]:
    """Return the features of a table that Floodmark does not support.

    >>> unsupported_features('{"type": "struct", "fields": []}', {"delta.constraints.positive": "n > 0"}, [])
    ['the constraint positive']
    """
    features = [
        f"the constraint {name.removeprefix('delta.constraints.')}"
        for name in sorted(configuration)
        if name.startswith("delta.constraints.")
    ]
    if (configuration.get("delta.columnMapping.mode") or "none") != "none":
        features.append("column mapping")
    for field in json.loads(schema)["fields"]:
        if any(name.startswith(_COLUMN_RULES) for name in field.get("metadata") or {}):
            features.append(f"the rule of the column {field['name']}")
        if field["name"] in partition_by and field["type"] not in _PARTITION_TYPES:
            features.append(f"partitions by {field['name']}, which is {field['type']}")
    return features


def rewrite_blockers(configuration: Mapping[str, str | None], features: Iterable[str]) -> list[str]:
    """Return the features of a table that forbid replacing files by others without some of their rows.

    >>> rewrite_blockers({"delta.appendOnly": "true"}, ["deletionVectors"])
    ['append-only (delta.appendOnly)', 'deletion vectors']
    """
    blockers = [
        what for name, what in _REWRITE_BLOCKERS.items() if (configuration.get(f"delta.{name}") or "").lower() == "true"
    ]
    if "deletionVectors" in features:
        blockers.append("deletion vectors")
    return blockers


def _struct_differences(table: SchemaJson, rows: SchemaJson, prefix: str) -> list[str]:
    table_fields = {field["name"]: field for field in table["fields"]}
    row_fields = {field["name"]: field for field in rows["fields"]}
    differences = []
    for name in sorted(table_fields.keys() | row_fields.keys()):
        if name not in row_fields:
            differences.append(f"{prefix}{name} is missing in the rows")
        elif name not in table_fields:
            differences.append(f"{prefix}{name} is not in the table")
        else:
            differences += _type_differences(table_fields[name]["type"], row_fields[name]["type"], prefix + name)
            if not table_fields[name].get("nullable", True) and row_fields[name].get("nullable", True):
                differences.append(f"{prefix}{name} must not be null in the table and may be in the rows")
    return differences


def _type_differences(table: str | SchemaJson, rows: str | SchemaJson, path: str) -> list[str]:
    if isinstance(table, str) or isinstance(rows, str) or table["type"] != rows["type"]:
        return (
            [] if table == rows else [f"{path} is {_type_name(table)} in the table and {_type_name(rows)} in the rows"]
        )
    if table["type"] == "struct":
        return _struct_differences(table, rows, f"{path}.")
    if table["type"] == "array":
        return _type_differences(table["elementType"], rows["elementType"], f"{path}[]")
    keys = _type_differences(table["keyType"], rows["keyType"], f"{path}.key")
    return keys + _type_differences(table["valueType"], rows["valueType"], f"{path}.value")


def _type_name(kind: str | SchemaJson) -> str:
    return kind if isinstance(kind, str) else str(kind["type"])
