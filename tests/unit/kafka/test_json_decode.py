"""JSON values as columns: the rules, and that the quick way never says anything else."""

import json
import pickle
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from floodmark.errors import SchemaInvalid
from floodmark.kafka.codecs import json_decoder as _json_decode
from floodmark.kafka.codecs.json_decoder import JsonDecoder, _ArrowJsonReader, _is_safe
from floodmark.kafka.codecs.json_encoder import encode_json
from floodmark.kafka.codecs.values import BadValue, Decoded
from support.examples import examples
from support.kafka.value_columns import batches, exactly

UTC = pa.timestamp("us", "UTC")
NTZ = pa.timestamp("us")
ORDERS = pa.schema([("id", pa.int64()), ("customer", pa.string()), ("amount", pa.float64()), ("at", UTC)])
GOOD: list[tuple[Any, str, Any]] = [
    (pa.bool_(), "true", True),
    (pa.int64(), "9223372036854775807", 2**63 - 1),
    (pa.int64(), "-9223372036854775808", -(2**63)),
    (pa.int64(), "-0", 0),
    (pa.int8(), "-128", -128),
    (pa.float64(), "12", 12.0),
    (pa.float64(), "1e-999", 0.0),
    (pa.float64(), "123456789012345678901234567890", 1.2345678901234568e29),
    (pa.float64(), '"Infinity"', float("inf")),
    (pa.float64(), "-Infinity", float("-inf")),
    (pa.float32(), "1.000000059604644775390625000001", 1.0000001192092896),
    (pa.string(), r'"\ud83d\ude00\u0000\/"', "\U0001f600\0/"),
    (pa.string(), r'"\\ud800"', r"\ud800"),
    (pa.binary(), '"AP8="', b"\x00\xff"),
    (pa.binary(), '""', b""),
    (pa.date32(), '"1970-01-02"', 1),
    (pa.date32(), '"+10000-01-01"', 2932897),
    (UTC, '"1970-01-01T00:00:01Z"', 1_000_000),
    (UTC, '"1970-01-01T02:00:00.5+02:00"', 500_000),
    (UTC, '"1969-12-31T22:30:00-0130"', 0),
    (UTC, '"1970-01-01 00:00:00"', 0),
    (UTC, '"1970-01-01T01"', 3_600_000_000),
    (UTC, '"1970-01-02"', 86_400_000_000),
    (UTC, '"1970-01-01T00:00:00.123456789Z"', 123_456),
    (UTC, '"+294247-01-10T04:00:54.775807Z"', 2**63 - 1),
    (NTZ, '"1970-01-01T00:00:00.000001"', 1),
    (pa.timestamp("ms", "UTC"), '"1970-01-01T00:00:00.001Z"', 1),
    (pa.timestamp("ms", "UTC"), '"1970-01-01T00:00:00.001999Z"', 1),
    (pa.decimal128(10, 2), '"1.25"', Decimal("1.25")),
    (pa.decimal128(10, 2), "1.250", Decimal("1.25")),
    (pa.decimal128(10, 2), "1e2", Decimal("100.00")),
    (pa.decimal128(10, 2), r'"1\u00652"', Decimal("100.00")),
    (pa.decimal128(38, 19), "9018723519164391469.2900800e-10", Decimal("901872351.91643914692900800")),
    (pa.decimal128(38, 0), '"12"', Decimal(12)),
    (pa.decimal128(38, 0), '"' + "9" * 38 + '"', Decimal("9" * 38)),
    (pa.list_(pa.int32()), "[1, null]", [1, None]),
    (pa.map_(pa.string(), pa.int32()), '{"k": 1, "l": null}', [("k", 1), ("l", None)]),
    (pa.map_(pa.int32(), pa.string()), '[[1, "a"]]', [(1, "a")]),
    (pa.struct([("x", pa.int32())]), '{"y": 1}', {"x": None}),
    (pa.int64(), "null", None),
]  # fmt: skip
BAD: list[tuple[Any, str, str]] = [
    (pa.bool_(), "1", "is 1, which is no bool"),
    (pa.bool_(), '"true"', "is 'true', which is no bool"),
    (pa.int64(), '"1"', "is '1', which is no int64"),
    (pa.int64(), "1.0", "is 1.0, which is no int64"),
    (pa.int64(), "1e2", "is 1e2, which is no int64"),
    (pa.int64(), "true", "is true, which is no int64"),
    (pa.int64(), "9223372036854775808", "is 9223372036854775808, which is no int64"),
    (pa.int64(), "NaN", "is NaN, which is no int64"),
    (pa.int8(), "128", "is 128, which is no int8"),
    (pa.float64(), '"1"', "is '1', which is no double"),
    (pa.float64(), '"nan"', "is 'nan', which is no double"),
    (pa.float64(), "1e309", "is 1e309, which is no double: too large"),
    (pa.float64(), "-1.8e308", "is -1.8e308, which is no double: too large"),
    (pa.float32(), "3.5e38", "is 3.5e38, which is no float: too large"),
    (pa.string(), "1", "is 1, which is no string"),
    (pa.string(), "{}", "is an object, which is no string"),
    (pa.binary(), '"AP8"', "is 'AP8', which is no binary: not base64"),
    (pa.binary(), '"A P8="', "is 'A P8=', which is no binary: not base64"),
    (pa.date32(), '"2026-02-30"', "no such day"),
    (pa.date32(), '"2026-01-01T00:00:00"', "not a date"),
    (pa.date32(), "1", "is 1, which is no date32"),
    (UTC, "1767225600", "is 1767225600, which is no timestamp"),
    (UTC, '"yesterday"', "not a timestamp"),
    (UTC, '"2026-01-01T24:00:00Z"', "no such time of day"),
    (UTC, '"2026-01-01T10:00:00+24:00"', "no such zone offset"),
    (UTC, '"+294247-01-10T04:00:54.775808Z"', "too far from 1970"),
    (UTC, '"2026-01-01T10:00:00z"', "not a timestamp"),
    (NTZ, '"2026-01-01T10:00:00Z"', "has a zone offset, the column has none"),
    (NTZ, '"2026-01-01T10:00:00+00:00"', "has a zone offset, the column has none"),
    (pa.decimal128(10, 2), '"1.255"', "too many digits"),
    (pa.decimal128(10, 2), "123456789", "too many digits"),
    (pa.decimal128(10, 2), "1e999999999", "too many digits"),
    # Arrow's own reader makes other numbers of these.
    (pa.decimal128(38, 19), "90187235191643914690704680295.2900800", "too many digits"),
    (pa.decimal128(38, 19), r'"9018723519164\u0033914690704680295.2900800"', "too many digits"),
    (pa.decimal128(38, 2), "18769397573.7501409300020630005600e-19", "too many digits"),
    (pa.decimal128(38, 19), "7e22", "too many digits"),
    (pa.decimal128(10, 0), '"413111E-39"', "too many digits"),
    (pa.decimal128(38, 25), "7356093656713152453", "too many digits"),
    (pa.decimal128(10, 2), '"NaN"', "is 'NaN', which is no decimal128(10, 2)"),
    (pa.decimal128(10, 2), "Infinity", "which is no decimal128(10, 2)"),
    (pa.list_(pa.int32()), "1", "is 1, which is no list"),
    (pa.list_(pa.int32()), '["x"]', "is 'x', which is no int32"),
    (pa.list_(pa.field("element", pa.int32(), nullable=False)), "[null]", "is null inside"),
    (pa.map_(pa.string(), pa.int32()), "[]", "is a list, which is no map"),
    (pa.map_(pa.int32(), pa.string()), "[[1]]", "is a list, which is no list of [key, value]"),
    (pa.map_(pa.int32(), pa.string()), "[[null, null]]", "is null inside"),
    (pa.struct([("x", pa.int32())]), "[]", "is a list, which is no struct"),
    (pa.struct([("x", pa.int32())]), '{"x": 1, "x": 1}', "'a': 'x' is there twice"),
    (pa.struct([pa.field("x", pa.int32(), nullable=False)]), "{}", "'a': 'x' is missing"),
]  # fmt: skip


