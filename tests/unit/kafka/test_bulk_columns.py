"""The columns that the bulk producer hands to the C library: it reads exactly their values, or refuses them."""

import ctypes
import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from floodmark.errors import SchemaMismatch
from floodmark.kafka.bulk_producer import plain_column, value_addresses
from support.examples import examples

KINDS = {
    "binary": pa.binary(),
    "string": pa.string(),
    "large_binary": pa.large_binary(),
    "large_string": pa.large_string(),
    "binary_view": pa.binary_view(),
    "string_view": pa.string_view(),
    "fixed": pa.binary(4),
    "dictionary": pa.dictionary(pa.int8(), pa.string()),
    "dictionary of views": pa.dictionary(pa.int32(), pa.binary()),
    "null": pa.null(),
}


def read_as_c(column: Any) -> list[bytes | None]:
    """Return the values as the C library sees them: a copy of the memory at each address."""
    plain = plain_column(column, len(column))
    addresses, lengths = value_addresses(plain)
    pairs = zip(addresses.tolist(), lengths.tolist(), strict=True)
    return [ctypes.string_at(address, length) if address else None for address, length in pairs]


def values_of(column: Any) -> list[bytes | None]:
    return [value.encode() if isinstance(value, str) else value for value in column.to_pylist()]


def random_values(kind: pa.DataType, chance: random.Random, count: int) -> list[Any]:
    if kind == pa.null():
        return [None] * count
    fixed = pa.types.is_fixed_size_binary(kind)
    # A view of up to 12 bytes holds its value itself; a longer one points to it.
    sizes = (4,) if fixed else (0, 1, 12, 13, 40, 300)
    texts = ["".join(chance.choices("abcdefgh", k=chance.choice(sizes))) for _ in range(count)]
    is_text = kind in (pa.string(), pa.large_string(), pa.string_view()) or kind == KINDS["dictionary"]
    return [None if chance.random() < 0.2 else text if is_text else text.encode() for text in texts]


@pytest.mark.parametrize("name", KINDS)
def test_every_layout_is_read_as_its_values(name: str) -> None:
    chance = random.Random(name)
    for _ in range(examples(100)):
        values = random_values(KINDS[name], chance, chance.randrange(0, 40))
        column = pa.array(values, KINDS[name])
        start = chance.randrange(len(column) + 1)
        part = column.slice(start, chance.randrange(len(column) - start + 1))
        chunks = pa.chunked_array([part, column, part.slice(len(part))])
        for given in (column, part, chunks):
            assert read_as_c(given) == values_of(given)


@pytest.mark.parametrize(
    "kind", [pa.int64(), pa.float64(), pa.bool_(), pa.list_(pa.string()), pa.struct([("a", pa.string())]),
             pa.map_(pa.string(), pa.string()), pa.timestamp("us"), pa.decimal128(5, 2), pa.list_view(pa.binary()),
             pa.dictionary(pa.int8(), pa.int64()), pa.run_end_encoded(pa.int32(), pa.string())],
    ids=str,
)  # fmt: skip
def test_what_holds_no_bytes_is_refused(kind: pa.DataType) -> None:
    with pytest.raises(SchemaMismatch, match="Cast the column to binary"):
        plain_column(pa.nulls(3, kind), 3)


@pytest.mark.parametrize("count", [0, 1, 2, 4])
def test_columns_of_unequal_length_are_refused(count: int) -> None:
    with pytest.raises(SchemaMismatch, match="has the type binary and 3 values"):
        plain_column(pa.array([b"a", b"b", b"c"]), count)


@pytest.mark.parametrize("offsets", [[0, 1, 2, 9], [0, 1, 2, 2**31 - 1], [-5, 1, 2, 3], [0, 2, 1, 3], [3, 2, 1, 0]])
@pytest.mark.parametrize("kind", [pa.binary(), pa.large_string()], ids=str)
def test_offsets_outside_of_the_data_are_refused(offsets: list[int], kind: pa.DataType) -> None:
    memory = np.array([0, 1, 2, 3], np.int32 if kind == pa.binary() else np.int64)
    column = pa.Array.from_buffers(kind, 3, [None, pa.py_buffer(memory), pa.py_buffer(b"abc")])
    assert read_as_c(column) == [b"a", b"b", b"c"]
    # Arrow checks offsets when it builds a column, not when memory changes, or comes from elsewhere.
    memory[:] = offsets
    with pytest.raises(SchemaMismatch, match="outside of its data"):
        value_addresses(column)
