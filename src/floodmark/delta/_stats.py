"""What a Parquet file says of its own rows, as Delta Lake keeps it: by that readers pass over files."""

import json
from datetime import date, datetime, timedelta
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001 - the zone is told or not, as the column has one
_SHORT: Final = 64
"""Bytes of a text that is told."""
_WHOLE_TEXTS: Final = "parquet-cpp-arrow"
"""Who writes the bounds of texts as they are; others may cut them."""


def stats_of(metadata: pq.FileMetaData) -> str:
    """Return the statistics of a file as JSON: how many rows, and of simple columns the bounds and how many nulls.

    Bounds are told of whole numbers, dates, moments and short texts: of those they are exact, or can be made wider.
    """
    has_whole_texts = (metadata.created_by or "").startswith(_WHOLE_TEXTS)
    schema = metadata.schema.to_arrow_schema()
    simple = {name: index for index, name in _leaves(metadata) if name in schema.names}
    lowest: dict[str, Any] = {}
    highest: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for name, index in simple.items():
        kind = schema.field(name).type
        is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
        found = [metadata.row_group(group).column(index).statistics for group in range(metadata.num_row_groups)]
        if not found or any(one is None or not one.has_null_count for one in found):
            continue
        nulls[name] = sum(one.null_count for one in found)
        told = [one for one in found if one.has_min_max]
        # A group of nulls has no bounds; any other that has none could have all.
        if not told or any(not one.has_min_max and one.num_values for one in found):
            continue
        if is_text and not has_whole_texts:
            continue
        low = _written(kind, min(one.min_raw for one in told), up=False)
        high = _written(kind, max(one.max_raw for one in told), up=True)
        if low is not None and high is not None:
            lowest[name], highest[name] = low, high
    stats = {"numRecords": metadata.num_rows, "minValues": lowest, "maxValues": highest, "nullCount": nulls}
    return json.dumps(stats, separators=(",", ":"))


def _leaves(metadata: pq.FileMetaData) -> list[tuple[int, str]]:
    """Return the columns that are not inside of others."""
    found = ((index, metadata.schema.column(index)) for index in range(metadata.num_columns))
    return [(index, column.name) for index, column in found if column.path == column.name]


def _written(kind: pa.DataType, value: Any, *, up: bool) -> Any:
    """Return a bound as Delta Lake writes it; None if it has none for this type."""
    if isinstance(value, bytes):
        return _text(value) if pa.types.is_string(kind) or pa.types.is_large_string(kind) else None
    if not isinstance(value, int):
        return None
    if pa.types.is_signed_integer(kind):
        return value
    try:
        if pa.types.is_date32(kind):
            return (date(1970, 1, 1) + timedelta(days=value)).isoformat()
        if pa.types.is_timestamp(kind) and kind.unit == "us":
            # They are told in milliseconds, and must hold all the same.
            moment = _EPOCH + timedelta(milliseconds=-(-value // 1_000) if up else value // 1_000)
            return moment.isoformat(timespec="milliseconds") + ("" if kind.tz is None else "Z")
    except OverflowError:
        pass
    return None


def _text(value: bytes) -> str | None:
    try:
        return value.decode() if len(value) <= _SHORT else None
    except UnicodeDecodeError:
        return None
