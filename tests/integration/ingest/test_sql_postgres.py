"""What is read from a real PostgreSQL: which rows, and as which types."""

import pickle
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import pairwise
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from floodmark.errors import InvalidOption, SourceAway, SourceFailed, SourceValueUnfit, WatermarkMissing
from floodmark.ingest import Secret, SqlSource
from floodmark.ingest.extract.sql.split import SqlSplit
from floodmark.testing import PostgresServer
from support.ingest.sql_reading import HOSTILE_TEXTS, between, clock, column_of, parts_of, postgres_run, table_of

BERLIN = "Europe/Berlin"


@pytest.fixture(scope="module")
def database(postgres: PostgresServer) -> str:
    return postgres.new_database()


@pytest.fixture(params=["adbc", "psycopg"])
def url(database: str, request: pytest.FixtureRequest) -> Iterator[str]:
    """Give the database twice: as it is read by ADBC, and by SQLAlchemy. Its tables are gone afterwards."""
    yield database if request.param == "adbc" else database.replace("postgresql:", "postgresql+psycopg:", 1)
    postgres_run(database, "DROP SCHEMA public CASCADE", "CREATE SCHEMA public", "DROP SCHEMA IF EXISTS shop CASCADE")


def source_of(url: str, **given: Any) -> SqlSource:
    asked: dict[str, Any] = {"url": url, "watermark": "at"} | given
    return SqlSource(**(asked if "query" in asked else {"table": "t"} | asked))


def made(url: str, *statements: str) -> None:
    postgres_run(url.replace("+psycopg", ""), *statements)


ALL_TYPES = {
    "smallint": ("7", pa.int16(), 7),
    "integer": ("7", pa.int32(), 7),
    "bigint": ("9223372036854775807", pa.int64(), 2**63 - 1),
    "oid": ("4000000000", pa.int64(), 4_000_000_000),
    "real": ("0.5", pa.float32(), 0.5),
    "double precision": ("0.1", pa.float64(), 0.1),
    "numeric(10, 2)": ("12.30", pa.decimal128(10, 2), Decimal("12.30")),
    "numeric(38, 0)": ("9" * 38, pa.decimal128(38, 0), Decimal("9" * 38)),
    "numeric(3, -2)": ("12345", pa.decimal128(5, 0), Decimal(12300)),
    "numeric(2, 4)": ("0.0012", pa.decimal128(4, 4), Decimal("0.0012")),
    "numeric(39, 1)": ("1.5", pa.string(), "1.5"),
    "numeric": ("'NaN'", pa.string(), "NaN"),
    "money": ("-3.5", pa.decimal128(19, 2), Decimal("-3.50")),
    "text": ("'ä'", pa.string(), "ä"),
    "varchar(5)": ("'a'", pa.string(), "a"),
    "char(3)": ("'a'", pa.string(), "a  "),
    "mood": ("'sad'", pa.string(), "sad"),
    "boolean": ("true", pa.bool_(), True),
    "bytea": (r"'\x00ff'", pa.binary(), b"\x00\xff"),
    "date": ("'2020-01-02'", pa.date32(), date(2020, 1, 2)),
    "time": ("'10:20:30.5'", pa.string(), "10:20:30.5"),
    "timetz": ("'10:20+02'", pa.string(), "10:20:00+02"),
    "timestamp": ("'2020-01-02 10:20:30.123456'", pa.timestamp("us"), clock("2020-01-02T10:20:30.123456")),
    "timestamptz": ("'2020-01-02 10:20+02'", pa.timestamp("us", "UTC"), datetime(2020, 1, 2, 8, 20, tzinfo=UTC)),
    "interval": ("'1 mon 2 days'", pa.string(), "1 mon 2 days"),
    "json": ("""'{"a": 1}'""", pa.string(), '{"a": 1}'),
    "jsonb": ("""'{"a":1}'""", pa.string(), '{"a": 1}'),
    "uuid": ("'00000000-0000-0000-0000-00000000000a'", pa.string(), "00000000-0000-0000-0000-00000000000a"),
    "inet": ("'1.2.3.4'", pa.string(), "1.2.3.4/32"),
    "int4range": ("'[1,2]'", pa.string(), "[1,3)"),
    "bit(3)": ("'101'", pa.string(), "101"),
    "point": ("'(1,2)'", pa.string(), "(1,2)"),
    "pair": ("'(1,x)'", pa.string(), "(1,x)"),
    "small": ("5", pa.int32(), 5),
    "integer[]": ("'{1,null}'", pa.list_(pa.int32()), [1, None]),
    "text[]": ("'{a,b}'", pa.list_(pa.string()), ["a", "b"]),
    "timestamptz[]": ("'{2020-01-01Z}'", pa.list_(pa.timestamp("us", "UTC")), [datetime(2020, 1, 1, tzinfo=UTC)]),
    "numeric[]": ("'{1.50}'", pa.list_(pa.string()), ["1.50"]),
    "uuid[]": ("'{}'", pa.list_(pa.string()), []),
    "mood[]": ("'{sad}'", pa.list_(pa.string()), ["sad"]),
}


