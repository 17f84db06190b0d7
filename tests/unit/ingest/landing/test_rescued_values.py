"""Values that fit no column are kept as JSON, with nothing of them lost, one object a row."""

import json
import math
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from floodmark.errors import TableUnfit
from floodmark.ingest.landing.fitting import rescued_texts

NOON = datetime(2026, 1, 1, 12, 0, 0, 1, tzinfo=UTC)


def rescued(array: Any) -> list[Any]:
    texts = rescued_texts({"c": array}, len(array)).to_pylist()
    return [None if text is None else json.loads(text)["c"] for text in texts]


WRITTEN: list[tuple[Any, list[Any]]] = [
    (pa.array([1, None, -(2**63)]), [1, None, -(2**63)]),
    (pa.array([2**64 - 1], pa.uint64()), [str(2**64 - 1)]),
    (pa.array([True, False, None]), [True, False, None]),
    (pa.array([0.1, -1e300, None]), [0.1, -1e300, None]),
    (pa.array([math.inf, -math.inf, math.nan, 0.5]), ["Infinity", "-Infinity", "NaN", 0.5]),
    (pa.array([1.5], pa.float16()), [1.5]),
    (pa.array(['say "no" \\ é', "", None]), ['say "no" \\ é', "", None]),
    (pa.array(['tab\t"\\', "\x00\x1f", "\u2028"]), ['tab\t"\\', "\x00\x1f", "\u2028"]),
    (pa.array(["a", "b"]).dictionary_encode(), ["a", "b"]),
    (pa.array([Decimal("1.50")], pa.decimal128(5, 2)), ["1.50"]),
    (pa.array([Decimal("1E-9")], pa.decimal128(20, 10)), ["0.0000000010"]),
    (pa.array([b"\xff\x00", None]), ["/wA=", None]),
    (pa.array([date(2026, 1, 1)]), ["2026-01-01"]),
    (pa.array([time(1, 2, 3)], pa.time32("s")), ["01:02:03"]),
    (pa.array([NOON], pa.timestamp("us", "Europe/Berlin")), ["2026-01-01T12:00:00.000001Z"]),
    (pa.array([NOON], pa.timestamp("us")), ["2026-01-01T12:00:00.000001"]),
    (pa.array([300_000_000_000 * 10**6], pa.timestamp("us", "UTC")), ["11476-08-15T05:20:00.000000Z"]),
    (pa.array([[1, None], [], None]), [[1, None], [], None]),
    (pa.array([[NOON], None], pa.list_(pa.timestamp("us", "UTC"))), [["2026-01-01T12:00:00.000001Z"], None]),
    (pa.array([{"a": b"x", "b": None}, None]), [{"a": "eA==", "b": None}, None]),
    (pa.array([{}], pa.struct([])), [{}]),
    (
        pa.array(
            [[("k", NOON)], [("k", None), ("k", NOON)], [], None], pa.map_(pa.string(), pa.timestamp("us", "UTC"))
        ),
        [[["k", "2026-01-01T12:00:00.000001Z"]], [["k", None], ["k", "2026-01-01T12:00:00.000001Z"]], [], None],
    ),
    (
        pa.array([[("k", [{"x": 1}])]], pa.map_(pa.string(), pa.list_(pa.struct([("x", pa.int8())])))),
        [[["k", [{"x": 1}]]]],
    ),
]


@pytest.mark.parametrize(("array", "values"), WRITTEN, ids=[str(one[0].type) for one in WRITTEN])
def test_a_value_is_written_as_json_that_has_all_of_it(array: Any, values: list[Any]) -> None:
    assert rescued(array) == values
    behind = pa.concat_arrays([array, array]).slice(len(array))
    assert rescued(behind) == values


def test_a_row_has_those_of_its_values_that_are_there_and_else_nothing() -> None:
    columns = {"a": pa.array([1, None, None]), 'b "c"': pa.array(["x", "y", None]), "d": pa.array([None, [], None])}
    assert rescued_texts(columns, 3).to_pylist() == [
        '{"a":1,"b \\"c\\"":"x"}',
        '{"b \\"c\\"":"y","d":[]}',
        None,
    ]


def test_nothing_to_rescue_is_null() -> None:
    assert rescued_texts({}, 2).to_pylist() == [None, None]


@pytest.mark.parametrize(
    "array",
    [
        pa.array([-100_000_000], pa.date32()),
        pa.array([2**62], pa.timestamp("us", "UTC")),
        pa.array([-(2**63)], pa.timestamp("us")),
        pa.array([[None, 2**62]], pa.list_(pa.timestamp("us"))),
    ],
)
def test_a_time_that_has_no_text_is_refused_and_not_lost(array: Any) -> None:
    with pytest.raises(TableUnfit, match="30 000 years") as refused:
        rescued(array)
    assert refused.value.fields["column"] == "c"
