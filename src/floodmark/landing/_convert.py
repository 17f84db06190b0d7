"""Columns of Arrow, turned into those that a table has. What fits is settled before, by the types."""

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from floodmark.errors import TableUnfit
from floodmark.landing._arrow_types import is_list, is_uuid

_HEX: Final = np.array([f"{byte:02x}".encode() for byte in range(256)], dtype="S2").view(np.uint8).reshape(256, 2)
_DIGITS_OF_UUID: Final = np.array([place for place in range(36) if place not in (8, 13, 18, 23)])


def convert(array: Any, field: Any, column: str = "", outer_nulls: int = 0) -> Any:
    """Return a column with the type of a table's field.

    A value that cannot be there, a null where none may be or a moment beyond 64 bits, is an error. So many nulls as
    `outer_nulls` are of what the field is inside of.

    >>> convert(pa.array([1, None], pa.uint8()), pa.field("n", pa.int64())).to_pylist()
    [1, None]
    """
    column = column or field.name
    if not field.nullable and array.null_count > outer_nulls:
        raise TableUnfit(
            f"The column {column} is null in {array.null_count - outer_nulls} of {len(array)} places.",
            rule="The table says that it is never null.",
            remedy="Leave such rows out where they come from, or let the table's column be null.",
            column=column,
        )
    if array.type == field.type:
        return array
    try:
        return _converted(array, field, column, outer_nulls)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        # What Arrow says has the value in it, which is not for a log.
        raise TableUnfit(
            f"The column {column} has a value that is {array.type} in the rows and cannot be {field.type} in a table.",
            rule="Numbers and moments have the range of the table's type: 64 bits of microseconds, for moments.",
            remedy="Correct such values where they come from, or leave such rows out.",
            column=column,
            type=str(array.type),
        ) from (None if isinstance(error, pa.ArrowInvalid) else error)


def _converted(array: Any, field: Any, column: str, outer_nulls: int) -> Any:
    kind, to = array.type, field.type
    if isinstance(kind, pa.BaseExtensionType):
        return _text_of_uuids(array) if is_uuid(kind) else convert(array.storage, field, column, outer_nulls)
    # Their own nulls are not all: values can be null too, which is seen once they are there.
    if types.is_dictionary(kind):
        return convert(array.dictionary_decode(), field, column, outer_nulls)
    if types.is_run_end_encoded(kind):
        return convert(pc.run_end_decode(array), field, column, outer_nulls)
    if types.is_null(kind):
        return pa.nulls(len(array), to)
    if types.is_struct(to):
        return _struct(array, to, column)
    if types.is_map(to):
        return _map(array, to, column)
    if is_list(to):
        lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)
        offsets = pa.array(np.concatenate(([0], np.cumsum(lengths, dtype=np.int64))), pa.int64()).cast(pa.int32())
        values = convert(array.flatten(), to.value_field, f"{column}[]")
        return pa.ListArray.from_arrays(offsets, values, type=to, mask=array.is_null())
    return _leaf(array, to)


def _leaf(array: Any, to: Any) -> Any:
    kind = array.type
    if types.is_timestamp(kind) and kind.unit == "ns":
        # Downward also before 1970; a cast would go towards it.
        plain = array.cast(pa.timestamp("ns", kind.tz and "UTC")).view(pa.timestamp("ns"))
        return pc.floor_temporal(plain, unit="microsecond").cast(pa.timestamp("us")).view(to)
    if types.is_timestamp(kind):
        return array.cast(pa.timestamp(kind.unit, kind.tz and "UTC")).cast(to)
    if types.is_duration(kind):
        if kind.unit == "ns":
            micros = pc.floor_temporal(array.view(pa.timestamp("ns")), unit="microsecond")
            return micros.cast(pa.timestamp("us")).view(pa.int64()).cast(to)
        return array.cast(pa.duration("us")).cast(pa.int64()).cast(to)
    if types.is_interval(kind):
        return pa.array([None if one is None else _text_of_interval(*one) for one in array.to_pylist()], to)
    if types.is_decimal(kind) and types.is_string(to):
        return pa.array([None if one is None else format(one, "f") for one in array.to_pylist()], to)
    if types.is_float16(kind):
        array = array.cast(pa.float32())
    if types.is_unsigned_integer(kind) and types.is_floating(to):
        array = array.cast(pa.int32())
    return array.cast(to)


def _struct(array: Any, to: Any, column: str) -> Any:
    come = {field.name: child for field, child in zip(array.type, array.flatten(), strict=True)}
    children = [
        convert(come[field.name], field, f"{column}.{field.name}", array.null_count)
        if field.name in come
        else pa.nulls(len(array), field.type)
        for field in to
    ]
    return pa.StructArray.from_arrays(children, fields=list(to), mask=array.is_null())


def _map(array: Any, to: Any, column: str) -> Any:
    offsets = array.offsets.to_numpy()
    first, count = int(offsets[0]), int(offsets[-1] - offsets[0])
    keys = convert(array.keys.slice(first, count), to.key_field, f"{column}.key")
    items = convert(array.items.slice(first, count), to.item_field, f"{column}.value")
    starts = pa.array(offsets - first, pa.int32())
    return pa.MapArray.from_arrays(starts, keys, items, type=to, mask=array.is_null())


def _text_of_uuids(array: Any) -> Any:
    plain = array.storage
    rows = len(plain)
    there = pc.fill_null(plain, bytes(16)).cast(pa.binary(16))
    bytes_of = np.frombuffer(there.buffers()[1], np.uint8)[there.offset * 16 : (there.offset + rows) * 16]
    text = np.full((rows, 36), ord("-"), np.uint8)
    text[:, _DIGITS_OF_UUID] = _HEX[bytes_of].reshape(rows, 32)
    offsets = pa.py_buffer(np.arange(0, 36 * rows + 1, 36, dtype=np.int32))
    made = pa.StringArray.from_buffers(rows, offsets, pa.py_buffer(text.tobytes()))
    return made if not plain.null_count else pc.if_else(plain.is_valid(), made, pa.scalar(None, pa.string()))


def _text_of_interval(months: int, days: int, nanoseconds: int) -> str:
    """Return an interval as ISO 8601 writes it; months, days and seconds do not make each other up.

    >>> _text_of_interval(14, -3, 1_500_000_000)
    'P14M-3DT1.500000000S'
    """
    seconds, rest = divmod(abs(nanoseconds), 1_000_000_000)
    return f"P{months}M{days}DT{'-' if nanoseconds < 0 else ''}{seconds}.{rest:09}S"
