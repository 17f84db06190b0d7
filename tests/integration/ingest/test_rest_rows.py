"""Records of JSON as rows of Arrow: which columns there are, and what fits them."""

import json
import random
from datetime import UTC, date, datetime
from decimal import Decimal
from secrets import token_hex
from typing import Any

import pyarrow as pa
import pytest

from floodmark.errors import RestAnswerInvalid, SourceValueUnfit
from floodmark.ingest import Pagination, RestSource
from floodmark.ingest.extract.rest.values import (
    RecordTimes,
    common_columns,
    common_type,
    infer_columns,
    infer_type,
    to_array,
    without_null_types,
)
from support.ingest.rest_reading import part_of, row_of, rows_of, table_of
from support.ingest.rest_server import Asked, Says, rest_service
from support.processes import run

INT, FLOAT, TEXT, BOOL = pa.int64(), pa.float64(), pa.string(), pa.bool_()
BY_PAGE = Pagination(by="page", param="p")


def read_pages(*pages: list[Any], schema: pa.Schema | None = None, zone: str = "UTC", **more: Any) -> pa.Table:
    """Return what a service with these pages comes to."""
    row = row_of(**more.pop("unit", {}))

    def script(asked: Asked) -> Any:
        at = int(asked.query["p"]) - 1
        return Says(json.dumps(pages[at]).encode()) if at < len(pages) else []

    with rest_service(script) as service:
        return table_of(RestSource(url=service.url, pagination=BY_PAGE, **more), row, schema=schema, zone=zone)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1, 2], INT),
        ([1, 2.5], FLOAT),
        ([None, 1], INT),
        ([True, False], BOOL),
        ([True, 1], TEXT),
        ([1.5, True], TEXT),
        (["2020-01-01T00:00:00Z"], TEXT),
        ([1, "a"], TEXT),
        ([2**63 - 1, -(2**63)], INT),
        ([2**63], TEXT),
        ([-(2**63) - 1], TEXT),
        ([2**70, 0.5], TEXT),
        ([[1], [2.5], None], pa.list_(FLOAT)),
        ([[1], ["a"]], pa.list_(TEXT)),
        ([{"a": 1}, {"b": "x", "a": None}], pa.struct([("a", INT), ("b", TEXT)])),
        ([{"a": 1}, 5], TEXT),
        ([{}, 5], TEXT),
        ([[], 5], TEXT),
        ([[], {}], TEXT),
        (
            [{"a": {}}, {"a": {"b": [None, {"c": 1}]}}],
            pa.struct([("a", pa.struct([("b", pa.list_(pa.struct([("c", INT)])))]))]),
        ),
        ([None], None),
        ([{}], None),
        ([[], [None]], None),
        ([{"a": None, "b": []}], None),
        ([{"a": None, "b": 1}], pa.struct([("b", INT)])),
    ],
)
def test_a_column_holds_all_its_values_however_they_are_divided(
    values: list[Any], expected: pa.DataType | None
) -> None:
    assert without_null_types(infer_type(values)) == expected
    united_one_by_one = pa.null()
    for value in values:
        united_one_by_one = common_type(united_one_by_one, infer_type([value]))
    assert without_null_types(united_one_by_one) == expected


def test_columns_are_the_same_in_whatever_order_and_pages_records_come() -> None:
    chance = random.Random(7)
    leaves: list[Any] = [None, 1, 2**80, 1.5, "x", True, [], {}, [1], ["x"], {"a": 1}, {"a": "x"}, {"b": None}]
    for _ in range(300):
        records = [{name: chance.choice(leaves) for name in "pq"} for _ in range(chance.randint(1, 6))]
        whole = {name: kind and _sorted(kind) for name, kind in _pruned(infer_columns(records)).items()}
        chance.shuffle(records)
        found: dict[str, pa.DataType] = {}
        while records:
            cut = chance.randint(1, len(records))
            found = common_columns(found, infer_columns(records[:cut]))
            records = records[cut:]
        assert {name: kind and _sorted(kind) for name, kind in _pruned(found).items()} == whole


def _pruned(columns: dict[str, pa.DataType]) -> dict[str, pa.DataType | None]:
    return {name: without_null_types(columns[name]) for name in sorted(columns)}


