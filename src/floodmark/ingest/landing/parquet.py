"""What a task does with rows: it checks them, fits them to the table, and writes Parquet files.

The format was chosen by measurement: large row groups, delta encoding for integers and timestamps, dictionaries only
for columns whose values repeat, and zstd at its fastest level. Spark, DuckDB and delta-rs read it. A file gets its
final name only when all of it is on disk.
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
    """An input split with the rows of a file that are not in a scope; they are written to a new file."""

    file: LiveFile
    scope: Scope
    schema: pa.Schema

    def read(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows; the first batch is empty and has the schema."""
        yield _empty_batch(self.schema)
        yield from self.file.rows_outside(self.scope, self.schema)


def write_rows(batches: Iterator[pa.RecordBatch], to: Destination, name: str) -> StagedRows:
    """Check rows and write them to a destination, as files whose names begin with `name`."""
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
                f"A row has no value in the key column {name}.",
                rule="A key column is never null in rows that are merged.",
                remedy="Exclude such rows with `where` in [source], or name other keys in [target].",
                column=name,
            )
    if to.scope is not None:
        if to.scope.column not in rows.schema.names:
            raise TableUnfit(
                f"The rows have no column {to.scope.column}.",
                rule="The rows of a range are replaced by a time column that they have.",
                remedy='Set range_column in [target] to one of their columns, or write mode = "merge" with keys.',
                column=to.scope.column,
            )
        to.scope.check(rows)
    return rows


def _empty_batch(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], column.type) for column in schema], schema=schema)


_GROUP_ROWS: Final = 1 << 20
_GROUP_BYTES: Final = 128 << 20
_MOST_BUFFERED_BYTES: Final = 256 << 20
"""How many bytes are buffered, over all partitions, to form larger row groups."""
_MOST_OPEN_FILES: Final = 16
_SAMPLE_ROWS: Final = 10_000
_DICTIONARY_FRACTION: Final = 0.5
"""A column gets a dictionary if at most this fraction of a sample is distinct."""


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
    """Fit rows to a table, write them as `<name>-00000.parquet` and so on, and return the files with their statistics.

    The directory lies inside that of the table. Use each name once: a retried attempt takes another one. If anything
    fails, no file is left. Without rows no file is written and nothing is refused; the returned schema is then the
    table's, or the one that the table would get, or None if nothing is known.

    >>> from tempfile import mkdtemp
    >>> table = Path(mkdtemp())
    >>> rows = pa.RecordBatch.from_pydict({"id": [1, 2], "day": ["mon", "tue"]})
    >>> done = write_parquet(
    ...     [rows], table / "new", RowFitter(None), table=table, partition_by=("day",), rows_a_file=1000, name="part"
    ... )
    >>> [(file.path, file.rows) for file in done.files]
    [('new/day=mon/part-00000.parquet', 1), ('new/day=tue/part-00001.parquet', 1)]
    """
    files = _FileSet(table, directory / name, partition_by, rows_a_file)
    converter: RowConverter | None = None
    first: pa.Schema | None = None
    try:
        for batch in batches:
            first = batch.schema if first is None else first
            if not batch.num_rows:
                continue
            previous = converter
            if previous is None or previous.rows != batch.schema:
                converter = fitting.fit(batch.schema)
            assert converter is not None
            if previous is None:
                files.start(converter.schema)
            elif previous.schema != converter.schema:
                raise _schema_changed(previous.schema, converter.schema)
            files.write(converter.apply(batch))
        schema = converter.schema if converter is not None else _schema_without_rows(fitting, first)
        return StagedRows(files.close(), schema)
    except OSError as error:
        files.remove()
        if isinstance(error, FloodmarkError):
            raise
        raise _write_failed(directory, error) from error
    except BaseException:
        files.remove()
        raise


class _BufferedRows:
    """Rows of one partition that are buffered until they form a row group."""

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
"""A partition value as text; None for null and for an empty text, as in Spark."""


