"""Schemas as Spark writes them."""

import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from floodmark._util.ddl import MAX_COLUMNS, MAX_DEPTH, check_schema, parse_ddl, write_ddl
from floodmark.errors import SchemaInvalid
from floodmark.streams.definition import make_settings

READ = {
    "a INT": pa.schema([("a", pa.int32())]),
    "a: int, `b c` string NOT NULL": pa.schema([("a", pa.int32()), pa.field("b c", pa.string(), nullable=False)]),
    "a DECIMAL(10,2) COMMENT 'it''s'": None,
    "a decimal": pa.schema([("a", pa.decimal128(10, 0))]),
    "at TIMESTAMP, on DATE, raw BINARY": pa.schema(
        [("at", pa.timestamp("us", "UTC")), ("on", pa.date32()), ("raw", pa.binary())]
    ),
    "m MAP<STRING, ARRAY<DOUBLE>>": pa.schema(
        [("m", pa.map_(pa.string(), pa.list_(pa.field("element", pa.float64()))))]
    ),
    "s STRUCT<x: BIGINT NOT NULL, y: STRUCT<z: BOOLEAN>>, v VARCHAR(10)": pa.schema(
        [
            (
                "s",
                pa.struct([pa.field("x", pa.int64(), nullable=False), ("y", pa.struct([("z", pa.bool_())]))]),
            ),
            ("v", pa.string()),
        ]
    ),
}


@pytest.mark.parametrize("text", [text for text, schema in READ.items() if schema is not None])
def test_what_spark_writes_is_read_and_written_again(text: str) -> None:
    schema = parse_ddl(text)
    assert schema == READ[text]
    assert parse_ddl(write_ddl(schema)) == schema


