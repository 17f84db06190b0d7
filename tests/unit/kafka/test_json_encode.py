"""Rows as JSON."""

import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings

from floodmark.errors import SchemaInvalid
from floodmark.kafka.codecs import json_encoder as _json_encode
from floodmark.kafka.codecs.json_decoder import JsonDecoder
from floodmark.kafka.codecs.json_encoder import encode_json
from support.examples import examples
from support.kafka.value_columns import batches, exactly

UTC = pa.timestamp("us", "UTC")
WRITTEN: list[tuple[Any, Any, str]] = [
    (pa.bool_(), True, "true"),
    (pa.int64(), -(2**63), "-9223372036854775808"),
    (pa.float64(), 12.5, "12.5"),
    (pa.float64(), -0.0, "-0.0"),
    (pa.float64(), 1e300, "1e+300"),
    (pa.float32(), 0.1, "0.1"),
    (pa.float64(), float("nan"), '"NaN"'),
    (pa.float64(), float("inf"), '"Infinity"'),
    (pa.float32(), float("-inf"), '"-Infinity"'),
    (pa.string(), 'a"b\\c\nd\x01é\u2028', '"a\\"b\\\\c\\nd\\u0001é\u2028"'),
    (pa.binary(), b"\x00\xff", '"AP8="'),
    (pa.date32(), 20454, '"2026-01-01"'),
    (pa.date32(), 2932897, '"+10000-01-01"'),
    (pa.date32(), -719529, '"-0001-12-31"'),
    (UTC, 1767225600123456, '"2026-01-01T00:00:00.123456Z"'),
    (UTC, 2**63 - 1, '"+294247-01-10T04:00:54.775807Z"'),
    (UTC, -(2**63), '"-290308-12-21T19:59:05.224192Z"'),
    (pa.timestamp("us"), 1767225600000000, '"2026-01-01T00:00:00.000000"'),
    (pa.timestamp("ms", "Europe/Berlin"), 1767225600001, '"2026-01-01T00:00:00.001Z"'),
    (pa.timestamp("s"), -1, '"1969-12-31T23:59:59"'),
    (pa.decimal128(38, 2), Decimal("1234567890123456789012345678901234.56"), '"1234567890123456789012345678901234.56"'),
    (pa.list_(pa.string()), ["a", None], '["a",null]'),
    (pa.list_(pa.list_(pa.int8())), [[1, 2], [], None], "[[1,2],[],null]"),
    (pa.map_(pa.string(), pa.int32()), [("k", 1), ("", None)], '{"k":1,"":null}'),
    (pa.map_(pa.int32(), pa.string()), [(1, "a"), (2, None)], '[[1,"a"],[2,null]]'),
    (pa.struct([("x", pa.int32()), ("y", UTC)]), {"x": None, "y": 0}, '{"x":null,"y":"1970-01-01T00:00:00.000000Z"}'),
    (pa.struct([]), {}, "{}"),
    (pa.int8(), None, "null"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "value", "text"), WRITTEN)
def test_a_value_is_written_as_from_json_reads_it(kind: Any, value: Any, text: str) -> None:
    batch = pa.record_batch([pa.array([value, None], kind)], names=["a"])
    assert [line.decode() for line in encode_json(batch)] == [f'{{"a":{text}}}', '{"a":null}']


@settings(max_examples=examples(300), deadline=None)
@given(batch=batches())
def test_what_is_written_is_read_again_exactly(batch: Any) -> None:
    lines = encode_json(batch)
    assert len(lines) == batch.num_rows
    assert all(b"\n" not in line and isinstance(json.loads(line), dict) for line in lines)
    decoded = JsonDecoder(batch.schema).decode(lines)
    assert decoded.bad == ()
    assert decoded.batch.schema.types == batch.schema.types
    assert exactly(decoded.batch) == exactly(batch)


def test_a_large_batch_is_written_in_parts_and_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = pa.record_batch({"id": list(range(100))})
    whole = encode_json(batch)
    monkeypatch.setattr(_json_encode, "_MAX_BYTES", 64)
    assert encode_json(batch) == whole == [b'{"id":%d}' % number for number in range(100)]


def test_what_a_null_hides_is_not_written() -> None:
    hidden = pa.StringArray.from_buffers(
        2, pa.py_buffer(b"\0\0\0\0\1\0\0\0\2\0\0\0"), pa.py_buffer(b'"x'), pa.py_buffer(b"\2")
    )
    assert encode_json(pa.record_batch([hidden], names=["a"])) == [b'{"a":null}', b'{"a":"x"}']


def test_a_part_of_a_batch_is_written_like_the_whole() -> None:
    columns = {"a": ["x", "y", 'z"'], "b": [["p"], [], ['"', "q"]], "c": [{"d": "u"}, None, {"d": "\\"}]}
    maps = pa.array([[("k", 1)], None, [('"', 2), ("l", 3)]], pa.map_(pa.string(), pa.int8()))
    batch = pa.record_batch({**columns, "m": maps})
    whole = encode_json(batch)
    for start in range(3):
        assert encode_json(batch.slice(start)) == whole[start:]


def test_a_row_without_columns_is_an_empty_object() -> None:
    rows = pa.record_batch({"id": [1, 2]}).select([])
    assert encode_json(rows) == [b"{}", b"{}"]


@pytest.mark.parametrize("kind", [pa.uint8(), pa.timestamp("ns"), pa.time64("us"), pa.list_(pa.uint8()), pa.float16()])
def test_a_type_that_spark_does_not_have_is_refused(kind: Any) -> None:
    with pytest.raises(SchemaInvalid, match="has the Arrow type") as caught:
        encode_json(pa.record_batch([pa.nulls(1, kind)], names=["a"]))
    assert "schema" in caught.value.fields