def all_types(url: str) -> None:
    columns = ", ".join(f"c{n} {kind}" for n, kind in enumerate(ALL_TYPES))
    made(
        url,
        "CREATE TYPE mood AS ENUM ('sad', 'glad')",
        "CREATE DOMAIN small AS integer CHECK (VALUE < 10)",
        "CREATE TYPE pair AS (a int, b text)",
        f"CREATE TABLE t (at timestamp, {columns})",
    )


def test_every_type_arrives_as_one_that_spark_and_delta_know(url: str) -> None:
    all_types(url)
    values = ", ".join(value for value, _, _ in ALL_TYPES.values())
    made(url, f"INSERT INTO t VALUES ('2020-01-01', {values})", "INSERT INTO t (at) VALUES ('2020-01-02')")
    found = table_of(parts_of(source_of(url)))
    types = {kind: found.schema.types[n + 1] for n, kind in enumerate(ALL_TYPES)}
    assert types == {kind: arrow for kind, (_, arrow, _) in ALL_TYPES.items()}
    first, second = sorted(found.to_pylist(), key=lambda row: row["at"])
    assert {kind: first[f"c{n}"] for n, kind in enumerate(ALL_TYPES)} == {
        kind: value for kind, (_, _, value) in ALL_TYPES.items()
    }
    assert [value for name, value in second.items() if name != "at"] == [None] * len(ALL_TYPES)


def test_the_schema_is_the_same_where_there_are_no_rows(url: str) -> None:
    all_types(url)
    (part,) = parts_of(source_of(url))
    (batch,) = part.read()
    assert batch.num_rows == 0
    assert batch.schema.types[1:] == [arrow for _, arrow, _ in ALL_TYPES.values()]


def test_an_hour_that_comes_twice_is_read_once_by_hourly_ranges(url: str) -> None:
    made(
        url,
        "CREATE TABLE t (at timestamp)",
        "INSERT INTO t SELECT timestamp '2020-10-24 22:00' + n * interval '15 minutes' FROM generate_series(0, 40) n",
    )
    source = source_of(url, zone=BERLIN)
    seen = []
    for hour in range(12):
        span = between(f"2020-10-24T{20 + hour:02}:00+00:00", f"2020-10-24T{21 + hour:02}:00+00:00") if hour < 3 else (
            between(f"2020-10-25T{hour - 4:02}:00+00:00", f"2020-10-25T{hour - 3:02}:00+00:00") if hour > 3 else
            between("2020-10-24T23:00+00:00", "2020-10-25T00:00+00:00")
        )  # fmt: skip
        seen.append(column_of(source, "at", span, zone="UTC"))
    assert [len(hour) for hour in seen] == [4, 4, 4, 4, 0, 4, 4, 4, 4, 4, 4, 1]
    assert seen[5][0] == clock("2020-10-25T02:00")
    assert len({at for hour in seen for at in hour}) == 41


