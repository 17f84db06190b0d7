"""Each type of Arrow becomes the type of tables that holds it all, values and all."""

from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

from floodmark.errors import TableUnfit
from floodmark.ingest.landing.column_types import table_type, without_nulls
from floodmark.ingest.landing.fitting import convert_column

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
HIGH = Decimal("1" * 45)


def of_days(*days: int) -> Any:
    return pa.array([None if day is None else day * 86_400_000 for day in days], pa.date64())


# What comes, the type that it becomes, and the values.
BECOMES: list[tuple[Any, Any, list[Any]]] = [
    (pa.array([True, None]), pa.bool_(), [True, None]),
    (pa.array([1], pa.int8()), pa.int8(), [1]),
    (pa.array([1], pa.int64()), pa.int64(), [1]),
    (pa.array([255, None], pa.uint8()), pa.int16(), [255, None]),
    (pa.array([2**16 - 1], pa.uint16()), pa.int32(), [2**16 - 1]),
    (pa.array([2**32 - 1], pa.uint32()), pa.int64(), [2**32 - 1]),
    (pa.array([2**64 - 1], pa.uint64()), pa.decimal128(20, 0), [Decimal(2**64 - 1)]),
    (pa.array([1.5, None], pa.float16()), pa.float32(), [1.5, None]),
    (pa.array([0.1]), pa.float64(), [0.1]),
    (pa.array(["é", None], pa.large_string()), pa.string(), ["é", None]),
    (pa.array(["é"], pa.string_view()), pa.string(), ["é"]),
    (pa.array([b"\xff"], pa.large_binary()), pa.binary(), [b"\xff"]),
    (pa.array([b"\xff"], pa.binary_view()), pa.binary(), [b"\xff"]),
    (pa.array([b"ab", None], pa.binary(2)), pa.binary(), [b"ab", None]),
    (pa.array(["a", None, "a"]).dictionary_encode(), pa.string(), ["a", None, "a"]),
    (pa.array([1, 1, 2]).dictionary_encode(), pa.int64(), [1, 1, 2]),
    (pa.RunEndEncodedArray.from_arrays([2, 3], ["a", "b"]), pa.string(), ["a", "a", "b"]),
    (of_days(1), pa.date32(), [date(1970, 1, 2)]),
    (pa.array([date(2026, 1, 1)]), pa.date32(), [date(2026, 1, 1)]),
    (pa.array([time(1, 2, 3)], pa.time32("s")), pa.string(), ["01:02:03"]),
    (pa.array([time(1, 2, 3, 4)], pa.time64("us")), pa.string(), ["01:02:03.000004"]),
    (pa.array([1, None], pa.time64("ns")), pa.string(), ["00:00:00.000000001", None]),
    (pa.array([2], pa.duration("s")), pa.int64(), [2_000_000]),
    (pa.array([timedelta(microseconds=-7)], pa.duration("us")), pa.int64(), [-7]),
    (pa.array([1_999, -1, None], pa.duration("ns")), pa.int64(), [1, -1, None]),
    (pa.array([NOON], pa.timestamp("s", "Europe/Berlin")), pa.timestamp("us", "UTC"), [NOON]),
    (pa.array([NOON], pa.timestamp("ms", "UTC")), pa.timestamp("us", "UTC"), [NOON]),
    (pa.array([NOON], pa.timestamp("us", "+05:30")), pa.timestamp("us", "UTC"), [NOON]),
    (pa.array([NOON], pa.timestamp("ns", "Asia/Tokyo")), pa.timestamp("us", "UTC"), [NOON]),
    (
        pa.array([1_999, -1, None], pa.timestamp("ns", "UTC")).cast(pa.timestamp("ns", "UTC")),
        pa.timestamp("us", "UTC"),
        [
            datetime(1970, 1, 1, 0, 0, 0, 1, tzinfo=UTC),
            datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
            None,
        ],
    ),
    (pa.array([-1_001], pa.timestamp("ns")), pa.timestamp("us"), [datetime(1969, 12, 31, 23, 59, 59, 999_998)]),  # noqa: DTZ001
    (pa.array([3], pa.timestamp("s")), pa.timestamp("us"), [datetime(1970, 1, 1, 0, 0, 3)]),  # noqa: DTZ001
    (pa.array([Decimal("1.5")], pa.decimal32(4, 1)), pa.decimal128(4, 1), [Decimal("1.5")]),
    (pa.array([Decimal("1.5")], pa.decimal256(38, 1)), pa.decimal128(38, 1), [Decimal("1.5")]),
    (pa.array([HIGH, None], pa.decimal256(50, 2)), pa.string(), ["1" * 45 + ".00", None]),
    (pa.array([Decimal("1E-9")], pa.decimal256(50, 9)), pa.string(), ["0.000000001"]),
    (pa.array([Decimal(700)], pa.decimal128(5, -2)), pa.decimal128(7, 0), [Decimal(700)]),
    (
        pa.array([(14, -3, -1_500_000_000), None], pa.month_day_nano_interval()),
        pa.string(),
        ["P14M-3DT-1.500000000S", None],
    ),
    (pa.array([UUID(int=2**127 + 11).bytes, None], pa.uuid()), pa.string(), [str(UUID(int=2**127 + 11)), None]),
    (pa.array(["[1]"], pa.json_()), pa.string(), ["[1]"]),
    (
        pa.array([[1, None], None, []], pa.large_list(pa.uint8())),
        pa.list_(pa.field("element", pa.int16())),
        [
            [1, None],
            None,
            [],
        ],
    ),
    (pa.array([[1, 2], None], pa.list_(pa.uint8(), 2)), pa.list_(pa.field("element", pa.int16())), [[1, 2], None]),
    (pa.array([[1, 2], None], pa.list_view(pa.int8())), pa.list_(pa.field("element", pa.int8())), [[1, 2], None]),
    (
        pa.array([{"a": 1, "b": None}, None], pa.struct([("a", pa.uint8()), ("b", pa.time32("s"))])),
        pa.struct([("a", pa.int16()), ("b", pa.string())]),
        [{"a": 1, "b": None}, None],
    ),
    (
        pa.array([[("k", 1)], None, []], pa.map_(pa.large_string(), pa.uint8())),
        pa.map_(pa.string(), pa.int16()),
        [
            [("k", 1)],
            None,
            [],
        ],
    ),
    (
        pa.array([[{"a": [1]}]], pa.list_(pa.struct([("a", pa.list_(pa.uint8()))]))),
        pa.list_(pa.field("element", pa.struct([("a", pa.list_(pa.field("element", pa.int16())))]))),
        [[{"a": [1]}]],
    ),
]