def _sorted(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct(sorted((field.name, _sorted(field.type)) for field in kind))
    return kind


def test_all_batches_have_the_columns_of_the_whole_cell() -> None:
    table = read_pages(
        [{"id": 1, "n": 1, "x": None}], [{"id": 2, "n": 2.5, "of": {"a": [1]}}], [{"id": "c", "late": True, "n": None}]
    )
    assert table.schema == pa.schema(
        [("id", TEXT), ("n", FLOAT), ("of", pa.struct([("a", pa.list_(INT))])), ("late", BOOL)]
    )
    assert table.to_pylist() == [
        {"id": "1", "n": 1.0, "of": None, "late": None},
        {"id": "2", "n": 2.5, "of": {"a": [1]}, "late": None},
        {"id": "c", "n": None, "of": None, "late": True},
    ]


def test_what_is_no_text_in_a_column_of_texts_is_as_json_writes_it() -> None:
    values = [1, "a", True, None, {"b": [1, None], "ä": "x"}, 1.5, 2**70, []]
    table = read_pages([{"v": value} for value in values])
    assert table["v"].to_pylist() == [
        "1", "a", "true", None, '{"b": [1, null], "ä": "x"}', "1.5", "1180591620717411303424", "[]",
    ]  # fmt: skip


def test_a_whole_number_that_no_double_has_is_refused_and_not_rounded() -> None:
    with pytest.raises(SourceValueUnfit, match="'n' of a record is 9007199254740993, which is no double") as caught:
        read_pages([{"n": 2**53 + 1}], [{"n": 0.5}])
    assert caught.value.fields == {"column": "n", "type": "double"}


@pytest.mark.parametrize(("records", "sizes"), [(3, [3]), (8192, [8192]), (20_000, [8192, 8192, 3616])])
def test_large_pages_become_smaller_batches(records: int, sizes: list[int]) -> None:
    with rest_service(lambda asked: [{"id": n} for n in range(records)]) as service:
        batches = list(part_of(RestSource(url=service.url)).read())
    assert [batch.num_rows for batch in batches] == sizes
    assert [row["id"] for batch in batches for row in batch.to_pylist()] == list(range(records))


def test_small_pages_become_one_batch() -> None:
    def script(asked: Asked) -> Any:
        return [{"id": int(asked.query["p"])}] if int(asked.query["p"]) < 5 else []

    with rest_service(script) as service:
        (batch,) = part_of(RestSource(url=service.url, pagination=BY_PAGE)).read()
    assert batch.to_pylist() == [{"id": 1}, {"id": 2}, {"id": 3}, {"id": 4}]


def test_no_records_are_one_empty_batch_with_the_columns_that_are_known() -> None:
    with rest_service(lambda asked: []) as service:
        source = RestSource(url=service.url)
        (batch,) = part_of(source, row_of(id=7, shop="eu"), schema=pa.schema([("a", pa.date32())])).read()
        assert (batch.num_rows, batch.schema) == (0, pa.schema([("a", pa.date32()), ("id", INT), ("shop", TEXT)]))
        (batch,) = part_of(source).read()
        assert (batch.num_rows, batch.num_columns) == (0, 0)


# Units


def test_fields_of_the_unit_are_added_where_records_lack_them() -> None:
    table = read_pages([{"v": 1, "shop": "own", "area": None}], unit={"id": 7, "shop": "eu", "area": "x", "no": None})
    assert table.to_pylist() == [{"v": 1, "shop": "own", "id": 7, "area": "x"}]


def test_a_field_of_the_unit_that_the_schema_names_gets_its_type() -> None:
    table = read_pages([{"v": 1}], unit={"id": "7"}, schema=pa.schema([("id", pa.int32()), ("v", INT)]))
    assert table.schema == pa.schema([("id", pa.int32()), ("v", INT)])
    assert table.to_pylist() == [{"id": 7, "v": 1}]


# With a schema


def test_columns_of_the_schema_come_first_and_others_are_kept() -> None:
    schema = pa.schema([("b", FLOAT), ("none", TEXT), ("of", pa.struct([("x", pa.int32())]))])
    table = read_pages([{"a": 1, "b": 2, "of": {"y": "n", "x": 5}}], schema=schema)
    assert table.schema == pa.schema(
        [("b", FLOAT), ("none", TEXT), ("of", pa.struct([("x", pa.int32()), ("y", TEXT)])), ("a", INT)]
    )
    assert table.to_pylist() == [{"b": 2.0, "none": None, "of": {"x": 5, "y": "n"}, "a": 1}]


def us(*moment: int) -> datetime:
    return datetime(*moment, tzinfo=UTC)  # type: ignore[misc, arg-type]


MOMENT, WALL = pa.timestamp("us", "UTC"), pa.timestamp("us")


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (pa.int32(), "12", 12),
        (pa.int32(), 12.0, 12),
        (FLOAT, 3, 3.0),
        (FLOAT, "1.5", 1.5),
        (pa.float32(), 2, 2.0),
        (BOOL, "true", True),
        (TEXT, 7, "7"),
        (TEXT, {"a": 1}, '{"a": 1}'),
        (pa.decimal128(10, 2), "12.50", Decimal("12.50")),
        (pa.decimal128(10, 2), 12.5, Decimal("12.50")),
        (pa.decimal128(10, 2), 12, Decimal("12.00")),
        (pa.date32(), "2020-02-29", date(2020, 2, 29)),
        (pa.binary(), "aGk=", b"hi"),
        (MOMENT, "2020-01-01T00:00:00Z", us(2020, 1, 1)),
        (MOMENT, "2020-01-01 01:00:00.5+01:00", us(2020, 1, 1, 0, 0, 0, 500_000)),
        (MOMENT, "2020-01-01T00:00:00.123456789Z", us(2020, 1, 1, 0, 0, 0, 123_456)),
        (MOMENT, "2020-07-01T02:00:00", us(2020, 7, 1)),  # of the source's zone, Berlin
        (MOMENT, "2020-07-01", us(2020, 6, 30, 22)),
        (WALL, "2020-07-01T02:00:00", datetime(2020, 7, 1, 2)),  # noqa: DTZ001
        (WALL, "2020-07-01T00:00:00Z", datetime(2020, 7, 1, 2)),  # noqa: DTZ001
        (pa.timestamp("ms", "UTC"), "2020-01-01T00:00:00.5", us(2019, 12, 31, 23, 0, 0, 500_000)),
        (pa.list_(pa.int32()), [1, None, "2"], [1, None, 2]),
        (pa.map_(TEXT, pa.int32()), {"a": 1, "b": "2"}, [("a", 1), ("b", 2)]),
    ],
)
def test_a_value_becomes_one_of_its_column(kind: pa.DataType, value: Any, expected: Any) -> None:
    records = [{"v": value}, {"v": None}, {}]
    table = read_pages(records, schema=pa.schema([("v", kind)]), zone="Europe/Berlin")
    assert (table.schema.field("v").type, table["v"].to_pylist()) == (kind, [expected, None, None])