def test_the_zone_of_the_source_counts_more_than_that_of_the_job(url: str) -> None:
    made(url, "CREATE TABLE t (at timestamp)", "INSERT INTO t VALUES ('2020-01-01 00:30'), ('2020-01-01 23:30')")
    day = between("2020-01-01", "2020-01-02")
    assert column_of(source_of(url), "at", day) == [clock("2020-01-01T00:30"), clock("2020-01-01T23:30")]
    assert column_of(source_of(url, zone=BERLIN), "at", day) == [clock("2020-01-01T23:30")]
    assert column_of(source_of(url), "at", day, zone=BERLIN) == [clock("2020-01-01T23:30")]


@pytest.mark.parametrize(
    ("kind", "given", "values"),
    [
        ("timestamptz", {"watermark_type": "timestamptz"}, "timestamptz '2020-01-01 00:00Z' + n * interval '7 hours'"),
        ("date", {"watermark_type": "date"}, "date '2020-01-01' + n / 4"),
        ("bigint", {"watermark_type": "epoch-seconds"}, "1577836800 + n * 25200"),
        ("bigint", {"watermark_type": "epoch-millis"}, "1577836800000 + n::bigint * 25200000"),
        ("numeric", {"watermark_type": "epoch-micros"}, "1577836800000000 + n::bigint * 25200000000"),
        (
            "text",
            {"watermark_type": "text", "pattern": "%Y-%m-%d"},
            "to_char(date '2020-01-01' + n / 4, 'YYYY-MM-DD')",
        ),
    ],
)
def test_touching_ranges_read_each_row_once_whatever_the_type(
    url: str, kind: str, given: dict[str, Any], values: str
) -> None:
    made(url, f"CREATE TABLE t (n int, at {kind})", f"INSERT INTO t SELECT n, {values} FROM generate_series(0, 19) n")
    source = source_of(url, zone="America/New_York", splits=7, **given)
    edges = ["2019-12-31", "2020-01-02T03:20", "2020-01-02T03:20:00.5", "2020-01-03", "2020-01-08"]
    found = [n for lo, hi in pairwise(edges) for n in table_of(parts_of(source, between(lo, hi)))["n"].to_pylist()]
    assert sorted(found) == list(range(20))


def test_a_type_that_a_session_would_convert_by_its_own_zone_is_refused(url: str) -> None:
    made(url, "CREATE TABLE t (at timestamptz)")
    with pytest.raises(InvalidOption, match=r'Write watermark_type = "timestamptz"'):
        table_of(parts_of(source_of(url)))


def test_a_row_without_a_watermark_fails_its_own_unit_alone(url: str) -> None:
    made(
        url,
        "CREATE TABLE t (id int, region text, at timestamp)",
        "INSERT INTO t VALUES (1, 'eu', '2020-01-01'), (2, 'us', NULL), (3, 'us', '2020-01-01')",
    )
    assert column_of(source_of(url), "id", unit={"region": "eu"}) == [1]
    with pytest.raises(WatermarkMissing, match="region=us") as caught:
        next(parts_of(source_of(url), unit={"region": "us"})[0].read())
    assert caught.value.fields == {"column": "at", "unit": '{"region":"us"}'}


