"""What a task does with rows: it checks them, fits them to the table, and writes Parquet files into its directory.

Large groups of rows, whole numbers and moments as differences, dictionaries only where values repeat, and the fastest
level of zstd: that was measured. Spark, DuckDB and delta-rs read it. A file has its name only once all of it is on the
disk.
"""

import errno
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import types

from floodmark._util.disk import sync_to_disk
from floodmark.delta.staging import StagedFile, file_statistics
from floodmark.errors import FloodmarkError, KeyMissing, TableFailed, TableUnfit
from floodmark.ingest.landing.column_types import is_list, type_name
from floodmark.ingest.landing.fitting import RowConverter, RowFitter
from floodmark.ingest.landing.tasks import Destination, LiveFile, Scope, StagedRows

_ROWS_A_FILE: Final = 10_000_000


@dataclass(frozen=True, slots=True)
class KeptRows:
    """The rows of a file that are not in a scope: a part that is read and written anew."""

    file: LiveFile
    scope: Scope
    schema: pa.Schema

    def read(self) -> Iterator[pa.RecordBatch]:
        """Give them."""
        yield _empty_batch(self.schema)
        yield from self.file.outside(self.scope, self.schema)


def write_rows(batches: Iterator[pa.RecordBatch], to: Destination, name: str) -> StagedRows:
    """Write rows where they belong, as files whose names begin with `name`."""
    return write_parquet(
        (_check_rows(batch, to) for batch in batches),
        to.directory,
        RowFitter(to.schema, to.drift, to.constants, to.keys),
        table=to.table,
        partition_by=to.partition_by,
        rows_a_file=_ROWS_A_FILE,
        name=name,
    )


def _check_rows(rows: pa.RecordBatch, to: Destination) -> pa.RecordBatch:
    if not rows.num_rows:
        return rows
    for name in to.keys:
        if name in rows.schema.names and rows.column(name).null_count:
            raise KeyMissing(
                f"A row has no value in {name}, which is one of its keys.",
                rule="Rows are merged by their keys, and each row has all of them.",
                remedy="Leave such rows out with `where`, or name other keys.",
                column=name,
            )
    if to.scope is not None:
        if to.scope.column not in rows.schema.names:
            raise TableUnfit(
                f"The rows have no column {to.scope.column}.",
                rule="What is replaced is a range of a column that the rows have.",
                remedy="Name one of their columns as range_column, or merge by key.",
                column=to.scope.column,
            )
        to.scope.check(rows)
    return rows


def _empty_batch(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], one.type) for one in schema], schema=schema)


_GROUP_ROWS: Final = 1 << 20
_GROUP_BYTES: Final = 128 << 20
_HELD_BYTES: Final = 256 << 20
"""How much is held back, over all partitions, for larger groups of rows."""
_OPEN_FILES: Final = 16
_SAMPLE: Final = 10_000
_REPEATED: Final = 0.5
"""Where no more than this share of a sample is distinct, a dictionary pays."""


def write_parquet(
    batches: Iterable[pa.RecordBatch],
    directory: Path,
    fitting: RowFitter,
    *,
    table: Path,
    partition_by: tuple[str, ...] = (),
    rows_a_file: int,
    name: str,
) -> StagedRows:
    """Write rows as they fit, and return the files, `<name>-00000.parquet` and so on, with what a commit says of them.

    The directory is inside that of the table. The name is used once: an attempt that runs again takes another one. If
    anything fails, no file is left. Without rows there are none, and nothing is refused: the schema is the table's,
    or that which it would get, or None if nothing is known.

    >>> from tempfile import mkdtemp
    >>> place = Path(mkdtemp())
    >>> rows = pa.RecordBatch.from_pydict({"id": [1, 2], "day": ["mon", "tue"]})
    >>> done = write_parquet(
    ...     [rows], place / "new", RowFitter(None), table=place, partition_by=("day",), rows_a_file=1000, name="part"
    ... )
    >>> [(file.path, file.rows) for file in done.files]
    [('new/day=mon/part-00000.parquet', 1), ('new/day=tue/part-00001.parquet', 1)]
    """
    files = _Files(table, directory / name, partition_by, rows_a_file)
    fitted: RowConverter | None = None
    first: pa.Schema | None = None
    try:
        for batch in batches:
            first = batch.schema if first is None else first
            if not batch.num_rows:
                continue
            known = fitted
            if known is None or known.rows != batch.schema:
                fitted = fitting.fit(batch.schema)
            assert fitted is not None
            if known is None:
                files.start(fitted.schema)
            elif known.schema != fitted.schema:
                raise _schema_changed(known.schema, fitted.schema)
            files.write(fitted.apply(batch))
        return StagedRows(files.done(), fitted.schema if fitted is not None else _schema_without_rows(fitting, first))
    except OSError as error:
        files.remove()
        if isinstance(error, FloodmarkError):
            raise
        raise _write_failed(directory, error) from error
    except BaseException:
        files.remove()
        raise