@pytest.mark.parametrize(
    ("time_format", "value", "expected"),
    [
        ("epoch-seconds", 60, us(1970, 1, 1, 0, 1)),
        ("epoch-seconds", 0.000001, us(1970, 1, 1, 0, 0, 0, 1)),
        ("epoch-millis", "1510110800000", us(2017, 11, 8, 3, 13, 20)),
        ("%d.%m.%Y", "01.02.2020", us(2020, 2, 1)),
        ("%Y%m%d", "20200201", us(2020, 2, 1)),
    ],
)
def test_times_may_be_written_as_those_of_the_request(time_format: str, value: Any, expected: datetime) -> None:
    table = read_pages([{"v": value}], schema=pa.schema([("v", MOMENT)]), time_format=time_format)
    assert table["v"].to_pylist() == [expected]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.int32(), 1.5),
        (pa.int32(), True),
        (pa.int32(), 2**31),
        (pa.int32(), "1_0"),
        (pa.int32(), " 1"),
        (pa.int32(), {}),
        (INT, 2**63),
        (FLOAT, True),
        (FLOAT, "x"),
        (FLOAT, 2**53 + 1),
        (BOOL, 1),
        (BOOL, "yes"),
        (pa.decimal128(10, 2), 1.555),
        (pa.decimal128(4, 2), 100),
        (pa.decimal128(4, 2), "NaN"),
        (pa.decimal128(4, 2), True),
        (pa.date32(), "2020-02-30"),
        (pa.date32(), "2020-02-01T00:00:00Z"),
        (pa.date32(), 5),
        (pa.binary(), "no base64!"),
        (MOMENT, "yesterday"),
        (MOMENT, 5),
        (MOMENT, "1510110800000"),
        (MOMENT, True),
        (pa.timestamp("ms", "UTC"), "2020-01-01T00:00:00.0005Z"),
        (pa.list_(INT), "x"),
        (pa.list_(INT), ["x"]),
        (pa.struct([("a", INT)]), [1]),
        (pa.struct([("a", INT)]), {"a": "x"}),
        (pa.map_(TEXT, INT), {"a": "x"}),
        (TEXT, "\ud800"),
    ],
)
def test_a_value_that_does_not_fit_fails_with_the_field_named(kind: pa.DataType, value: Any) -> None:
    with pytest.raises(SourceValueUnfit, match=r"The field 'v.*' of a record is .*, which is no") as caught:
        read_pages([{"v": None}, {"v": value}], schema=pa.schema([("v", kind)]))
    assert str(caught.value.fields["column"])[0] == "v"