@pytest.mark.parametrize(
    ("given", "with_nulls", "read"),
    [
        ({"nulls": "skip"}, False, [1]),
        ({"nulls": "skip"}, True, [1]),
        ({"nulls": "read"}, False, [1]),
        ({"nulls": "read"}, True, [1, 2, 3]),
        ({"nulls": "read", "fallback": "made"}, True, [1, 2, 3]),
        ({"nulls": "skip", "fallback": "made"}, False, [1, 2]),
    ],
)
def test_rows_without_a_watermark_are_read_as_the_source_says(
    url: str, given: dict[str, Any], with_nulls: bool, read: list[int]
) -> None:
    made(
        url,
        "CREATE TABLE t (id int, at timestamp, made timestamp)",
        "INSERT INTO t VALUES (1, '2020-01-01', NULL), (2, NULL, '2020-01-01'), (3, NULL, NULL)",
    )
    assert column_of(source_of(url, **given), "id", with_nulls=with_nulls) == read


def test_a_fallback_that_is_null_too_fails_the_cell(url: str) -> None:
    made(url, "CREATE TABLE t (at timestamp, made timestamp)", "INSERT INTO t VALUES (NULL, '2020-01-01')")
    source = source_of(url, fallback="made")
    assert len(column_of(source, "made")) == 1
    made(url, "INSERT INTO t VALUES (NULL, NULL)")
    with pytest.raises(WatermarkMissing, match="and no fallback"):
        table_of(parts_of(source))


def test_names_and_values_with_quotes_and_signs_of_every_kind_are_taken_as_they_are(url: str) -> None:
    made(
        url,
        "CREATE SCHEMA shop",
        'CREATE TABLE shop."Order ""lines"" 100%" ("Id" int, "my:unit %s" text, "At""" timestamp)',
        """INSERT INTO shop."Order ""lines"" 100%" VALUES (1, 'it''s \\ 5%:x', '2020-01-01'), (2, 'b', '2020-01-01')""",
    )
    source = source_of(
        url, table='shop.Order "lines" 100%', watermark='At"', units={"u": "my:unit %s"}, columns=("Id",)
    )
    found = table_of(parts_of(source, unit={"u": "it's \\ 5%:x"}))
    assert (found.column_names, found.to_pylist()) == (["Id"], [{"Id": 1}])


@pytest.mark.parametrize(
    ("kind", "value", "read"),
    [("int", 7, [1]), ("int", "7", [1]), ("boolean", True, [1]), ("float8", 0.5, [1]), ("text", None, [2])],
)
def test_a_unit_is_compared_by_its_value(url: str, kind: str, value: Any, read: list[int]) -> None:
    made(url, f"CREATE TABLE t (id int, u {kind}, at timestamp)")
    first = {"int": "7", "boolean": "true", "float8": "0.5", "text": "'a'"}[kind]
    made(url, f"INSERT INTO t VALUES (1, {first}, '2020-01-01'), (2, NULL, '2020-01-01')")
    assert column_of(source_of(url), "id", unit={"u": value}) == read


def test_a_query_is_read_like_a_table_with_its_conditions_outside(url: str) -> None:
    made(
        url,
        "CREATE TABLE a (id int, at timestamp, b int)",
        "CREATE TABLE b (id int, name text)",
        "INSERT INTO b VALUES (1, 'x:y 5%'), (2, 'z')",
        "INSERT INTO a VALUES (1, '2020-01-01', 1), (2, '2020-01-01', 2), (3, '2020-01-05', 1)",
    )
    query = "WITH c AS (SELECT a.id, at, name FROM a JOIN b ON b.id = a.b) SELECT * FROM c -- all of it"
    source = source_of(url, query=query, where="name LIKE '%:%'", columns=("name", "id"))
    found = table_of(parts_of(source, between("2020-01-01", "2020-01-02")))
    assert found.to_pylist() == [{"name": "x:y 5%", "id": 1}]


def test_a_query_that_names_its_range_and_unit_places_them_itself(url: str) -> None:
    made(url, "CREATE TABLE a (id int, at timestamp)", "INSERT INTO a VALUES (1, '2020-01-01'), (2, '2020-01-02')")
    query = (
        "SELECT count(*) AS many, {{unit.id}} AS who FROM a WHERE at >= {{range.from}} AND at < {{range.to}}"
        " AND id = {{unit.id}}"
    )
    source = source_of(url, query=query, watermark=None)
    found = table_of(parts_of(source, between("2020-01-01", "2020-01-02"), {"id": 1}))
    assert found.to_pylist() == [{"many": 1, "who": 1}]


