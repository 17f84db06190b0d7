"""Schemas as Spark writes them."""

import pyarrow as pa
import pytest

from floodmark._util.ddl import parse_ddl, write_ddl
from floodmark.errors import SchemaInvalid

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
    ["", "a", "a INT,", "a INTT", "a ARRAY<INT", "a MAP<INT>", "a INT b INT", "a INT, a INT", "a INT NOT", "1 + 1"],
)
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