def test_a_nested_field_is_named_with_its_path() -> None:
    kind = pa.struct([("b", pa.list_(pa.struct([("c", INT)])))])
    with pytest.raises(SourceValueUnfit) as caught:
        to_array([{"b": [{"c": 1}, {"c": "x"}]}], kind, "a", RecordTimes())
    assert caught.value.fields["column"] == "a.b[].c"


def test_null_where_the_schema_says_not_null_is_refused() -> None:
    with pytest.raises(SourceValueUnfit, match="'v' of a record is null or missing"):
        read_pages([{"v": 1}, {"w": 1}], schema=pa.schema([pa.field("v", INT, nullable=False)]))


def test_decimals_keep_all_their_digits() -> None:
    text = "12345678901234567890.123456789"
    with rest_service(lambda asked: Says(f'[{{"v": {text}, "w": 1.5, "x": [0.5, "a"]}}]'.encode())) as service:
        schema = pa.schema([("v", pa.decimal128(38, 9))])
        rows = rows_of(RestSource(url=service.url), schema=schema)
    assert rows == [{"v": Decimal(text), "w": 1.5, "x": ["0.5", "a"]}]


def test_names_that_are_no_unicode_are_refused() -> None:
    with (
        rest_service(lambda asked: Says(b'[{"\\ud800": 1}]')) as service,
        pytest.raises(RestAnswerInvalid, match="names in a record"),
    ):
        rows_of(RestSource(url=service.url))


def test_a_schema_of_texts_takes_everything() -> None:
    values: list[Any] = [1, 1.5, True, None, "x", [], {}]
    table = read_pages([{"v": value} for value in values], schema=pa.schema([("v", TEXT)]))
    assert table["v"].to_pylist() == ["1", "1.5", "true", None, "x", "[]", "{}"]


MEASURE = """
import resource
from support.ingest.rest_reading import part_of
from floodmark.ingest import Pagination, RestSource
for cell in ("small", "large"):
    source = RestSource(url={url!r} + cell, records="items", pagination=Pagination(by="page", param="p"))
    print(sum(batch.num_rows for batch in part_of(source).read()))
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def test_memory_holds_a_page_and_not_the_cell() -> None:
    page = json.dumps({"items": [{"id": n, "name": f"name {n}", "text": token_hex(400)} for n in range(1000)]}).encode()

    def script(asked: Asked) -> Any:
        pages = 20 if asked.path == "/small" else 120
        return Says(page) if int(asked.query["p"]) <= pages else {"items": []}

    with rest_service(script) as service:
        code, printed = run("-c", MEASURE.format(url=f"{service.url}/"))
    assert code == 0, printed
    small, before, large, after = map(int, printed.split())
    assert (small, large) == (20_000, 120_000)
    assert after - before < 25_000  # kilobytes; the pages between are 80 MB
