"""Avro values as columns; what fastavro writes is read as it was meant."""

import io
import json
import pickle
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from fastavro import schemaless_writer
from hypothesis import given, settings
from hypothesis import strategies as st

from floodmark.errors import SchemaInvalid, SchemaMismatch
from floodmark.kafka.codecs.avro import AvroDecoder, parse_avro, schema_of_avro
from support.examples import examples
from support.kafka.value_columns import exactly

UTC = pa.timestamp("us", "UTC")
NTZ = pa.timestamp("us")
SUIT = {"type": "enum", "name": "Suit", "symbols": ["spades", "hearts"]}
FOUR = {"type": "fixed", "name": "Four", "size": 4}
POINT = {"type": "record", "name": "Point", "fields": [{"name": "x", "type": "int"}, {"name": "y", "type": "long"}]}


def logical(kind: Any, name: str, **more: int) -> dict[str, Any]:
    return (kind if isinstance(kind, dict) else {"type": kind}) | {"logicalType": name} | more


def record(**types: Any) -> dict[str, Any]:
    return {"type": "record", "name": "Row", "fields": [{"name": name, "type": kind} for name, kind in types.items()]}


def written(avro: Any, *rows: Any) -> list[bytes]:
    found = []
    for row in rows:
        out = io.BytesIO()
        schemaless_writer(out, avro, row)
        found.append(out.getvalue())
    return found


READ: list[tuple[Any, Any, Any, Any]] = [
    ("boolean", True, pa.bool_(), True),
    ("int", -(2**31), pa.int32(), -(2**31)),
    ("int", 7, pa.int64(), 7),
    ("long", 2**63 - 1, pa.int64(), 2**63 - 1),
    ("long", -(2**63), pa.int64(), -(2**63)),
    ("float", 0.5, pa.float32(), 0.5),
    ("float", 0.5, pa.float64(), 0.5),
    ("double", -0.0, pa.float64(), -0.0),
    ("string", "é\0", pa.string(), "é\0"),
    ("bytes", b"\xff", pa.binary(), b"\xff"),
    (FOUR, b"abcd", pa.binary(), b"abcd"),
    (SUIT, "hearts", pa.string(), "hearts"),
    (logical("long", "timestamp-millis"), -1, pa.timestamp("ms", "UTC"), -1),
    (logical("long", "timestamp-millis"), -1, UTC, -1000),
    (logical("long", "timestamp-micros"), 2**63 - 1, UTC, 2**63 - 1),
    (logical("long", "timestamp-micros"), -1, pa.timestamp("ms", "UTC"), -1),
    (logical("long", "timestamp-nanos"), 1999, UTC, 1),
    (logical("long", "timestamp-micros"), 5, pa.int64(), 5),
    (logical("long", "local-timestamp-millis"), 1, NTZ, 1000),
    (logical("long", "local-timestamp-micros"), 1, NTZ, 1),
    (logical("int", "date"), -1, pa.date32(), -1),
    (logical("int", "time-millis"), 5, pa.int32(), 5),
    (logical("bytes", "decimal", precision=4, scale=2), Decimal("-12.34"), pa.decimal128(4, 2), Decimal("-12.34")),
    (logical("bytes", "decimal", precision=4, scale=2), Decimal("0"), pa.decimal128(38, 10), Decimal("0.0000000000")),
    (logical(FOUR, "decimal", precision=9), Decimal(999999999), pa.decimal128(9, 0), Decimal(999999999)),
    (logical("string", "uuid"), "not-checked", pa.string(), "not-checked"),
    (["null", "string"], None, pa.string(), None),
    (["string", "null"], "x", pa.string(), "x"),
    (["null", "int", "long"], 2**40, pa.int64(), 2**40),
    (["float", "double"], 0.1, pa.float64(), 0.1),
    (["null", logical("long", "timestamp-micros")], 7, UTC, 7),
    ({"type": "array", "items": ["null", "int"]}, [1, None], pa.list_(pa.int32()), [1, None]),
    ({"type": "map", "values": "long"}, {"a": 1}, pa.map_(pa.string(), pa.int64()), [("a", 1)]),
    (POINT, {"x": 1, "y": 2}, pa.struct([("y", pa.int64()), ("x", pa.int32())]), {"y": 2, "x": 1}),
    (POINT, {"x": 1, "y": 2}, pa.struct([("y", pa.int64())]), {"y": 2}),
    ({"type": "array", "items": POINT}, [{"x": 1, "y": 2}], pa.list_(pa.struct([("x", pa.int32())])), [{"x": 1}]),
]  # fmt: skip