class _HeldRows:
    """Rows of one partition that wait to be a group."""

    def __init__(self) -> None:
        self.batches: list[pa.RecordBatch] = []
        self.rows = 0
        self.size = 0

    def add(self, batch: pa.RecordBatch) -> int:
        size = int(batch.nbytes)
        self.batches.append(batch)
        self.rows += batch.num_rows
        self.size += size
        return size

    @property
    def is_group(self) -> bool:
        return self.rows >= _GROUP_ROWS or self.size >= _GROUP_BYTES


PartitionValue = str | None
"""A value as tables write it; an empty text is no value, as in Spark."""


class _Files:
    """The files of one call. Few are open, and few rows are held back, however many partitions there are."""

    def __init__(self, table: Path, start: Path, partition_by: tuple[str, ...], rows_a_file: int) -> None:
        self._table = table
        self._start = start
        self._partition_by = partition_by
        self._rows_a_file = rows_a_file
        self._schema: Any = None
        self._held: dict[tuple[PartitionValue, ...], _HeldRows] = {}
        self._held_bytes = 0
        self._open: dict[tuple[PartitionValue, ...], _File] = {}
        self._made: list[_File] = []
        self._done: list[StagedFile] = []

    def start(self, schema: pa.Schema) -> None:
        check_partitions(schema, self._partition_by)
        self._schema = pa.schema([field for field in schema if field.name not in self._partition_by])

    def write(self, batch: pa.RecordBatch) -> None:
        for partition, rows in split_by_partition(batch, self._partition_by):
            held = self._held.setdefault(partition, _HeldRows())
            self._held_bytes += held.add(rows)
            if held.is_group:
                self._flush(partition)
        while self._held_bytes > _HELD_BYTES:
            self._flush(max(self._held, key=lambda one: self._held[one].size))

    def done(self) -> tuple[StagedFile, ...]:
        for partition in [*self._held, *(one for one in self._open if one not in self._held)]:
            if partition in self._held:
                self._flush(partition)
            if partition in self._open:
                self._close(partition)
        for directory in {file.path.parent for file in self._made}:
            sync_to_disk(directory)
        return tuple(self._done)

    def remove(self) -> None:
        """Leave nothing behind; what cannot be removed is left to whoever removes the attempt."""
        for file in self._made:
            file.remove()

    def _flush(self, partition: tuple[PartitionValue, ...]) -> None:
        held = self._held.pop(partition)
        self._held_bytes -= held.size
        rows = pa.Table.from_batches(held.batches)
        while rows.num_rows:
            file = self._file(partition, rows)
            room = self._rows_a_file - file.rows
            file.write(rows.slice(0, room))
            rows = rows.slice(room)
            if file.rows >= self._rows_a_file:
                self._close(partition)

    def _file(self, partition: tuple[PartitionValue, ...], sample: pa.Table) -> "_File":
        # The one that was written to last is at the end.
        found = self._open.pop(partition, None)
        if found is None:
            if len(self._open) >= _OPEN_FILES:
                self._close(next(iter(self._open)))
            place = self._start.parent / partition_directory(self._partition_by, partition)
            found = _File(place / f"{self._start.name}-{len(self._made):05}.parquet")
            self._made.append(found)
            found.open(self._schema, sample)
        self._open[partition] = found
        return found

    def _close(self, partition: tuple[PartitionValue, ...]) -> None:
        file = self._open.pop(partition)
        metadata = file.close()
        status = file.path.stat()
        self._done.append(
            StagedFile(
                file.path.relative_to(self._table).as_posix(),
                status.st_size,
                status.st_mtime_ns // 1_000_000,
                file.rows,
                file_statistics(metadata),
                dict(zip(self._partition_by, partition, strict=True)),
            )
        )