@pytest.fixture(params=[1, 16])
def few(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once with the quick way for two values and more, once with the rules alone for so few."""
    monkeypatch.setattr(_json_decode, "_FEW", request.param)


@pytest.mark.parametrize(("kind", "text", "value"), GOOD)
@pytest.mark.usefixtures("few")
def test_a_good_value_means_what_it_says(kind: Any, text: str, value: Any) -> None:
    decoded = JsonDecoder(pa.schema([("a", kind)])).decode([f'{{"a":{text}}}'.encode()] * 2)
    assert decoded.bad == ()
    assert exactly(decoded.batch) == exactly(pa.record_batch([pa.array([value, value], kind)], names=["a"]))


@pytest.mark.parametrize(("kind", "text", "reason"), BAD)
@pytest.mark.usefixtures("few")
def test_a_value_of_another_type_is_bad_and_its_row_is_null(kind: Any, text: str, reason: str) -> None:
    schema = pa.schema([("a", kind), pa.field("b", pa.int64())])
    decoded = JsonDecoder(schema).decode([f'{{"b":1,"a":{text}}}'.encode(), b'{"b":2}'])
    assert [bad.index for bad in decoded.bad] == [0]
    assert reason in decoded.bad[0].reason
    assert decoded.batch.to_pylist() == [{"a": None, "b": None}, {"a": None, "b": 2}]


NO_OBJECTS = [
    b"", b"null", b"1", b"[]", b'"{}"', b"{", b"}", b'{"id":1', b'{"id":1,}', b"{'id':1}", b'{"id":01}', b'{"id":+1}',
    b'{"id":1}{"id":2}', b'{"id":1} {"id":2}', b'{"id":1},{"id":2}', b'{"id":1} null {"id":2}', b'{"id":1}\nnull\n{}',
    b'{"id":1}\n{"id":2}', b'\xef\xbb\xbf{"id":1}', b'{"x":"\xff"}', b'{"x":"\xed\xa0\x80"}', b'{"x":"\\ud800"}',
    b'{"x":"\\udc00"}', b'{"x":"\\ud800\\u0041"}', b'{"x":"\\ud83d-\\ude00"}',
    b'{"x":"a\tb"}', b'{"x":"a\nb"}', b'{"x":Inf}', b'{"x":-Inf }',
    b'{"x":-NaN}', b'{"x":nan}', b'{"id":1,"id":1}', b'{"id":null,"id":1}',
    b'{"id":1}//', b'{"id":1}\x00', b'{"x":"\x00"}',
    b'{"x":' + b"[" * 200 + b"]" * 200 + b"}", b'{"x":' + b'{"x":' * 100_000 + b"1" + b"}" * 100_001,
    b'{"id":1} true {}', b'{"id":1} "x" {}', b'{"id":1} 1 {}', b'{"id":1} [null] {}', b'{"id":1} nul }',
    "{}".encode("utf-16"), b'{"id":1}}', b'{"id":1]}', b'{{"id":1}}', b'{"id"}', b'{"id":1 "x":2}', b'\x0c{"id":1}',
]  # fmt: skip


@pytest.mark.parametrize("value", NO_OBJECTS)
@pytest.mark.usefixtures("few")
def test_what_is_not_one_json_object_is_bad(value: bytes) -> None:
    good = b'{"id":7}'
    decoded = JsonDecoder(ORDERS.remove(3)).decode([good, value, good])
    assert [bad.index for bad in decoded.bad] == [1]
    assert decoded.batch.column("id").to_pylist() == [7, None, 7]


@pytest.mark.parametrize(
    "value", [b"{} null", b"{}\t null {}", b'{"x":{}}\rnull', b"null {}", b"null", b"{}\nnull\n{}"]
)
def test_arrow_never_sees_a_null_outside_of_objects(value: bytes) -> None:
    for values in ([value], [b"{}", value], [value, b"{}"]):
        assert not _is_safe(b"\n".join(values), values)


@pytest.mark.parametrize(
    "value",
    [
        b'{"id":7,"x":{"id":8,"y":[null,{}]},"x":NaN}',
        b' {"id" : 7 }\r\n',
        b'{"id":\n7}',
        b'{"\\u0069d":7}',
        b'{"id":7,"x":1e999}',
        b'{"id":7,"x":"} null, Info, NaN"}',
        b'{"id":7,"x":-Infinity}',
        b'{"id":7,"x":' + b"[" * 199 + b"]" * 199 + b"}",
        b'{"id":7,"x":[' + b"[]," * 500 + b'"\\"]"]}',
        b'{"id":7,"x":"\\ud83d\\ude00\\\\ud800"}',
    ],
)
@pytest.mark.usefixtures("few")
def test_what_the_schema_does_not_have_is_ignored_and_space_is_free(value: bytes) -> None:
    decoded = JsonDecoder(ORDERS).decode([value, value])
    assert decoded.bad == ()
    assert decoded.batch.column("id").to_pylist() == [7, 7]


@pytest.mark.parametrize("value", [b"{}", b'{"id":null}'])
@pytest.mark.usefixtures("few")
def test_a_column_that_may_not_be_null_makes_a_value_without_it_bad(value: bytes) -> None:
    decoder = JsonDecoder(pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("x", pa.string())]))
    decoded = decoder.decode([b'{"id":1,"x":"a"}', value, None])
    assert decoded.bad == (BadValue(1, f"'id' is {'null' if b'null' in value else 'missing'}"),)
    assert decoded.batch.to_pylist() == [{"id": 1, "x": "a"}, {"id": None, "x": None}, {"id": None, "x": None}]
    assert all(field.nullable for field in decoded.batch.schema)
    assert decoded.batch.schema == decoder.schema


@pytest.mark.parametrize("size", [0, 1, 15, 16, 17, 1000])
def test_a_tombstone_is_a_row_of_nulls_and_not_bad(size: int) -> None:
    values = [b'{"id":%d}' % place if place % 3 else None for place in range(size)]
    decoded = JsonDecoder(ORDERS).decode(values)
    assert decoded.bad == ()
    assert decoded.batch.column("id").to_pylist() == [place if place % 3 else None for place in range(size)]
    assert JsonDecoder(ORDERS).decode([None] * size).batch.num_rows == size


def test_a_reason_quotes_little_of_the_value() -> None:
    secret = "s" * 10_000
    values = [
        b'{"id":"%s"}' % secret.encode(),
        secret.encode(),
        b"[" + secret.encode() + b"]",
        b'{"id":1%s}' % (b"0" * 500),
    ]
    decoded = JsonDecoder(ORDERS).decode(values)
    assert len(decoded.bad) == 4
    for bad in decoded.bad:
        assert bad.reason.count("s") + bad.reason.count("0") < 90
        assert len(bad.reason) < 200


PLAIN = [ORDERS, *[pa.schema([("a", kind)]) for kind, _, _ in GOOD if not pa.types.is_map(kind)]]


@pytest.mark.parametrize("schema", PLAIN, ids=str)
def test_the_quick_way_is_really_taken(schema: Any) -> None:
    texts = {kind: text for kind, text, _ in reversed(GOOD) if text != '"Infinity"'}
    row = {field.name: json.loads(texts[field.type]) for field in schema}
    value = json.dumps(row).encode()
    read = _ArrowJsonReader(schema).read([value] * 3)
    assert read is not None
    assert exactly(read) == exactly(JsonDecoder(schema).decode([value] * 3).batch)


@pytest.mark.parametrize("count", [1, 2, 20])
def test_a_few_bad_values_are_found_among_many(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    carefully: list[int] = []
    real = JsonDecoder._one_by_one

    def counted(self: JsonDecoder, values: Any, start: int, end: int, bad: list[BadValue]) -> Any:
        carefully.append(end - start)
        return real(self, values, start, end, bad)

    monkeypatch.setattr(JsonDecoder, "_one_by_one", counted)
    values: list[bytes | None] = [b'{"id":%d}' % place for place in range(20_000)]
    places = [place * 19_999 // count for place in range(1, count + 1)]
    for place in places:
        values[place] = b"{"
    decoded = JsonDecoder(ORDERS).decode(values)
    assert [bad.index for bad in decoded.bad] == places
    expected = [None if place in places else place for place in range(20_000)]
    assert decoded.batch.column("id").to_pylist() == expected
    assert sum(carefully) <= 2 * 16 * count


def test_very_long_values_are_read_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_json_decode, "_MAX_BYTES", 1000)
    values = [b'{"id":%d,"x":"%s"}' % (place, b"x" * (2000 if place == 50 else 20)) for place in range(100)]
    decoded = JsonDecoder(ORDERS).decode(values)
    assert decoded.bad == ()
    assert decoded.batch.column("id").to_pylist() == list(range(100))


def test_a_decoder_travels_to_other_processes() -> None:
    decoder = pickle.loads(pickle.dumps(JsonDecoder(ORDERS)))
    assert decoder.decode([b'{"id":1}'] * 20).batch.column("id").to_pylist() == [1] * 20


def test_columns_of_one_name_or_of_no_known_type_are_refused() -> None:
    for schema in (
        pa.schema([("a", pa.int8()), ("a", pa.int8())]),
        pa.schema([("a", pa.struct([("x", pa.int8()), ("x", pa.int8())]))]),
        pa.schema([("a", pa.uint8())]),
    ):
        with pytest.raises(SchemaInvalid):
            JsonDecoder(schema)


def test_a_schema_without_columns_still_tells_what_is_bad() -> None:
    decoded = JsonDecoder(pa.schema([])).decode([b"{}", b"["] * 10)
    assert [bad.index for bad in decoded.bad] == list(range(1, 20, 2))


def test_an_error_for_callers_that_choose_to_fail_has_place_and_reason() -> None:
    error = JsonDecoder(ORDERS).decode([b"1"]).bad[0].error()
    assert (error.code, error.fields["place"]) == ("value-undecodable", 0)


# Good and broken pieces of text; most of what they make is nearly JSON.
EVERYTHING = pa.schema(
    [
        ("i", pa.int64()),
        ("h", pa.int8()),
        ("f", pa.float64()),
        ("g", pa.float32()),
        ("s", pa.string()),
        ("b", pa.binary()),
        ("o", pa.bool_()),
        ("d", pa.date32()),
        ("t", UTC),
        ("n", NTZ),
        ("m", pa.timestamp("ms", "Europe/Berlin")),
        ("c", pa.decimal128(10, 2)),
        ("k", pa.decimal128(38, 6)),
        ("l", pa.list_(pa.float64())),
        ("r", pa.struct([("x", pa.int64()), ("y", pa.list_(pa.struct([("z", pa.decimal128(10, 2))])))])),
    ]
)
NEEDY = pa.schema([pa.field(field.name, field.type, nullable=field.name not in "it") for field in EVERYTHING])
WORDS = sorted(
    {text for _, text, _ in GOOD}
    | {text for _, text, _ in BAD}
    | {
        "Inf",
        "-Inf",
        "-NaN",
        "NaN",
        "null",
        "-0.0",
        "1E5",
        "0e999",
        "0.00001e312",
        ".5",
        "5.",
        '"+1"',
        '".5"',
        '"5."',
        '" 1"',
    }
    | {
        '"0000-01-01T00:00:00Z"',
        '"2026-01-01T10+02"',
        '"2026-01-01T10Z"',
        '"2026-01-01T10:00:00.1-23:59"',
        '""',
        "1e400",
    }
    | {'"' + "9" * 60 + '.00"', "9" * 60, "0." + "0" * 60, '"' + "0" * 60 + '1"', "1e-60", '"1e-60"', '"0000-02-29"'}
    | {'{"x":1,"y":[{"z":"1.5"},null,{"z":1.555}]}', '{"x":null,"y":[{"z":1}]}', "[1e308,2]", "[1e309]", "[null,NaN]"}
)
numbers = st.from_regex(r"-?(0|[1-9][0-9]{0,30})(\.[0-9]{1,30})?([eE][+-]?[0-9]{1,3})?", fullmatch=True)
moments = st.from_regex(
    r'"[0-9]{4}-[01][0-9]-[0-3][0-9]'
    r'([T ][0-2][0-9](:[0-6][0-9](:[0-6][0-9](\.[0-9]{1,9})?)?)?(Z|[+-][0-2][0-9](:?[0-6][0-9])?)?)?"',
    fullmatch=True,
)
strings = st.text(max_size=6).flatmap(
    lambda text: st.sampled_from([json.dumps(text), json.dumps(text, ensure_ascii=False)])
)
amounts = numbers | numbers.map('"{}"'.format)
pieces = st.sampled_from(WORDS) | amounts | moments | strings
fitting = (
    dict.fromkeys("ihfg", numbers) | dict.fromkeys("dtnm", moments) | dict.fromkeys("ck", amounts) | {"s": strings}
)
keys = st.sampled_from([*EVERYTHING.names, *fitting, "x", "\\u0069"])
fields = keys.flatmap(lambda key: (fitting.get(key, pieces) | pieces).map(lambda piece: f'"{key}":{piece}'))
objects = st.lists(fields, max_size=3).map(lambda found: ("{" + ",".join(found) + "}").encode("utf-8", "surrogatepass"))
SPLICES = [
    *(b"", b" ", b"\n", b"\r", b"}", b"{", b"[", b"]", b",", b'"', b"\\", b"null"),
    *(b" null ", b"{}", b"\xff", b"\x00", b"\\ud800"),
]


@st.composite
def values(draw: st.DrawFn) -> bytes:
    """Return an object, or what is left of it when something has been pushed in."""
    text = draw(objects)
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 2]))):
        place, length = draw(st.integers(0, len(text))), draw(st.integers(0, 3))
        text = text[:place] + draw(st.sampled_from(SPLICES)) + text[place + length :]
    return text


def by_the_rules(schema: Any, found: list[bytes | None]) -> Decoded:
    decoder = JsonDecoder(schema)
    decoder._bulk = None
    return decoder.decode(found)


@settings(max_examples=examples(400), deadline=None)
@given(found=st.lists(values(), min_size=1, max_size=3), schema=st.sampled_from([EVERYTHING, NEEDY]))
@example(found=[b"{} null", b"{}"], schema=EVERYTHING)
@example(found=[b'{"x":"\xed\xb0\x80"}'], schema=EVERYTHING)
def test_the_quick_way_says_what_the_rules_say_or_nothing(found: list[bytes], schema: Any) -> None:
    read = _ArrowJsonReader(schema).read(found)
    if read is not None:
        carefully = by_the_rules(schema, list(found))
        assert carefully.bad == ()
        assert exactly(read) == exactly(carefully.batch)


@settings(max_examples=examples(200), deadline=None)
@given(found=st.lists(st.none() | values() | st.just(b'{"i":1,"t":"2026-01-01T00:00:00Z"}'), max_size=60))
def test_both_ways_give_the_same_rows_and_the_same_bad_values(found: list[bytes | None]) -> None:
    decoded, carefully = JsonDecoder(NEEDY).decode(found), by_the_rules(NEEDY, found)
    assert decoded.bad == carefully.bad
    assert exactly(decoded.batch) == exactly(carefully.batch)
    assert decoded.batch.schema == carefully.batch.schema
    assert decoded.batch.num_rows == len(found)


@settings(max_examples=examples(200), deadline=None)
@given(batch=batches())
def test_what_was_written_is_read_exactly_by_the_quick_way_too(batch: Any) -> None:
    decoder = JsonDecoder(batch.schema)
    lines = encode_json(batch)
    if decoder._bulk is not None and lines:
        read = decoder._bulk.read(lines)
        assert read is None or exactly(read) == exactly(batch)