@pytest.mark.parametrize(("avro", "value", "kind", "expected"), READ)
def test_a_value_comes_as_it_was_written(avro: Any, value: Any, kind: Any, expected: Any) -> None:
    row = record(before="string", a=avro, after=["null", "long", "string"])
    bare = json.loads(json.dumps(row).replace('"logicalType": "uuid"', '"x": 0').replace("timestamp-nanos", "x"))
    values = written(bare, {"before": "x", "a": value, "after": "y"})
    decoded = AvroDecoder(pa.schema([("a", kind)]), row).decode([*values, None])
    assert decoded.bad == ()
    assert exactly(decoded.batch) == exactly(pa.record_batch([pa.array([expected, None], kind)], names=["a"]))


UNLIKE: list[tuple[Any, Any]] = [
    ("long", pa.int32()),
    ("int", pa.int16()),
    ("double", pa.float32()),
    ("long", pa.float64()),
    ("long", UTC),
    ("string", pa.binary()),
    ("bytes", pa.string()),
    ("int", pa.date32()),
    ("boolean", pa.int32()),
    ("null", pa.int32()),
    (["int", "string"], pa.string()),
    (["null"], pa.int64()),
    (logical("long", "timestamp-micros"), NTZ),
    (logical("long", "local-timestamp-micros"), UTC),
    (logical("bytes", "decimal", precision=4, scale=2), pa.decimal128(4, 1)),
    (logical("bytes", "decimal", precision=4, scale=2), pa.decimal128(5, 4)),
    ({"type": "array", "items": "long"}, pa.list_(pa.int32())),
    ({"type": "array", "items": "long"}, pa.int64()),
    ({"type": "map", "values": "long"}, pa.map_(pa.int32(), pa.int64())),
    ({"type": "map", "values": "long"}, pa.map_(pa.string(), pa.string())),
    (POINT, pa.struct([("x", pa.string())])),
]


@pytest.mark.parametrize(("avro", "kind"), UNLIKE)
def test_a_column_of_another_type_is_refused_with_both_types(avro: Any, kind: Any) -> None:
    with pytest.raises(SchemaMismatch, match=r"has the Arrow type .* its field has the Avro type") as caught:
        AvroDecoder(pa.schema([("a", kind)]), record(a=avro))
    assert str(caught.value.fields["column"]).startswith("a")
    assert {"arrow_type", "avro_type"} <= set(caught.value.fields)


def test_a_column_that_the_record_does_not_have_is_refused() -> None:
    for column in (("b", pa.int64()), ("a", pa.struct([("z", pa.int64())]))):
        with pytest.raises(SchemaMismatch, match=r"is no field of the Avro schema.*the fields are"):
            AvroDecoder(pa.schema([column]), record(a=POINT))