class _File:
    """A file that is being written, under a name that nobody takes for one of the table."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows = 0
        self._hidden = path.with_name(f".{path.name}.part")
        self._told: list[pq.FileMetaData] = []
        self._sink: Any = None
        self._writer: Any = None

    def open(self, schema: pa.Schema, sample: pa.Table) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        repeated, steady = _encodings(schema, sample)
        self._sink = pa.OSFile(str(self._hidden), "wb")
        self._writer = pq.ParquetWriter(
            self._sink,
            schema,
            compression="zstd",
            compression_level=1,
            use_dictionary=repeated,
            column_encoding=dict.fromkeys(steady, "DELTA_BINARY_PACKED") or None,
            write_statistics=True,
            coerce_timestamps="us",
            metadata_collector=self._told,
        )

    def write(self, rows: pa.Table) -> None:
        size = max(1, int(rows.nbytes))
        group = min(_GROUP_ROWS, max(1, rows.num_rows * _GROUP_BYTES // size))
        self._writer.write_table(rows, row_group_size=group)
        self.rows += rows.num_rows

    def close(self) -> pq.FileMetaData:
        self._writer.close()
        self._sink.close()
        sync_to_disk(self._hidden)
        self._hidden.replace(self.path)
        return self._told[0]

    def remove(self) -> None:
        for closing in (self._writer, self._sink):
            if closing is not None:
                with suppress(OSError, pa.ArrowException):
                    closing.close()
        for path in (self._hidden, self.path):
            with suppress(OSError):
                path.unlink(missing_ok=True)


def _encodings(schema: pa.Schema, rows: pa.Table) -> tuple[list[str], list[str]]:
    """Return which columns get a dictionary, and which are written as differences."""
    sample = rows.slice(0, _SAMPLE)
    repeated: list[str] = []
    steady: list[str] = []
    for field in schema:
        kind = field.type
        if types.is_nested(kind):
            repeated += _leaves(kind, field.name)
        elif not types.is_boolean(kind):
            values = sample.column(field.name)
            if pc.count_distinct(values, mode="all").as_py() <= max(1, _REPEATED * len(values)):
                repeated.append(field.name)
            elif types.is_integer(kind) or types.is_timestamp(kind) or types.is_date(kind):
                steady.append(field.name)
    return repeated, steady


def _leaves(kind: Any, path: str) -> Iterator[str]:
    """Give the columns that Parquet has for one that is nested.

    >>> list(_leaves(pa.struct([("a", pa.list_(pa.int8())), ("b", pa.map_(pa.string(), pa.date32()))]), "s"))
    ['s.a.list.element', 's.b.key_value.key', 's.b.key_value.value']
    """
    if types.is_struct(kind):
        for field in kind:
            yield from _leaves(field.type, f"{path}.{field.name}")
    elif types.is_map(kind):
        yield from _leaves(kind.key_type, f"{path}.key_value.key")
        yield from _leaves(kind.item_type, f"{path}.key_value.value")
    elif is_list(kind):
        yield from _leaves(kind.value_type, f"{path}.list.element")
    elif not types.is_boolean(kind):
        yield path


def _schema_without_rows(fitting: RowFitter, first: pa.Schema | None) -> pa.Schema | None:
    if fitting.table is not None or first is None:
        return fitting.table
    try:
        return fitting.fit(first).schema
    except TableUnfit:
        # There is nothing that would have to fit.
        return None


def _schema_changed(before: pa.Schema, after: pa.Schema) -> TableUnfit:
    names = [one.name for one in after if one not in before] or [one.name for one in before if one not in after]
    return TableUnfit(
        f"The rows changed while they were read: {', '.join(names)} came, went or became another type.",
        rule="The rows that one task reads have the same columns.",
        remedy="Name the columns and their types where the rows come from.",
        column=names[0] if names else None,
    )


def _write_failed(directory: Path, error: OSError) -> TableFailed:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return TableFailed(
            f"There is no room for rows in {directory}: the disk, or what may be used of it, is full.",
            rule="Rows are written beside those of the table, before they take their place.",
            remedy="Make room, and run again: nothing of this cell was landed, and no half file was left.",
            directory=str(directory),
            errno=error.errno,
        )
    return TableFailed(
        f"Rows could not be written to {directory}: {os.strerror(error.errno) if error.errno else error}.",
        rule="The directory of the table is there for every task, and may be written.",
        remedy="See to that, and run again: nothing of this cell was landed.",
        directory=str(directory),
        errno=error.errno,
    )


_NO_VALUE: Final = "__HIVE_DEFAULT_PARTITION__"
_MAX_NAME: Final = 255
"""Bytes of a directory's name."""
_PARTITION_TYPES: Final = (types.is_boolean, types.is_signed_integer, types.is_date32, types.is_string)


