"""Columns of every type that values of records can have, with odd contents, and a way to compare them exactly."""

from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

INT64 = (-(2**63), 2**63 - 1)
TEXTS = [
    "",
    '"',
    "\\",
    "\n",
    "\r\n",
    "\x00",
    "\x1f",
    "\x7f",
    "\u2028",
    "\U0001f600",
    "é",
    "null",
    "}",
    "} null",
    "{[",
    "NaN",
]
INSTANTS = [0, -1, *INT64, 253_402_300_799_999_999, 253_402_300_800_000_000, -62_167_219_200_000_001]

texts = st.sampled_from(TEXTS) | st.text(max_size=12) | st.lists(st.sampled_from(TEXTS), max_size=4).map("".join)


def _decimals(digits: int, scale: int) -> st.SearchStrategy[Decimal]:
    return st.integers(1 - 10**digits, 10**digits - 1).map(lambda number: Decimal(f"{number}E{-scale}"))


SIMPLE: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (pa.bool_(), st.booleans()),
    *[
        (kind, st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1))
        for kind, bits in [(pa.int8(), 8), (pa.int16(), 16), (pa.int32(), 32), (pa.int64(), 64)]
    ],
    (pa.float32(), st.floats(width=32)),
    (pa.float64(), st.floats() | st.sampled_from([-0.0, 5e-324, 1.7976931348623157e308, 1e16, 0.1])),
    (pa.string(), texts),
    (pa.large_string(), texts),
    (pa.binary(), st.binary(max_size=9)),
    (pa.large_binary(), st.binary(max_size=9)),
    (pa.date32(), st.integers(-(2**31), 2**31 - 1) | st.integers(-800_000, 3_000_000)),
    *[
        (pa.timestamp(unit, zone), st.integers(*INT64) | st.integers(-(10**17), 3 * 10**17) | st.sampled_from(INSTANTS))
        for unit in ("s", "ms", "us")
        for zone in (None, "UTC", "Europe/Berlin")
    ],
    *[
        (pa.decimal128(digits, scale), _decimals(digits, scale))
        for digits, scale in [(38, 0), (38, 38), (38, 10), (10, 2), (1, 0), (18, 18)]
    ],
]


def _nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    lists = inner.map(lambda pair: (pa.list_(pair[0]), st.lists(st.none() | pair[1], max_size=3)))
    large = inner.map(
        lambda pair: (pa.large_list(pa.field("element", pair[0])), st.lists(st.none() | pair[1], max_size=3))
    )
    maps = st.tuples(st.sampled_from(SIMPLE), inner).map(
        lambda two: (
            pa.map_(two[0][0], two[1][0]),
            st.lists(st.tuples(two[0][1], st.none() | two[1][1]), max_size=3),
        )
    )
    structs = st.lists(inner, max_size=3).map(
        lambda pairs: (
            pa.struct([(f"f{place}", kind) for place, (kind, _) in enumerate(pairs)]),
            st.fixed_dictionaries({f"f{place}": st.none() | values for place, (_, values) in enumerate(pairs)}),
        )
    )
    return lists | large | maps | structs


kinds: st.SearchStrategy[Any] = st.recursive(st.sampled_from(SIMPLE), _nested, max_leaves=4)
names = st.sampled_from(["id", "Größe", 'a"b', "a.b", "", "\n", "}"])


@st.composite
def batches(draw: st.DrawFn) -> Any:
    """Return a record batch, possibly the slice of a longer one."""
    rows = draw(st.integers(0, 5))
    columns = {}
    for name in draw(st.lists(names, unique=True, max_size=3)):
        kind, values = draw(kinds)
        columns[name] = pa.array(draw(st.lists(st.none() | values, min_size=rows, max_size=rows)), kind)
    schema = pa.schema([(name, column.type) for name, column in columns.items()])
    batch = pa.record_batch(list(columns.values()), schema=schema) if columns else pa.record_batch([], schema=schema)
    return batch.slice(draw(st.integers(0, 2)))


def exactly(batch: Any) -> str:
    """Return a text that is the same for the same contents only: NaN equals NaN, 0.0 is not -0.0."""
    return repr(
        [
            (name, column.cast(_numbers(column.type)).to_pylist())
            for name, column in zip(batch.schema.names, batch.columns, strict=True)
        ]
    )


def _numbers(kind: Any) -> Any:
    """Return a type that Python can hold all values of."""
    if pa.types.is_timestamp(kind):
        return pa.int64()
    if pa.types.is_date32(kind):
        return pa.int32()
    if pa.types.is_map(kind):
        return pa.map_(_numbers(kind.key_type), _numbers(kind.item_type))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(pa.field(kind.value_field.name, _numbers(kind.value_type)))
    if pa.types.is_struct(kind):
        return pa.struct(
            [(kind.field(place).name, _numbers(kind.field(place).type)) for place in range(kind.num_fields)]
        )
    return kind
