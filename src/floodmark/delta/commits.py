"""Commits to a table under the name of an application, each with a number of its own.

Delta Lake keeps the last number of each application, and does not check that it rises. It does detect that two
commits of one application were made from the same version of the table. So the number is read, and the commit
is made, on one handle that is not refreshed in between: a writer that was overtaken gets a conflict.
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
"""How many commits are looked through, the newest first; at last all that the table's log has."""
_CHECKPOINT_INTERVAL: Final = 10
"""How many commits are between two checkpoints of a table with few files; of others, 100."""
_FEW_FILES: Final = 10_000


@dataclass(frozen=True, slots=True)
class AppCommit:
    """A commit of an application."""

    number: int
    metadata: Mapping[str, str]
    """What was said with it."""


class DeltaCommits:
    """One table, as one application writes to it. One thread at a time.

    >>> from tempfile import mkdtemp
    >>> schema = '{"type": "struct", "fields": [{"name": "id", "type": "long", "nullable": true, "metadata": {}}]}'
    >>> table = DeltaCommits.open(Path(mkdtemp()) / "orders", "nightly", schema)
    >>> table.number, table.has_rows()
    (0, False)
    >>> table.commit((), 1, {"through": "2026-01-01"})
    >>> table.number, table.newest().metadata["through"]
    (1, '2026-01-01')
    """

    def __init__(self, table: DeltaTable, path: Path, app: str) -> None:
        """Write to a table that is open."""
        self._table = table
        self._path = path
        self._app = app
        self.staging = Staging(path, app)
        """Where files are written before they are committed."""

    @classmethod
    def open(
        cls, path: str | Path, app: str, schema: str | None = None, *, partition_by: Sequence[str] = ()
    ) -> "DeltaCommits":
        """Open a table; if there is none and a schema is given, as JSON, it is made."""
        place = Path(path).absolute()
        found = cls.find(place, app)
        if found is None and schema is not None:
            # Whoever makes it at the same time makes it too: the first one counts.
            with suppress(CommitFailedError, DeltaError):
                DeltaTable.create(str(place), Schema.from_json(schema), partition_by=list(partition_by))
            found = cls.find(place, app)
        if found is None:
            raise TableFailed(
                f"There is no table of Delta Lake in {place}, and none could be made.",
                rule="A table has a log, in the directory _delta_log.",
                remedy="Name the directory of a table, or one in which this program may write.",
                table=str(place),
            )
        return found

    @classmethod
    def find(cls, path: str | Path, app: str) -> "DeltaCommits | None":
        """Open a table; return None if there is none."""
        place = Path(path).absolute()
        try:
            # Only where there is nothing, nobody may read anything of it.
            return cls(DeltaTable(str(place)), place, app) if place.exists() else None
        except TableNotFoundError:
            return None
        except DeltaError as error:
            raise _table_failed(place, "opened", error) from error

    @property
    def table_id(self) -> str:
        """What tells the table from another one that is in its place later."""
        return str(self._table.metadata().id)

    @property
    def version(self) -> int:
        """The version of the table that is seen."""
        return int(self._table.version())

    @property
    def schema(self) -> str:
        """The columns of the table, as JSON."""
        return str(self._table.schema().to_json())

    @property
    def arrow_schema(self) -> pa.Schema:
        """The columns of the table, as Arrow has them."""
        return pa.schema(self._table.schema())

    @property
    def partition_by(self) -> tuple[str, ...]:
        """The columns by which it is partitioned."""
        return tuple(self._table.metadata().partition_columns)

    @property
    def number(self) -> int:
        """The last number that the application has committed, 0 if none, as of the version that is seen."""
        return int(self._table.transaction_version(self._app) or 0)

    @property
    def path(self) -> Path:
        """Its directory."""
        return self._path

    def has_rows(self) -> bool:
        """Return whether any file is in the table."""
        return bool(self._table.file_uris())

    def files(self) -> pa.Table:
        """Return what is known of each file, a row each.

        There are `path` as the directory has it, size_bytes, num_records, and of columns X min.X, max.X, null_count.X
        and partition.X.
        """
        found = pa.table(self._table.get_add_actions(flatten=True))
        paths = pa.array([unquote(path) for path in found.column("path").to_pylist()], pa.string())
        return found.set_column(0, "path", paths)

    def add_columns(self, fields: str) -> None:
        """Give the table more columns, as JSON like those of a schema. They are NULL in rows that are there.

        Afterwards the newest version is seen.
        """
        try:
            self._table.alter.add_columns([Field.from_json(json.dumps(one)) for one in json.loads(fields)])
        except DeltaError as error:
            raise _table_failed(self._path, "given more columns", error) from error

    def last_number(self, app: str) -> int | None:
        """Return the last number of any application, as of the version that is seen; None if it has none."""
        return self._table.transaction_version(app)

    def said_by_all(self) -> Iterator[Mapping[str, Any]]:
        """Give what was said with each commit that the log has, whoever made it, the newest first.

        Of a long log no more is read than is asked for.
        """
        seen = 0
        for limit in _HISTORY_LIMITS:
            found = self._said(limit)
            yield from found[seen:]
            seen = len(found)
            if limit is not None and seen < limit:
                return

    def reload(self) -> None:
        """See the newest version."""
        try:
            self._table = DeltaTable(str(self._path))
        except DeltaError as error:
            raise _table_failed(self._path, "read", error) from error

    def newest(self) -> AppCommit | None:
        """Return the last commit of the application, also if others have committed since.

        A number whose commit the log does not have any more is an error: the table keeps its log for some time only.
        """
        wanted = self.number
        if not wanted:
            return None
        for limit in _HISTORY_LIMITS:
            for found in self._history(limit):
                if found.number == wanted:
                    return found
        raise TableFailed(
            f"The table {self._path} knows that {self._app!r} has made commit {wanted}, and not any more what it said.",
            rule="The log of a table is kept for delta.logRetentionDuration, 30 days unless set otherwise.",
            remedy="Raise it before, for those who write seldom; see who else writes to the table.",
            table=str(self._path),
            app=self._app,
            number=wanted,
        )

    def check(self, rows: str | None = None, *, replaces: bool = False) -> None:
        """Refuse a table whose columns are not those of the rows, a schema as JSON, or that asks for more than files.

        With `replaces` also one in which files do not give way to others, or do not tell alone which rows there are.

        >>> schema = '{"type": "struct", "fields": [{"name": "id", "type": "long", "nullable": true, "metadata": {}}]}'
        >>> import tempfile
        >>> table = DeltaCommits.open(tempfile.mkdtemp(), "nightly", schema)
        >>> table.check(schema.replace("long", "string"))
        Traceback (most recent call last):
        floodmark.errors.TableUnfit: ... id is long in the table and string in the rows. ... [table-unfit]
        """
        metadata = self._table.metadata()
        needs = unsupported_features(self.schema, metadata.configuration, list(metadata.partition_columns))
        if replaces:
            needs += rewrite_blockers(metadata.configuration, self._table.protocol().reader_features or ())
        if needs:
            raise TableUnfit(
                f"The table {self._path} asks for what nobody sees to here: {'; '.join(needs)}.",
                rule="Files are added to it as they are.",
                remedy="Write to a table without it.",
                table=str(self._path),
                needs=needs,
            )
        told = [] if rows is None else schema_differences(self.schema, rows)
        if told:
            raise TableUnfit(
                f"The rows do not fit the table {self._path}: {'; '.join(told)}.",
                rule="The columns of rows are those of the table, with their types.",
                remedy="Select and cast columns, change the table first, or name another one.",
                table=str(self._path),
                differences=told,
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
        """Add files to the table, and say so under a number: all of it is seen at once, or nothing.

        The files `remove`, paths as `files` has them, give way. `also` are numbers of other applications. If the number
        does not rise, or one of the applications has committed since this version, or a file that gives way has gone
        already, a TableConflict is raised; `reload` then shows why. With `next_version` it is one also if anybody has
        committed anything since: for files that hold for the version that is seen, and no other. Afterwards the newest
        version is seen.
        """
        if number <= self.number:
            raise self._conflict(number, f"its last number is {self.number}")
        said = {**metadata, _APP_KEY: self._app, _NUMBER_KEY: str(number)}
        now = time_ns() // 1_000_000
        actions: list[AddAction | RemoveAction] = [
            *(AddAction(one.path, one.size, one.partition, one.modified, True, one.stats) for one in files),
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
                    custom_metadata=said,
                    # By default the client tries again on whatever version is the newest.
                    max_commit_retries=0 if next_version else None,
                    app_transactions=[Transaction(*one) for one in numbers.items()],
                ),
            )
        except CommitFailedError as error:
            raise self._conflict(number, str(error).rstrip(".")) from error
        except DeltaError as error:
            raise _table_failed(self._path, "written", error) from error
        self._go_on()

    def sweep(self, attempts: Sequence[str], committed: Iterable[str] = ()) -> list[str]:
        """Remove what attempts have left that were never committed, and return them; `committed` are known to be.

        Only for whoever is sure that nobody can commit any of these attempts any more: that they were noted before
        those who might were fenced. What is noted later may be on its way.
        """
        kept = set(committed)
        used = {Path(uri).parts for uri in self._table.file_uris()} if attempts else set()
        swept = []
        for attempt in attempts:
            parts = self.staging.directory(attempt).parts
            if attempt in kept or any(one[: len(parts)] == parts for one in used):
                self.staging.over(attempt)
            else:
                self.staging.remove([attempt])
                swept.append(attempt)
        return swept

    def _go_on(self) -> None:
        """See what was committed since.

        A handle that is kept looks through all commits since its last checkpoint each time: with one in ten commits
        and a new handle a commit takes 6 ms, with one in a hundred and more it takes 60.
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

    def _history(self, limit: int | None) -> list[AppCommit]:
        return [
            AppCommit(int(one[_NUMBER_KEY]), {name: value for name, value in one.items() if isinstance(value, str)})
            for one in self._said(limit)
            if one.get(_APP_KEY) == self._app and str(one.get(_NUMBER_KEY)).isdecimal()
        ]

    def _said(self, limit: int | None) -> list[Mapping[str, Any]]:
        try:
            return list(self._table.history(limit))
        except DeltaError as error:
            raise _table_failed(self._path, "read", error) from error

    def _conflict(self, number: int, why: str) -> TableConflict:
        return TableConflict(
            f"Commit {number} of {self._app!r} to the table {self._path} was refused: {why}.",
            rule="Numbers of an application rise, and each commit follows the one that was seen before it.",
            remedy="Read the table again, and decide again.",
            table=str(self._path),
            app=self._app,
            number=number,
        )


def _table_failed(path: Path, done: str, error: Exception) -> TableFailed:
    return TableFailed(
        f"The table {path} could not be {done}: {str(error).rstrip('.')}.",
        rule="Its directory and log are there, and may be read and written.",
        remedy="See to that, and start again: what was committed stays, and nothing else is seen.",
        table=str(path),
    )


SchemaJson = Mapping[str, Any]

_PARTITION_TYPES: Final = ("boolean", "byte", "date", "integer", "long", "short", "string")
_COLUMN_RULES: Final = ("delta.constraints", "delta.generationExpression", "delta.identity", "delta.invariants")

_REWRITE_BLOCKERS: Final = {
    "appendOnly": "that rows are only appended",
    "enableChangeDataFeed": "a feed of changes, in which rows that are copied would be new",
}


def schema_differences(table: str, rows: str) -> list[str]:
    """Return in what the columns of rows differ from those of a table; both schemas are JSON.

    The order of columns is of no account, nor is what else is said of them.

    >>> def schema(*columns):
    ...     return json.dumps({"type": "struct", "fields": [dict(zip(("name", "type"), one)) for one in columns]})
    >>> schema_differences(schema(("id", "long"), ("at", "timestamp")), schema(("at", "date"), ("item", "string")))
    ['at is timestamp in the table and date in the rows', 'id is missing in the rows', 'item is not in the table']
    """
    return _struct_differences(json.loads(table), json.loads(rows), "")


def unsupported_features(schema: str, configuration: Mapping[str, str | None], partition_by: list[str]) -> list[str]:
    """Return what a table asks of those who write to it, and that nobody here sees to.

    >>> unsupported_features('{"type": "struct", "fields": []}', {"delta.constraints.positive": "n > 0"}, [])
    ['the constraint positive']
    """
    found = [
        f"the constraint {name.removeprefix('delta.constraints.')}"
        for name in sorted(configuration)
        if name.startswith("delta.constraints.")
    ]
    if (configuration.get("delta.columnMapping.mode") or "none") != "none":
        found.append("the mapping of its columns")
    for field in json.loads(schema)["fields"]:
        if any(name.startswith(_COLUMN_RULES) for name in field.get("metadata") or {}):
            found.append(f"the rule of the column {field['name']}")
        if field["name"] in partition_by and field["type"] not in _PARTITION_TYPES:
            found.append(f"partitions by {field['name']}, which is {field['type']}")
    return found


def rewrite_blockers(configuration: Mapping[str, str | None], features: Iterable[str]) -> list[str]:
    """Return what of a table forbids that files are written anew without some of their rows.

    >>> rewrite_blockers({"delta.appendOnly": "true"}, ["deletionVectors"])
    ['that rows are only appended', 'deletion vectors, by which rows of a file are gone that are still in it']
    """
    found = [
        what for name, what in _REWRITE_BLOCKERS.items() if (configuration.get(f"delta.{name}") or "").lower() == "true"
    ]
    if "deletionVectors" in features:
        found.append("deletion vectors, by which rows of a file are gone that are still in it")
    return found


def _struct_differences(table: SchemaJson, rows: SchemaJson, place: str) -> list[str]:
    have = {field["name"]: field for field in table["fields"]}
    come = {field["name"]: field for field in rows["fields"]}
    found = []
    for name in sorted(have.keys() | come.keys()):
        if name not in come:
            found.append(f"{place}{name} is missing in the rows")
        elif name not in have:
            found.append(f"{place}{name} is not in the table")
        else:
            found += _type_differences(have[name]["type"], come[name]["type"], place + name)
            if not have[name].get("nullable", True) and come[name].get("nullable", True):
                found.append(f"{place}{name} must not be null in the table and may be in the rows")
    return found


def _type_differences(table: str | SchemaJson, rows: str | SchemaJson, place: str) -> list[str]:
    if isinstance(table, str) or isinstance(rows, str) or table["type"] != rows["type"]:
        return (
            [] if table == rows else [f"{place} is {_type_name(table)} in the table and {_type_name(rows)} in the rows"]
        )
    if table["type"] == "struct":
        return _struct_differences(table, rows, f"{place}.")
    if table["type"] == "array":
        return _type_differences(table["elementType"], rows["elementType"], f"{place}[]")
    keys = _type_differences(table["keyType"], rows["keyType"], f"{place}.key")
    return keys + _type_differences(table["valueType"], rows["valueType"], f"{place}.value")


def _type_name(kind: str | SchemaJson) -> str:
    return kind if isinstance(kind, str) else str(kind["type"])
