"""Values of records that are almost right: each is a valid row or has a reason, and harms none of its neighbours."""

import io
import json
import random
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pytest
from fastavro import schemaless_writer

from floodmark._util.ddl import parse_ddl
from floodmark.errors import FloodmarkError
from floodmark.kafka.codecs.avro import AvroDecoder, schema_of_avro
from floodmark.kafka.codecs.json_decoder import JsonDecoder
from floodmark.kafka.mark_records import MarkRecord
from floodmark.sinks.progress import Progress
from support.examples import examples
from support.kafka.value_columns import exactly
from support.mutations import mutated_bytes, mutated_json

POINT = {"type": "record", "name": "Point", "fields": [{"name": "x", "type": "int"}, {"name": "y", "type": "double"}]}
DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}
AVRO: dict[str, Any] = {
    "type": "record",
    "name": "Row",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "at", "type": ["null", {"type": "long", "logicalType": "timestamp-micros"}]},
        {"name": "name", "type": ["null", "string"]},
        {"name": "points", "type": {"type": "array", "items": POINT}},
        {"name": "counts", "type": {"type": "map", "values": ["null", "int"]}},
        {"name": "suit", "type": {"type": "enum", "name": "Suit", "symbols": ["spades", "hearts"]}},
        {"name": "four", "type": {"type": "fixed", "name": "Four", "size": 4}},
        {"name": "paid", "type": DECIMAL},
        {"name": "flag", "type": "boolean"},
    ],
}
AVRO_ROW = {"id": 7, "at": 10**15, "name": "né", "points": [{"x": 1, "y": 0.5}] * 3, "counts": {"a": 1, "b": None},
            "suit": "hearts", "four": b"abcd", "paid": b"\x01\x02", "flag": True}  # fmt: skip
DDL = """id BIGINT NOT NULL, at TIMESTAMP, name STRING, tags ARRAY<STRING>, counts MAP<STRING, INT>,
         inner STRUCT<a: INT NOT NULL, b: BINARY>, paid DECIMAL(10, 2), day DATE, x DOUBLE, flag BOOLEAN"""
JSON_ROW = {"id": 7, "at": "2026-01-01T00:00:00Z", "name": "né", "tags": ["a", None], "counts": {"a": 1},
            "inner": {"a": 1, "b": "eA=="}, "paid": 1.25, "day": "2026-01-01", "x": 0.5, "flag": True,
            "more": [{}, "x"]}  # fmt: skip


def avro_value() -> bytes:
    out = io.BytesIO()
    plain = {
        **AVRO,
        "fields": [{**field, "type": "bytes"} if field["name"] == "paid" else field for field in AVRO["fields"]],
    }
    schemaless_writer(out, plain, AVRO_ROW)
    return out.getvalue()


def check_decoded(decoder: AvroDecoder | JsonDecoder, good: bytes, values: list[bytes]) -> int:
    """Fail unless each value gives a valid row or a reason, between rows that are as they would be alone."""
    batch_of_good = decoder.decode([good])
    assert batch_of_good.bad == ()
    decoded = decoder.decode([good, *values, good])
    decoded.batch.validate(full=True)
    assert decoded.batch.num_rows == len(values) + 2
    bad = {value.index for value in decoded.bad}
    assert all(1 <= row <= len(values) for row in bad)
    for row in bad:
        assert all(decoded.batch.column(name)[row].as_py() is None for name in decoded.batch.schema.names)
    alone = exactly(batch_of_good.batch)
    assert exactly(decoded.batch.slice(0, 1)) == exactly(decoded.batch.slice(len(values) + 1)) == alone
    return len(bad)


def test_mutated_avro_values() -> None:
    chance = random.Random(30)
    good, decoder = avro_value(), AvroDecoder(schema_of_avro(AVRO), AVRO)
    few = AvroDecoder(pa.schema([("id", pa.int64()), ("flag", pa.bool_())]), AVRO)
    count, bad = examples(2_000, usual=100), 0
    for _ in range(count):
        value = mutated_bytes(good, chance)
        bad += check_decoded(decoder, good, [value])
        check_decoded(few, good, [value, value])
    assert 0 < bad < count


def test_mutated_json_values() -> None:
    chance = random.Random(31)
    good, decoder = json.dumps(JSON_ROW).encode(), JsonDecoder(parse_ddl(DDL))
    count, bad = examples(2_000, usual=100), 0
    for _ in range(count):
        text = json.dumps(mutated_json(JSON_ROW, chance), ensure_ascii=chance.random() < 0.5)
        value = text.encode("utf-8", "surrogatepass")
        if chance.random() < 0.5:
            value = mutated_bytes(value, chance)
        bad += check_decoded(decoder, good, [value])
    assert 0 < bad < count


def test_mutated_avro_schemas() -> None:
    chance = random.Random(32)
    good = avro_value()
    for _ in range(examples(2_000, usual=100)):
        text = json.dumps(mutated_json(AVRO, chance))
        if chance.random() < 0.3:
            text = mutated_bytes(text.encode(), chance).decode("utf-8", "replace")
        with suppress(FloodmarkError):
            AvroDecoder(schema_of_avro(text), text).decode([good, b""])


@pytest.mark.parametrize("kind", [MarkRecord, Progress])
def test_mutated_records_of_floodmark_itself(kind: Any) -> None:
    chance = random.Random(33)
    saved = {
        MarkRecord: {"key": "at", "seq": 3, "kind": "watermark", "lower": 5, "upper": 9, "unit": "us", "writers": ["w"],
                     "cut": {"0": 7}},
        Progress: {"form": 1, "sink": "s", "topic": "t", "topic_id": "i", "version": 1, "query_id": "q", "total": 5,
                   "start": 0, "marks": {}, "layout": None},
    }[kind]  # fmt: skip
    for _ in range(examples(2_000, usual=100)):
        value = json.dumps(mutated_json(saved, chance)).encode()
        if chance.random() < 0.3:
            value = mutated_bytes(value, chance)
        with suppress(FloodmarkError):
            kind.load(value)