@pytest.mark.parametrize(
    "text",
    [
        "", "a", "a INT,", "a INTT", "a ARRAY<INT", "a MAP<INT>", "a INT b INT", "a INT, a INT", "a INT NOT", "1 + 1",
        "`` INT", "`a INT", "a STRUCT<b: INT, b: INT>", "a STRUCT<>", "a INT COMMENT", "a INT COMMENT 'x",
        "a INT COMMENT x", "a DECIMAL(39)", "a DECIMAL(0)", "a DECIMAL(10, 11)", "a DECIMAL(1, 2, 3)",
        "a DECIMAL(\u00b2)", "a DECIMAL(-1)",
        "a DECIMAL(\u0663)", f"a DECIMAL({'9' * 5_000})", f"a VARCHAR({'9' * 5_000})", "a VARCHAR(1, 2)", "\ud800 INT",
        "`\ud800` INT", "a INT\0", "\0",
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(SchemaInvalid):
        parse_ddl(text)


def test_a_type_that_spark_does_not_have_is_refused() -> None:
    for kind in (pa.uint64(), pa.time64("us"), pa.dictionary(pa.int32(), pa.string()), pa.timestamp("ns")):
        with pytest.raises(SchemaInvalid):
            write_ddl(pa.schema([("a", kind)]))


def test_it_is_written_as_spark_writes_it() -> None:
    for text in ("id BIGINT NOT NULL, tags ARRAY<STRING>", "m MAP<STRING, DECIMAL(10, 2)>, s STRUCT<x: INT, y: DATE>"):
        assert write_ddl(parse_ddl(text)) == text


def nested(kind: str, depth: int) -> str:
    begin, end = {"array": ("ARRAY<", ">"), "map": ("MAP<INT, ", ">"), "struct": ("STRUCT<a: ", ">")}[kind]
    return f"a {begin * depth}INT{end * depth}"


@pytest.mark.parametrize("kind", ["array", "map", "struct"])
def test_types_are_nested_up_to_a_limit(kind: str) -> None:
    most = MAX_DEPTH - 1
    schema = parse_ddl(nested(kind, most))
    assert parse_ddl(write_ddl(schema)) == schema
    batch = pa.RecordBatch.from_pylist([{"a": None}], schema=schema)
    assert pa.ipc.read_record_batch(batch.serialize(), schema) == batch
    for depth in (most + 1, 500, 100_000):
        for text in (nested(kind, depth), nested(kind, depth).rstrip(">"), f"b INT, {nested(kind, depth)}, c INT"):
            with pytest.raises(SchemaInvalid, match=f"at most {MAX_DEPTH} levels"):
                parse_ddl(text)


def columns(count: int) -> str:
    return ", ".join(f"column_{number} STRING COMMENT 'number {number}'" for number in range(count))


WIDE: dict[str, Callable[[int], str]] = {
    "columns": columns,
    "fields": lambda count: f"a STRUCT<{columns(count - 1)}>",
    "types": lambda count: ", ".join(f"a{number} ARRAY<INT>" for number in range(count // 2)),
}


@pytest.mark.parametrize("write", WIDE.values(), ids=WIDE)
def test_columns_are_counted_and_read_in_linear_time(write: Callable[[int], str]) -> None:
    begun = time.process_time()
    schema = parse_ddl(write(MAX_COLUMNS))
    assert parse_ddl(write_ddl(schema)) == schema
    for count in (MAX_COLUMNS + 2, 2 * MAX_COLUMNS, 10 * MAX_COLUMNS):
        with pytest.raises(SchemaInvalid, match=f"at most {MAX_COLUMNS} columns"):
            parse_ddl(write(count))
    # Reading in quadratic time takes minutes.
    assert time.process_time() - begun < 10


@pytest.mark.parametrize(
    "text",
    ["`" + "a" * 10**6, "a " + "x" * 10**6, "a INT COMMENT '" + "x" * 10**6, " " * 10**6, "a INT" + " " * 10**6 + "!"],
)
def test_a_long_text_that_is_no_schema_is_refused_at_once(text: str) -> None:
    begun = time.process_time()
    with pytest.raises(SchemaInvalid) as refusal:
        parse_ddl(text)
    assert time.process_time() - begun < 5
    assert len(str(refusal.value) + str(refusal.value.fields)) < 5_000


@given(st.lists(st.sampled_from(["a", "b", "`c`", "INT", "ARRAY", "MAP", "STRUCT", "DECIMAL", "NOT", "NULL", "COMMENT",
                                 "<", ">", "(", ")", ",", ":", "7", "'x'", "`", "'", "\\", "\u0665"])))  # fmt: skip
def test_any_words_are_a_schema_or_refused(words: list[str]) -> None:
    try:
        schema = parse_ddl(" ".join(words))
    except SchemaInvalid:
        return
    assert parse_ddl(write_ddl(schema)) == schema


@given(st.text())
def test_any_text_is_a_schema_or_refused(text: str) -> None:
    try:
        parse_ddl(text)
    except SchemaInvalid:
        return


def deep_list(depth: int) -> Any:
    kind = pa.int32()
    for _ in range(depth):
        kind = pa.list_(kind)
    return kind


def undecodable(schema: Any) -> Any:
    """Return the schema with a name that is no UTF-8."""
    raw = schema.serialize().to_pybytes()
    return pa.ipc.read_schema(pa.py_buffer(raw.replace(b"bad", b"\xff\xfe\xfd")))


UNFIT = {
    "too deep": pa.schema([("a", deep_list(MAX_DEPTH))]),
    "too many columns": pa.schema([(f"a{number}", pa.int32()) for number in range(MAX_COLUMNS + 1)]),
    "the same column twice": pa.schema([("a", pa.int32()), ("a", pa.int64())]),
    "the same field twice": pa.schema([("a", pa.list_(pa.struct([("b", pa.int32()), ("b", pa.int32())])))]),
    "no name": pa.schema([("", pa.int32())]),
    "no columns": pa.schema([]),
    "a name that is no text": undecodable(pa.schema([("bad", pa.int32())])),
    "a field that is no text": undecodable(pa.schema([("a", pa.struct([("bad", pa.int32())]))])),
    "a field of a map that is no text": undecodable(
        pa.schema([("a", pa.map_(pa.string(), pa.struct([("bad", pa.int32())])))])
    ),
    "a scale beyond the precision": pa.schema([("a", pa.decimal128(5, 9))]),
    "a type that Spark does not have": pa.schema([("a", pa.list_(pa.uint8()))]),
}


@pytest.mark.parametrize("schema", UNFIT.values(), ids=UNFIT)
def test_an_arrow_schema_that_no_stream_can_have_is_refused(schema: Any) -> None:
    with pytest.raises(SchemaInvalid):
        make_settings(schema=schema)


def test_an_arrow_schema_within_the_limits_is_taken() -> None:
    check_schema(pa.schema([(f"a{number}", pa.int32()) for number in range(MAX_COLUMNS)]))
    check_schema(pa.schema([("a", deep_list(MAX_DEPTH - 1))]))


@pytest.mark.parametrize("zone", [b"\xffTC", b"U\x80C", b"U\x00C", b"XXX", b"../"])
@pytest.mark.parametrize("inner", [False, True])
def test_a_zone_that_no_reader_knows_is_refused(zone: bytes, inner: bool) -> None:
    kind = pa.timestamp("us", "UTC")
    schema = pa.schema([("at", pa.struct([("a", kind)]) if inner else kind)])
    changed = pa.ipc.read_schema(pa.py_buffer(schema.serialize().to_pybytes().replace(b"UTC", zone)))
    with pytest.raises(SchemaInvalid, match="zone"):
        check_schema(changed)
