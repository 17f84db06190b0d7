"""Bindings as a table."""

import pyarrow as pa

from floodmark.bindings._history import BindingHistory

SCHEMA = pa.schema(
    [
        pa.field("source", pa.string(), nullable=False),
        pa.field("partition", pa.int64(), nullable=False),
        pa.field("ts", pa.int64(), nullable=False),
        pa.field("first_offset", pa.int64(), nullable=False),
        pa.field("end_offset", pa.int64(), nullable=False),
    ]
)


def table_of(history: BindingHistory) -> pa.Table:
    """Return one row for each pair, by partition and timestamp.

    >>> table_of(BindingHistory.start(0, "orders").append(0, {0: 5}).append(1, {0: 8})).to_pylist()[1]
    {'source': 'orders', 'partition': 0, 'ts': 1, 'first_offset': 5, 'end_offset': 8}
    """
    pairs = history.pairs()
    columns = zip(*((history.source, *pair) for pair in pairs), strict=True) if pairs else [[]] * len(SCHEMA)
    return pa.table([list(column) for column in columns], schema=SCHEMA)