@pytest.mark.parametrize(("array", "kind", "values"), BECOMES, ids=[str(one[0].type) for one in BECOMES])
def test_a_column_becomes_one_of_a_type_that_tables_have(array: Any, kind: Any, values: list[Any]) -> None:
    assert table_type(array.type, "c") == kind
    made = convert_column(array, pa.field("c", kind))
    made.validate(full=True)
    assert (made.type, made.to_pylist()) == (kind, values)


@pytest.mark.parametrize(("array", "kind", "values"), BECOMES, ids=[str(one[0].type) for one in BECOMES])
def test_a_slice_of_a_column_becomes_that_slice(array: Any, kind: Any, values: list[Any]) -> None:
    # Behind other rows, as in the middle of a larger batch.
    longer = pa.concat_arrays([array, array, array]).slice(len(array), len(array))
    made = convert_column(longer, pa.field("c", kind))
    made.validate(full=True)
    assert made.to_pylist() == values


def test_elements_of_lists_have_the_name_that_tables_have_for_them() -> None:
    assert table_type(pa.list_(pa.int8()), "c").value_field.name == "element"


@pytest.mark.parametrize(
    "kind",
    [
        pa.dense_union([pa.field("a", pa.int8())]),
        pa.list_(pa.sparse_union([pa.field("a", pa.int8())])),
        pa.struct([("a", pa.int8()), ("a", pa.int8())]),
    ],
)
def test_what_no_table_has_is_refused_with_its_column(kind: Any) -> None:
    with pytest.raises(TableUnfit, match="The column c") as refused:
        table_type(kind, "c")
    assert str(refused.value.fields["column"]).startswith("c")


@pytest.mark.parametrize(
    ("kind", "left"),
    [
        (pa.null(), None),
        (pa.list_(pa.null()), None),
        (pa.map_(pa.string(), pa.null()), None),
        (pa.struct([]), None),
        (pa.struct([("a", pa.null())]), None),
        (pa.struct([("a", pa.null()), ("b", pa.int8())]), pa.struct([("b", pa.int8())])),
        (pa.int8(), pa.int8()),
    ],
)
def test_what_is_null_for_all_that_is_known_is_left_out(kind: Any, left: Any) -> None:
    assert without_nulls(table_type(kind, "c")) == left


@pytest.mark.parametrize(
    ("array", "to"),
    [
        (pa.array([2**62], pa.timestamp("s")), pa.timestamp("us")),
        (pa.array([-(2**62)], pa.timestamp("ms", "UTC")), pa.timestamp("us", "UTC")),
        (pa.array([2**62], pa.duration("s")), pa.int64()),
        (pa.array([[2**62]], pa.list_(pa.timestamp("s"))), pa.list_(pa.timestamp("us"))),
    ],
)
def test_a_value_beyond_the_type_is_refused_and_not_told(array: Any, to: Any) -> None:
    with pytest.raises(TableUnfit, match="The column at") as refused:
        convert_column(array, pa.field("at", to))
    assert str(refused.value.fields["column"]).startswith("at")
    assert str(2**62) not in str(refused.value)


NEVER = pa.field("a", pa.int64(), nullable=False)


@pytest.mark.parametrize(
    ("array", "field", "column"),
    [
        (pa.array([1, None]), pa.field("c", pa.int64(), nullable=False), "c"),
        (pa.DictionaryArray.from_arrays([0, 1], [1, None]), pa.field("c", pa.int64(), nullable=False), "c"),
        (pa.RunEndEncodedArray.from_arrays([1, 2], [1, None]), pa.field("c", pa.int64(), nullable=False), "c"),
        (pa.array([{"a": None}, None], pa.struct([("a", pa.int8())])), pa.field("c", pa.struct([NEVER])), "c.a"),
        (pa.array([[None]], pa.list_(pa.int8())), pa.field("c", pa.list_(NEVER.with_name("element"))), "c[]"),
    ],
)
def test_a_null_where_none_may_be_is_refused(array: Any, field: Any, column: str) -> None:
    with pytest.raises(TableUnfit) as refused:
        convert_column(array, field)
    assert refused.value.fields["column"] == column


def test_a_struct_may_be_null_whose_fields_may_not() -> None:
    array = pa.array([{"a": 1}, None], pa.struct([("a", pa.int8())]))
    assert convert_column(array, pa.field("c", pa.struct([NEVER]))).to_pylist() == [{"a": 1}, None]


def test_a_decimal_with_more_places_than_digits_has_as_many_digits_as_places() -> None:
    assert table_type(pa.decimal128(1, 3), "c") == pa.decimal128(3, 3)