class _FileSet:
    """The files of one call. The open files and the buffered rows are limited, whatever the number of partitions."""

    def __init__(self, table: Path, start: Path, partition_by: tuple[str, ...], rows_a_file: int) -> None:
        self._table = table
        self._start = start
        self._partition_by = partition_by
        self._rows_a_file = rows_a_file
        self._schema: Any = None
        self._buffers: dict[tuple[PartitionValue, ...], _BufferedRows] = {}
        self._buffered_bytes = 0
        self._open: dict[tuple[PartitionValue, ...], _FileWriter] = {}
        self._created: list[_FileWriter] = []
        self._closed: list[StagedFile] = []

    def start(self, schema: pa.Schema) -> None:
        check_partitions(schema, self._partition_by)
        self._schema = pa.schema([field for field in schema if field.name not in self._partition_by])

    def write(self, batch: pa.RecordBatch) -> None:
        for partition, rows in split_by_partition(batch, self._partition_by):
            buffered = self._buffers.setdefault(partition, _BufferedRows())
            self._buffered_bytes += buffered.add(rows)
            if buffered.is_group:
                self._flush(partition)
        while self._buffered_bytes > _MOST_BUFFERED_BYTES:
            self._flush(max(self._buffers, key=lambda key: self._buffers[key].size))

    def close(self) -> tuple[StagedFile, ...]:
        for partition in [*self._buffers, *(key for key in self._open if key not in self._buffers)]:
            if partition in self._buffers:
                self._flush(partition)
            if partition in self._open:
                self._close(partition)
        for directory in {file.path.parent for file in self._created}:
            sync_to_disk(directory)
        return tuple(self._closed)

    def remove(self) -> None:
        """Remove all files. A file that cannot be removed stays until the whole staging attempt is removed."""
        for file in self._created:
            file.remove()

    def _flush(self, partition: tuple[PartitionValue, ...]) -> None:
        buffered = self._buffers.pop(partition)
        self._buffered_bytes -= buffered.size
        rows = pa.Table.from_batches(buffered.batches)
        while rows.num_rows:
            file = self._open_file(partition, rows)
            room = self._rows_a_file - file.rows
            file.write(rows.slice(0, room))
            rows = rows.slice(room)
            if file.rows >= self._rows_a_file:
                self._close(partition)

    def _open_file(self, partition: tuple[PartitionValue, ...], sample: pa.Table) -> "_FileWriter":
        # Removing and adding it again keeps the open files in the order of their last use.
        file = self._open.pop(partition, None)
        if file is None:
            if len(self._open) >= _MOST_OPEN_FILES:
                self._close(next(iter(self._open)))
            directory = self._start.parent / partition_directory(self._partition_by, partition)
            file = _FileWriter(directory / f"{self._start.name}-{len(self._created):05}.parquet")
            self._created.append(file)
            file.open(self._schema, sample)
        self._open[partition] = file
        return file

    def _close(self, partition: tuple[PartitionValue, ...]) -> None:
        file = self._open.pop(partition)
        metadata = file.close()
        status = file.path.stat()
        self._closed.append(
            StagedFile(
                file.path.relative_to(self._table).as_posix(),
                status.st_size,
                status.st_mtime_ns // 1_000_000,
                file.rows,
                file_statistics(metadata),
                dict(zip(self._partition_by, partition, strict=True)),
            )
        )


class _FileWriter:
    """A file that is being written. Until it is closed it has a hidden name, which readers of directories skip."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows = 0
        self._hidden = path.with_name(f".{path.name}.part")
        self._metadata: list[pq.FileMetaData] = []
        self._sink: Any = None
        self._writer: Any = None

    def open(self, schema: pa.Schema, sample: pa.Table) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        dictionary, delta = _encodings(schema, sample)
        self._sink = pa.OSFile(str(self._hidden), "wb")
        self._writer = pq.ParquetWriter(
            self._sink,
            schema,
            compression="zstd",
            compression_level=1,
            use_dictionary=dictionary,
            column_encoding=dict.fromkeys(delta, "DELTA_BINARY_PACKED") or None,
            write_statistics=True,
            coerce_timestamps="us",
            metadata_collector=self._metadata,
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
        return self._metadata[0]

    def remove(self) -> None:
        for closing in (self._writer, self._sink):
            if closing is not None:
                with suppress(OSError, pa.ArrowException):
                    closing.close()
        for path in (self._hidden, self.path):
            with suppress(OSError):
                path.unlink(missing_ok=True)


def _encodings(schema: pa.Schema, rows: pa.Table) -> tuple[list[str], list[str]]:
    """Return the columns that get a dictionary, and those that get delta encoding."""
    sample = rows.slice(0, _SAMPLE_ROWS)
    dictionary: list[str] = []
    delta: list[str] = []
    for field in schema:
        kind = field.type
        if types.is_nested(kind):
            dictionary += _leaves(kind, field.name)
        elif not types.is_boolean(kind):
            values = sample.column(field.name)
            if pc.count_distinct(values, mode="all").as_py() <= max(1, _DICTIONARY_FRACTION * len(values)):
                dictionary.append(field.name)
            elif types.is_integer(kind) or types.is_timestamp(kind) or types.is_date(kind):
                delta.append(field.name)
    return dictionary, delta


def _leaves(kind: Any, path: str) -> Iterator[str]:
    """Yield the Parquet columns of a nested column.

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
        # Without rows a misfit does not matter.
        return None


def _schema_changed(before: pa.Schema, after: pa.Schema) -> TableUnfit:
    names = [field.name for field in after if field not in before]
    names = names or [field.name for field in before if field not in after]
    return TableUnfit(
        f"The columns changed while rows were read: {', '.join(names)} was added, removed or got another type.",
        rule="All rows that one task reads have the same columns.",
        remedy="Select the columns in the source and cast them to fixed types.",
        column=names[0] if names else None,
    )