BROKEN: list[tuple[Any, bytes, str]] = [
    ("long", b"", "ends too early, after 0 bytes"),
    ("long", b"\x80", "ends too early, after 1 bytes"),
    ("long", b"\x02\x00", "ends after 1 bytes, and has 1 more"),
    ("long", b"\xff" * 9 + b"\x02", "more than 64 bits"),
    ("long", b"\xff" * 10 + b"\x01", "more than ten bytes"),
    ("int", b"\x80\x80\x80\x80\x10", "the number 2147483648 for one of 32 bits"),
    ("boolean", b"\x02", "the byte 2 for a boolean"),
    ("float", b"\0\0\0", "ends too early"),
    ("double", b"\0\0\0\0\0\0\0", "ends too early"),
    ("string", b"\x04\xff\xff", "not UTF-8"),
    ("string", b"\x08hi", "ends too early"),
    ("string", b"\x03hi", "the length -2"),
    ("bytes", b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01", "ends too early"),
    (FOUR, b"abc", "ends too early"),
    (SUIT, b"\x04", "symbol 2 of an enum of 2"),
    (SUIT, b"\x01", "symbol -1 of an enum of 2"),
    (["null", "long"], b"\x04", "branch 2 of a union of 2"),
    (["null", "long"], b"\x01\x02", "branch -1 of a union of 2"),
    (["null", "long"], b"\x00", "'a' is null"),
    ({"type": "array", "items": "long"}, b"\x02\x02", "ends too early"),
    ({"type": "array", "items": "long"}, b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01\x02", "ends too early"),
    ({"type": "array", "items": "long"}, b"\x01\x04\x02\x00", "a block of items with the wrong length"),
    ({"type": "array", "items": "long"}, b"\x01\x05\x02\x00", "a block of items with the wrong length"),
    (logical("long", "timestamp-millis"), b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01", "'a' is 9223372036854775807"),
    (logical("bytes", "decimal", precision=2, scale=1), b"\x02\x64", "'a' has more than 2 digits"),
]  # fmt: skip


@pytest.mark.parametrize(("avro", "value", "reason"), BROKEN)
def test_what_no_writer_writes_is_bad_and_its_row_is_null(avro: Any, value: bytes, reason: str) -> None:
    kind = UTC if "timestamp" in str(avro) else schema_of_avro(record(a=avro)).field("a").type
    schema = pa.schema([pa.field("a", kind, nullable=False)])
    decoded = AvroDecoder(schema, record(a=avro)).decode([value, None])
    assert [bad.index for bad in decoded.bad] == [0]
    assert reason in decoded.bad[0].reason
    assert decoded.batch.to_pylist() == [{"a": None}, {"a": None}]
    assert decoded.batch.schema.field("a").nullable


def test_a_field_that_no_column_takes_is_still_read_strictly() -> None:
    decoder = AvroDecoder(pa.schema([("b", pa.int64())]), record(a=["null", SUIT, POINT], b="long"))
    assert [bad.index for bad in decoder.decode([b"\x00\x02", b"\x02\x04\x02", b"\x04\x02\x02\x02"]).bad] == [1]


def test_a_block_of_items_may_state_its_size() -> None:
    decoder = AvroDecoder(pa.schema([("a", pa.list_(pa.int64()))]), record(a={"type": "array", "items": "long"}))
    decoded = decoder.decode([b"\x03\x04\x02\x04\x02\x06\x00"])
    assert decoded.batch.to_pylist() == [{"a": [1, 2, 3]}]


@pytest.mark.parametrize("header", [b"", b"\0", b"\0\0\0\0", b"\1\0\0\0\7"])
def test_a_framed_value_has_five_bytes_before_it(header: bytes) -> None:
    decoder = AvroDecoder(pa.schema([("a", pa.int64())]), record(a="long"), framed=True)
    decoded = decoder.decode([b"\0\0\0\0\7\x02", header, header + b"\x02", None])
    assert [bad.index for bad in decoded.bad] == [1, 2]
    assert decoded.batch.column("a").to_pylist() == [1, None, None, None]
    assert "does not begin" in decoded.bad[0].reason


def test_the_columns_of_an_avro_schema() -> None:
    avro = record(
        id="long",
        at=["null", logical("long", "timestamp-millis")],
        local=logical("long", "local-timestamp-micros"),
        on=logical("int", "date"),
        price=logical("bytes", "decimal", precision=10, scale=2),
        suit=SUIT,
        point=["null", POINT],
        again="Point",
        tags={"type": "array", "items": ["null", "string"]},
        counts={"type": "map", "values": "int"},
    )
    point = pa.struct([pa.field("x", pa.int32(), nullable=False), pa.field("y", pa.int64(), nullable=False)])
    assert schema_of_avro(json.dumps(avro)) == pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            pa.field("at", pa.timestamp("ms", "UTC")),
            pa.field("local", NTZ, nullable=False),
            pa.field("on", pa.date32(), nullable=False),
            pa.field("price", pa.decimal128(10, 2), nullable=False),
            pa.field("suit", pa.string(), nullable=False),
            pa.field("point", point),
            pa.field("again", point, nullable=False),
            pa.field("tags", pa.list_(pa.field("element", pa.string())), nullable=False),
            pa.field("counts", pa.map_(pa.string(), pa.field("value", pa.int32(), nullable=False)), nullable=False),
        ]
    )


@pytest.mark.parametrize(
    "avro",
    [
        "long",
        record(next=["null", "Row"]),
        record(a={"type": "array", "items": "null"}),
        record(a={"type": "array", "items": {"type": "record", "name": "E", "fields": []}}),
        record(a={"type": "map", "values": ["int", "string"]}),
        record(a=logical("bytes", "decimal", precision=39, scale=2)),
    ],
)
def test_an_avro_schema_that_makes_no_columns_is_refused(avro: Any) -> None:
    with pytest.raises(SchemaMismatch):
        schema_of_avro(json.dumps(avro))


@pytest.mark.parametrize("avro", ["", "{", "{}", '{"type": "recrd"}', '{"type": "record", "fields": []}', "7", "null"])
def test_what_is_no_avro_schema_is_refused(avro: str) -> None:
    with pytest.raises(SchemaInvalid, match="cannot be read"):
        parse_avro(avro)


def test_a_decoder_travels_to_other_processes() -> None:
    decoder = pickle.loads(pickle.dumps(AvroDecoder(pa.schema([("a", pa.int64())]), record(a="long"), framed=True)))
    assert decoder.decode([b"\0\0\0\0\7\x02"]).batch.to_pylist() == [{"a": 1}]


SIMPLE: list[tuple[Any, st.SearchStrategy[Any]]] = [
    ("boolean", st.booleans()),
    ("int", st.integers(-(2**31), 2**31 - 1)),
    ("long", st.integers(-(2**63), 2**63 - 1)),
    ("float", st.floats(width=32)),
    ("double", st.floats()),
    ("string", st.text(max_size=5)),
    ("bytes", st.binary(max_size=5)),
    (logical("long", "timestamp-micros"), st.integers(-(2**63), 2**63 - 1)),
    (logical("long", "local-timestamp-millis"), st.integers(-(2**63), 2**63 - 1)),
    (logical("int", "date"), st.integers(-(2**31), 2**31 - 1)),
    (logical("bytes", "decimal", precision=38, scale=2), st.decimals(-(10**30), 10**30, places=2)),
]


def _around(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    lists = inner.map(lambda two: ({"type": "array", "items": two[0]}, st.lists(two[1], max_size=3)))
    maps = inner.map(
        lambda two: ({"type": "map", "values": two[0]}, st.dictionaries(st.text(max_size=3), two[1], max_size=3))
    )
    maybe = inner.filter(lambda two: not isinstance(two[0], list)).map(
        lambda two: (["null", two[0]], st.none() | two[1])
    )
    return lists | maps | maybe


types = st.recursive(st.sampled_from(SIMPLE), _around, max_leaves=3)


def _with_pairs(value: Any) -> Any:
    if isinstance(value, dict):
        return [(key, _with_pairs(item)) for key, item in value.items()]
    return [_with_pairs(item) for item in value] if isinstance(value, list) else value


@settings(max_examples=examples(200), deadline=None)
@given(data=st.data(), kinds=st.lists(types, min_size=1, max_size=3))
def test_whatever_is_written_is_read_exactly(data: st.DataObject, kinds: list[Any]) -> None:
    avro = record(**{f"c{place}": kind for place, (kind, _) in enumerate(kinds)})
    rows = [{f"c{place}": data.draw(values) for place, (_, values) in enumerate(kinds)} for _ in range(2)]
    schema = schema_of_avro(avro)
    decoded = AvroDecoder(schema, avro).decode(written(avro, *rows))
    assert decoded.bad == ()
    columns = [pa.array([_with_pairs(row[field.name]) for row in rows], field.type) for field in schema]
    assert exactly(decoded.batch) == exactly(pa.record_batch(columns, names=schema.names))


@settings(max_examples=examples(300), deadline=None)
@given(value=st.binary(max_size=30))
def test_any_bytes_give_a_row_or_a_reason(value: bytes) -> None:
    avro = record(
        a=["null", {"type": "array", "items": POINT}],
        b={"type": "map", "values": ["null", "string", "double"]},
        c=SUIT,
        d=logical("bytes", "decimal", precision=4, scale=2),
    )
    decoded = AvroDecoder(pa.schema([("c", pa.string()), ("d", pa.decimal128(4, 2))]), avro).decode([value])
    assert decoded.batch.num_rows == 1
    assert (decoded.batch.column("c").null_count == 1) == (len(decoded.bad) == 1)