@pytest.mark.parametrize("setting", ["on", "off"])
@pytest.mark.parametrize("given", [{}, {"query": "SELECT *, {{unit.shop}} AS of FROM t WHERE shop = {{unit.shop}}"}])
def test_a_unit_reads_its_own_rows_whatever_stands_in_it(
    url: str, given: dict[str, Any], setting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGOPTIONS", f"-c standard_conforming_strings={setting}")
    made(url, "CREATE TABLE t (at timestamp DEFAULT '2020-01-01', shop text, n int)")
    with psycopg.connect(url.replace("+psycopg", "")) as connection, connection.cursor() as cursor:
        cursor.executemany(
            "INSERT INTO t (shop, n) VALUES (%s, %s)", [(text, n) for n, text in enumerate(HOSTILE_TEXTS)]
        )
    for number, text in enumerate(HOSTILE_TEXTS):
        assert column_of(source_of(url, **given), "n", unit={"shop": text}) == [number], text


def test_a_unit_does_not_leave_its_quotes_by_another_encoding(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made(url, "CREATE TABLE t (at timestamp, shop text)", "INSERT INTO t VALUES ('2020-01-01', 'secret')")
    # Read as SJIS, the last byte of the letter and the first of two backslashes are one character.
    monkeypatch.setenv("PGCLIENTENCODING", "SJIS")
    assert column_of(source_of(url), "shop", unit={"shop": "\u0e01\\' OR shop = 'secret' -- "}) == []


def test_a_number_in_a_unit_s_text_finds_a_column_of_numbers(url: str) -> None:
    made(url, "CREATE TABLE t (at timestamp, id int)", "INSERT INTO t VALUES ('2020-01-01', 7), ('2020-01-01', 8)")
    assert column_of(source_of(url), "id", unit={"id": "7"}) == [7]


def test_a_time_that_no_calendar_has_fails_the_cell_and_its_column_is_named(url: str) -> None:
    made(url, "CREATE TABLE t (at timestamp, until timestamp)", "INSERT INTO t VALUES ('2020-01-01', 'infinity')")
    # The driver under SQLAlchemy refuses it first, and does not say where.
    kinds = SourceFailed if "psycopg" in url else SourceValueUnfit
    with pytest.raises(kinds, match=r"infinity|too large") as caught:
        table_of(parts_of(source_of(url)))
    assert "psycopg" in url or caught.value.fields == {"column": "until"}


def test_a_number_that_is_none_fails_the_cell_and_its_column_is_named(url: str) -> None:
    made(url, "CREATE TABLE t (at timestamp, n numeric(5, 2))", "INSERT INTO t VALUES ('2020-01-01', 'NaN')")
    with pytest.raises(SourceValueUnfit, match="The column 'n'"):
        table_of(parts_of(source_of(url)))


def test_nothing_can_be_changed_by_a_query(url: str) -> None:
    query = "SELECT now()::timestamp AS at, lo_create(0) AS made"
    with pytest.raises(SourceFailed, match="read-only"):
        table_of(parts_of(source_of(url, query=query, nulls="skip")))


def test_a_part_carries_no_secret_and_can_be_read_by_another_process(
    url: str, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(url, "CREATE TABLE t (at timestamp)", "INSERT INTO t VALUES ('2020-01-01')")
    password = "hunter2 @/:%é\\\\' x"
    made(
        url,
        "DROP ROLE IF EXISTS shop_reader",
        f"CREATE ROLE shop_reader LOGIN PASSWORD '{password.replace(chr(39), chr(39) * 2)}'",
        "GRANT SELECT ON t TO shop_reader",
    )
    made(url, "GRANT USAGE ON SCHEMA public TO shop_reader")
    monkeypatch.setenv("SHOP_PASSWORD", password)
    source = source_of(url.replace("postgres@", "shop_reader@"), password=Secret("env", "SHOP_PASSWORD"))
    sent = pickle.dumps(parts_of(source))
    assert b"hunter2" not in sent
    (part,) = pickle.loads(sent)
    assert table_of([part]).num_rows == 1
    made(url, "DROP OWNED BY shop_reader", "DROP ROLE shop_reader")


def test_the_whole_url_can_be_a_secret(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made(url, "CREATE TABLE t (at timestamp)", "INSERT INTO t VALUES ('2020-01-01')")
    monkeypatch.setenv("SHOP", url)
    assert table_of(parts_of(source_of(Secret("env", "SHOP")))).num_rows == 1  # type: ignore[arg-type]


def test_a_connection_that_drops_in_the_middle_is_an_error_and_no_short_answer(url: str) -> None:
    made(
        url,
        "CREATE TABLE t (at timestamp, note text)",
        "INSERT INTO t SELECT '2020-01-01', repeat('x', 1000) FROM generate_series(1, 60000)",
    )
    (part,) = parts_of(source_of(url))
    batches = part.read()
    next(batches)
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
    with pytest.raises(SourceAway):
        list(batches)


def test_a_row_that_changes_between_the_parts_of_a_cell_is_read_as_it_is_when_its_part_is(url: str) -> None:
    made(
        url,
        "CREATE TABLE t (id int, at timestamp)",
        "INSERT INTO t SELECT n, timestamp '2020-01-01' + n * interval '1 hour' FROM generate_series(0, 23) n",
    )
    first, second = parts_of(source_of(url, splits=2), between("2020-01-01", "2020-01-02"))
    early = table_of([first])["id"].to_pylist()
    # What is changed now has a watermark of now: a later cell reads it, and no other row is lost.
    made(url, "UPDATE t SET at = '2020-01-02' WHERE id IN (3, 20)")
    late = table_of([second])["id"].to_pylist()
    assert sorted(early + late) == [n for n in range(24) if n != 20]
    later = parts_of(source_of(url), between("2020-01-02", "2020-01-03"))
    assert sorted(table_of(later)["id"].to_pylist()) == [3, 20]


def test_a_reader_that_stops_early_lets_go_of_its_connection(url: str) -> None:
    made(url, "CREATE TABLE t (at timestamp)", "INSERT INTO t SELECT '2020-01-01' FROM generate_series(1, 50000)")
    (part,) = parts_of(source_of(url))
    batches = part.read()
    next(batches)
    batches.close()  # type: ignore[attr-defined]
    with psycopg.connect(url.replace("+psycopg", "")) as connection:
        others = connection.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state = 'active'"
        ).fetchone()
    assert others == (1,)


def test_a_type_that_is_made_between_two_reads_is_known_to_the_second(url: str) -> None:
    made(url, "CREATE TABLE t (at timestamp)")
    table_of(parts_of(source_of(url)))
    made(url, "CREATE TYPE colour AS ENUM ('red')", "ALTER TABLE t ADD c colour, ADD cs colour[]")
    made(url, "INSERT INTO t VALUES ('2020-01-01', 'red', '{red}')")
    found = table_of(parts_of(source_of(url)))
    assert found.schema.types[1:] == [pa.string(), pa.list_(pa.string())]
    assert found.to_pylist()[0] == {"at": clock("2020-01-01"), "c": "red", "cs": ["red"]}


def test_a_part_says_what_it_is_without_a_secret(url: str) -> None:
    (part,) = parts_of(source_of("postgresql://ann@db/shop", password=Secret("env", "SHOP_PASSWORD")))
    assert isinstance(part, SqlSplit)
    assert "env" in repr(part)