def _write_failed(directory: Path, error: OSError) -> TableFailed:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return TableFailed(
            f"Rows could not be written to {directory}: the disk or its quota is full.",
            rule="New rows are written beside those of the table before they replace them.",
            remedy="Free space on that disk and run the job again: nothing of this cell was landed.",
            directory=str(directory),
            errno=error.errno,
        )
    return TableFailed(
        f"Rows could not be written to {directory}: {os.strerror(error.errno) if error.errno else error}.",
        rule="Every task can write to the directory of the table.",
        remedy="Mount the directory on every worker, let this user write to it, and run the job again: nothing of this "
        "cell was landed.",
        directory=str(directory),
        errno=error.errno,
    )


_NULL_PARTITION: Final = "__HIVE_DEFAULT_PARTITION__"
_MAX_NAME: Final = 255
"""The longest name of a directory, in bytes."""
_PARTITION_TYPES: Final = (types.is_boolean, types.is_signed_integer, types.is_date32, types.is_string)


def check_partitions(schema: pa.Schema, columns: tuple[str, ...]) -> None:
    """Refuse columns by which a table cannot be partitioned.

    >>> check_partitions(pa.schema([("at", pa.float64()), ("id", pa.int64())]), ("at",))
    Traceback (most recent call last):
    floodmark.errors.TableUnfit: The table is partitioned by at, which is double. ... [table-unfit]
    """
    for name in columns:
        if name not in schema.names:
            raise _unfit_partition(name, f"The table is partitioned by {name}, and the rows have no such column.")
        kind = schema.field(name).type
        if not any(is_type(kind) for is_type in _PARTITION_TYPES):
            raise _unfit_partition(name, f"The table is partitioned by {name}, which is {type_name(kind)}.")
    if columns and not set(schema.names) - set(columns):
        raise _unfit_partition(columns[0], "The table is partitioned by all of its columns.")


def split_by_partition(
    batch: pa.RecordBatch, columns: tuple[str, ...]
) -> Iterator[tuple[tuple[PartitionValue, ...], pa.RecordBatch]]:
    """Yield the rows of each partition, in their order and without the partition columns.

    >>> rows = pa.RecordBatch.from_pydict({"day": ["b", "a", "b"], "n": [1, 2, 3]})
    >>> [(partition, part.to_pydict()) for partition, part in split_by_partition(rows, ("day",))]
    [(('b',), {'n': [1, 3]}), (('a',), {'n': [2]})]
    """
    if not columns:
        yield (), batch
        return
    texts, indices, codes = [], [], np.zeros(batch.num_rows, np.int64)
    for name in columns:
        encoded = pc.dictionary_encode(batch.column(name), null_encoding="encode")
        index = encoded.indices.to_numpy(zero_copy_only=False)
        texts.append([_partition_text(value) for value in encoded.dictionary.to_pylist()])
        indices.append(index)
        # Renumber after each column, so that the codes do not overflow with many columns.
        codes = np.unique(codes * len(encoded.dictionary) + index, return_inverse=True)[1]
    order = np.argsort(codes, kind="stable")
    starts = np.flatnonzero(np.diff(codes[order], prepend=-1))
    ends = np.append(starts[1:], batch.num_rows)
    rest = batch.drop_columns(list(columns))
    rows = rest if len(starts) == 1 else rest.take(pa.array(order))
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        partition = tuple(text[index[order[start]]] for text, index in zip(texts, indices, strict=True))
        yield partition, rows.slice(start, end - start)


def partition_directory(columns: tuple[str, ...], partition: tuple[PartitionValue, ...]) -> PurePosixPath:
    """Return the directory of a partition, relative to the directory of all files.

    >>> (
    ...     partition_directory(("day", "place"), ("2026-01-01", "a/b: 5%")).as_posix(),
    ...     partition_directory(("a",), (None,)).as_posix(),
    ... )
    ('day=2026-01-01/place=a%2Fb%3A%205%25', 'a=__HIVE_DEFAULT_PARTITION__')
    """
    parts = []
    for name, value in zip(columns, partition, strict=True):
        part = f"{quote(name, safe='')}={_NULL_PARTITION if value is None else quote(value, safe='')}"
        if len(part) > _MAX_NAME:
            raise TableUnfit(
                f"The partition column {name} has a value of {len(str(value))} characters.",
                rule=f"The directory of a partition is named after its value, in at most {_MAX_NAME} bytes.",
                remedy="Name a column with shorter values in partition_by.",
                column=name,
            )
        parts.append(part)
    return PurePosixPath(*parts)


def _partition_text(value: Any) -> PartitionValue:
    """Return a partition value as text.

    >>> _partition_text(True), _partition_text(7), _partition_text(""), _partition_text(None)
    ('true', '7', None, None)
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    return None if value is None else str(value) or None


def _unfit_partition(column: str, fact: str) -> TableUnfit:
    return TableUnfit(
        fact,
        rule="Partition columns are strings, integers, booleans or dates, and a table has other columns besides.",
        remedy="Name other columns in partition_by of [target].",
        column=column,
    )
