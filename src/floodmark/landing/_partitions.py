"""Rows, split by the columns that a table is partitioned by, and the directories that have their names."""

from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any, Final
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from floodmark.errors import TableUnfit
from floodmark.landing._arrow_types import shown

Value = str | None
"""A value as tables write it; an empty text is no value, as in Spark."""
_NO_VALUE: Final = "__HIVE_DEFAULT_PARTITION__"
_LONGEST: Final = 255
"""Bytes of a directory's name."""
_KINDS: Final = (types.is_boolean, types.is_signed_integer, types.is_date32, types.is_string)


def check_partitions(schema: pa.Schema, columns: tuple[str, ...]) -> None:
    """Refuse columns by which tables cannot be partitioned.

    >>> check_partitions(pa.schema([("at", pa.float64()), ("id", pa.int64())]), ("at",))
    Traceback (most recent call last):
    floodmark.errors.TableUnfit: The table is partitioned by at, which is double. ... [table-unfit]
    """
    for name in columns:
        if name not in schema.names:
            raise _refused(name, f"The table is partitioned by {name}, and the rows have no such column.")
        kind = schema.field(name).type
        if not any(is_it(kind) for is_it in _KINDS):
            raise _refused(name, f"The table is partitioned by {name}, which is {shown(kind)}.")
    if columns and not set(schema.names) - set(columns):
        raise _refused(columns[0], "The table is partitioned by all of its columns.")


def split(batch: pa.RecordBatch, columns: tuple[str, ...]) -> Iterator[tuple[tuple[Value, ...], pa.RecordBatch]]:
    """Give the rows of each partition, in their order, without the columns that it is named by.

    >>> rows = pa.RecordBatch.from_pydict({"day": ["b", "a", "b"], "n": [1, 2, 3]})
    >>> [(partition, part.to_pydict()) for partition, part in split(rows, ("day",))]
    [(('b',), {'n': [1, 3]}), (('a',), {'n': [2]})]
    """
    if not columns:
        yield (), batch
        return
    texts, places, codes = [], [], np.zeros(batch.num_rows, np.int64)
    for name in columns:
        encoded = pc.dictionary_encode(batch.column(name), null_encoding="encode")
        place = encoded.indices.to_numpy(zero_copy_only=False)
        texts.append([_text(value) for value in encoded.dictionary.to_pylist()])
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


def directory_of(columns: tuple[str, ...], partition: tuple[Value, ...]) -> PurePosixPath:
    """Return the directory of a partition, inside of that for all.

    >>> directory_of(("day", "place"), ("2026-01-01", "a/b: 5%")).as_posix(), directory_of(("a",), (None,)).as_posix()
    ('day=2026-01-01/place=a%2Fb%3A%205%25', 'a=__HIVE_DEFAULT_PARTITION__')
    """
    parts = []
    for name, value in zip(columns, partition, strict=True):
        part = f"{quote(name, safe='')}={_NO_VALUE if value is None else quote(value, safe='')}"
        if len(part) > _LONGEST:
            raise TableUnfit(
                f"The column {name}, by which the table is partitioned, has a value of {len(str(value))} characters.",
                rule=f"A partition has a directory, and its name has {_LONGEST} bytes at most.",
                remedy="Partition by a shorter column.",
                column=name,
            )
        parts.append(part)
    return PurePosixPath(*parts)


def _text(value: Any) -> Value:
    """Return a value as tables write it.

    >>> _text(True), _text(7), _text(""), _text(None)
    ('true', '7', None, None)
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    return None if value is None else str(value) or None


def _refused(column: str, fact: str) -> TableUnfit:
    return TableUnfit(
        fact,
        rule="A table is partitioned by texts, whole numbers, truth values or days that rows have, and has others.",
        remedy="Name other columns in partition_by.",
        column=column,
    )
