"""Rows, written to Parquet files inside the directory of a table, as fast as one core can.

Large groups of rows, whole numbers and moments as differences, dictionaries only where values repeat, and the fastest
level of zstd: that was measured. Spark, DuckDB and delta-rs read it. A file has its name only once all of it is on the
disk.
"""

import errno
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import types

from floodmark._util.disk import sync_to_disk
from floodmark.delta.staging import StagedFile, file_statistics
from floodmark.errors import FloodmarkError, TableFailed, TableUnfit
from floodmark.landing._arrow_types import is_list
from floodmark.landing._fit import Fitted, Fitting
from floodmark.landing._partitions import Value, check_partitions, directory_of, split
from floodmark.landing._tasks import Staged

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
    fitting: Fitting,
    *,
    table: Path,
    partition_by: tuple[str, ...] = (),
    rows_a_file: int,
    name: str,
) -> Staged:
    """Write rows as they fit, and return the files, `<name>-00000.parquet` and so on, with what a commit says of them.

    The directory is inside that of the table. The name is used once: an attempt that runs again takes another one. If
    anything fails, no file is left. Without rows there are none, and nothing is refused: the schema is the table's,
    or that which it would get, or None if nothing is known.

    >>> from tempfile import mkdtemp
    >>> place = Path(mkdtemp())
    >>> rows = pa.RecordBatch.from_pydict({"id": [1, 2], "day": ["mon", "tue"]})
    >>> done = write_parquet(
    ...     [rows], place / "new", Fitting(None), table=place, partition_by=("day",), rows_a_file=1000, name="part"
    ... )
    >>> [(file.path, file.rows) for file in done.files]
    [('new/day=mon/part-00000.parquet', 1), ('new/day=tue/part-00001.parquet', 1)]
    """
    files = _Files(table, directory / name, partition_by, rows_a_file)
    fitted: Fitted | None = None
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
                raise _changed(known.schema, fitted.schema)
            files.write(fitted.apply(batch))
        return Staged(files.done(), fitted.schema if fitted is not None else _schema_without_rows(fitting, first))
    except OSError as error:
        files.remove()
        if isinstance(error, FloodmarkError):
            raise
        raise _failed(directory, error) from error
    except BaseException:
        files.remove()
        raise


class _Held:
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


class _Files:
    """The files of one call. Few are open, and few rows are held back, however many partitions there are."""

    def __init__(self, table: Path, start: Path, partition_by: tuple[str, ...], rows_a_file: int) -> None:
        self._table = table
        self._start = start
        self._partition_by = partition_by
        self._rows_a_file = rows_a_file
        self._schema: Any = None
        self._held: dict[tuple[Value, ...], _Held] = {}
        self._held_bytes = 0
        self._open: dict[tuple[Value, ...], _File] = {}
        self._made: list[_File] = []
        self._done: list[StagedFile] = []

    def start(self, schema: pa.Schema) -> None:
        check_partitions(schema, self._partition_by)
        self._schema = pa.schema([field for field in schema if field.name not in self._partition_by])

    def write(self, batch: pa.RecordBatch) -> None:
        for partition, rows in split(batch, self._partition_by):
            held = self._held.setdefault(partition, _Held())
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

    def _flush(self, partition: tuple[Value, ...]) -> None:
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

    def _file(self, partition: tuple[Value, ...], sample: pa.Table) -> "_File":
        # The one that was written to last is at the end.
        found = self._open.pop(partition, None)
        if found is None:
            if len(self._open) >= _OPEN_FILES:
                self._close(next(iter(self._open)))
            place = self._start.parent / directory_of(self._partition_by, partition)
            found = _File(place / f"{self._start.name}-{len(self._made):05}.parquet")
            self._made.append(found)
            found.open(self._schema, sample)
        self._open[partition] = found
        return found

    def _close(self, partition: tuple[Value, ...]) -> None:
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


def _schema_without_rows(fitting: Fitting, first: pa.Schema | None) -> pa.Schema | None:
    if fitting.table is not None or first is None:
        return fitting.table
    try:
        return fitting.fit(first).schema
    except TableUnfit:
        # There is nothing that would have to fit.
        return None


def _changed(before: pa.Schema, after: pa.Schema) -> TableUnfit:
    names = [one.name for one in after if one not in before] or [one.name for one in before if one not in after]
    return TableUnfit(
        f"The rows changed while they were read: {', '.join(names)} came, went or became another type.",
        rule="The rows that one task reads have the same columns.",
        remedy="Name the columns and their types where the rows come from.",
        column=names[0] if names else None,
    )


def _failed(directory: Path, error: OSError) -> TableFailed:
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