def check_partitions(schema: pa.Schema, columns: tuple[str, ...]) -> None:
    """Refuse columns by which tables cannot be partitioned.

    >>> check_partitions(pa.schema([("at", pa.float64()), ("id", pa.int64())]), ("at",))
    Traceback (most recent call last):
    floodmark.errors.TableUnfit: The table is partitioned by at, which is double. ... [table-unfit]
    """
    for name in columns:
        if name not in schema.names:
            raise _unfit_partition(name, f"The table is partitioned by {name}, and the rows have no such column.")
        kind = schema.field(name).type
        if not any(is_it(kind) for is_it in _PARTITION_TYPES):
            raise _unfit_partition(name, f"The table is partitioned by {name}, which is {type_name(kind)}.")
    if columns and not set(schema.names) - set(columns):
        raise _unfit_partition(columns[0], "The table is partitioned by all of its columns.")


def split_by_partition(
    batch: pa.RecordBatch, columns: tuple[str, ...]
) -> Iterator[tuple[tuple[PartitionValue, ...], pa.RecordBatch]]:
    """Give the rows of each partition, in their order, without the columns that it is named by.

    >>> rows = pa.RecordBatch.from_pydict({"day": ["b", "a", "b"], "n": [1, 2, 3]})
    >>> [(partition, part.to_pydict()) for partition, part in split_by_partition(rows, ("day",))]
    [(('b',), {'n': [1, 3]}), (('a',), {'n': [2]})]
    """
    if not columns:
        yield (), batch
        return
    texts, places, codes = [], [], np.zeros(batch.num_rows, np.int64)
    for name in columns:
        encoded = pc.dictionary_encode(batch.column(name), null_encoding="encode")
        place = encoded.indices.to_numpy(zero_copy_only=False)
        texts.append([_partition_text(value) for value in encoded.dictionary.to_pylist()])
        places.append(place)
        # Counted anew for each column, so that the product of many stays small.
        codes = np.unique(codes * len(encoded.dictionary) + place, return_inverse=True)[1]
    order = np.argsort(codes, kind="stable")
    starts = np.flatnonzero(np.diff(codes[order], prepend=-1))
    ends = np.append(starts[1:], batch.num_rows)
    rest = batch.drop_columns(list(columns))
    rows = rest if len(starts) == 1 else rest.take(pa.array(order))
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        partition = tuple(text[place[order[start]]] for text, place in zip(texts, places, strict=True))
        yield partition, rows.slice(start, end - start)


def partition_directory(columns: tuple[str, ...], partition: tuple[PartitionValue, ...]) -> PurePosixPath:
    """Return the directory of a partition, inside of that for all.

    >>> (
    ...     partition_directory(("day", "place"), ("2026-01-01", "a/b: 5%")).as_posix(),
    ...     partition_directory(("a",), (None,)).as_posix(),
    ... )
    ('day=2026-01-01/place=a%2Fb%3A%205%25', 'a=__HIVE_DEFAULT_PARTITION__')
    """
    parts = []
    for name, value in zip(columns, partition, strict=True):
        part = f"{quote(name, safe='')}={_NO_VALUE if value is None else quote(value, safe='')}"
        if len(part) > _MAX_NAME:
            raise TableUnfit(
                f"The column {name}, by which the table is partitioned, has a value of {len(str(value))} characters.",
                rule=f"A partition has a directory, and its name has {_MAX_NAME} bytes at most.",
                remedy="Partition by a shorter column.",
                column=name,
            )
        parts.append(part)
    return PurePosixPath(*parts)


def _partition_text(value: Any) -> PartitionValue:
    """Return a value as tables write it.

    >>> _partition_text(True), _partition_text(7), _partition_text(""), _partition_text(None)
    ('true', '7', None, None)
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    return None if value is None else str(value) or None


def _unfit_partition(column: str, fact: str) -> TableUnfit:
    return TableUnfit(
        fact,
        rule="A table is partitioned by texts, whole numbers, truth values or days that rows have, and has others.",
        remedy="Name other columns in partition_by.",
        column=column,
    )
