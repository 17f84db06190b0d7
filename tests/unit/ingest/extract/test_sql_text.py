"""Statements say exactly what is meant, whatever stands in a name or a value."""

import sqlite3
from datetime import UTC, date, datetime
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from floodmark.errors import InvalidOption
from floodmark.ingest import Range, SqlSource, Unit
from floodmark.ingest.extract.sql.statements import ColumnSlice, Dialect, Statements
from support.ingest.sql_reading import between, clock

DAY = between("2020-01-01", "2020-01-02")
HOUR = between("2020-01-01T10:00", "2020-01-01T11:00")


def statements(
    unit: dict[str, Any] | None = None, span: Range = DAY, dialect: str = "postgresql", **given: Any
) -> Statements:
    asked = {"url": "sqlite:///x.db", "watermark": "at"} | given
    if "query" not in asked:
        asked.setdefault("table", "t")
    return Statements(SqlSource(**asked), "UTC", Unit.of(unit or {}), span, Dialect(dialect))


@pytest.mark.parametrize(
    ("dialect", "value", "written"),
    [
        ("postgresql", "it's", "'it''s'"),
        ("postgresql", "a\\'b", r"E'a\\''b'"),
        ("sqlite", "a\\'b", r"'a\''b'"),
        ("mysql", "a\\b", r"'a\\b'"),
        ("postgresql", True, "TRUE"),
        ("sqlite", True, "1"),
        ("mssql", False, "0"),
        ("postgresql", -7, "-7"),
        ("postgresql", 1e-7, "1e-07"),
        ("postgresql", date(2020, 1, 2), "DATE '2020-01-02'"),
        ("sqlite", date(2020, 1, 2), "'2020-01-02'"),
        ("postgresql", datetime(2020, 1, 2, tzinfo=UTC), "TIMESTAMPTZ '2020-01-02 00:00:00.000000+00:00'"),
        ("trino", datetime(2020, 1, 2, tzinfo=UTC),
         "CAST('2020-01-02 00:00:00.000000+00:00' AS TIMESTAMP WITH TIME ZONE)"),
        ("mysql", clock("2020-01-02"), "TIMESTAMP '2020-01-02 00:00:00.000000'"),
        ("mssql", clock("2020-01-02"), "CAST('2020-01-02 00:00:00.000000' AS DATETIME2(6))"),
        ("sqlite", clock("2020-01-02T10:20:30.400"), "'2020-01-02 10:20:30.4'"),
        ("sqlite", clock("2020-01-02T10:00:00.000100"), "'2020-01-02 10:00:00.0001'"),
        ("sqlite", clock("2020-01-02T00:00:30"), "'2020-01-02 00:00:30'"),
        ("sqlite", clock("2020-01-02T10:00"), "'2020-01-02 10:00'"),
    ],
)  # fmt: skip
def test_a_value_is_written_as_the_database_reads_it(dialect: str, value: Any, written: str) -> None:
    assert Dialect(dialect).literal(value) == written


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])))
def test_every_text_and_every_name_comes_through_sqlite_unchanged(text: str) -> None:
    connection = sqlite3.connect(":memory:")
    dialect = Dialect("sqlite")
    name = text or "x"
    cursor = connection.execute(f"SELECT {dialect.literal(text)} AS {dialect.identifier(name)}")
    assert (cursor.fetchone()[0], cursor.description[0][0]) == (text, name)
    connection.close()


@pytest.mark.parametrize("unit", [{"id": "a\0b"}])
def test_a_nul_is_refused(unit: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption, match="NUL"):
        statements(unit).rows(["*"])
    with pytest.raises(InvalidOption, match="NUL"):
        Dialect("sqlite").identifier("a\0")


@pytest.mark.parametrize(
    ("given", "unit", "written"),
    [
        ({}, {}, """SELECT * FROM "t" WHERE {range}"""),
        ({"table": "s.T"}, {}, """SELECT * FROM "s"."T" WHERE {range}"""),
        ({}, {"id": 7, "x": None}, """SELECT * FROM "t" WHERE "id" = 7 AND "x" IS NULL AND {range}"""),
        ({"units": {"id": "No"}}, {"id": "7"}, """SELECT * FROM "t" WHERE "No" = '7' AND {range}"""),
        ({"where": "a OR b -- c"}, {}, """SELECT * FROM "t" WHERE (a OR b -- c\n) AND {range}"""),
        ({"table": "t_{{unit.id}}"}, {"id": 'e"u'}, """SELECT * FROM "t_e""u" WHERE {range}"""),
        (
            {"query": "SELECT * FROM a -- all\n;"},
            {"id": 7},
            """SELECT * FROM (SELECT * FROM a -- all\n\n) "q" WHERE "id" = 7 AND {range}""",
        ),
        (
            {"query": "SELECT * FROM a WHERE b = {{unit.id}}"},
            {"id": "x'"},
            """SELECT * FROM (SELECT * FROM a WHERE b = 'x'''\n) "q" WHERE {range}""",
        ),
        (
            {"query": "SELECT 1 FROM a WHERE t >= {{range.from}} AND t < {{ range.to }}", "watermark": None},
            {},
            """SELECT * FROM (SELECT 1 FROM a WHERE t >= TIMESTAMP '2020-01-01 00:00:00.000000' AND """
            """t < TIMESTAMP '2020-01-02 00:00:00.000000'\n) "q\"""",
        ),
    ],
)
def test_a_statement_has_the_conditions_of_its_unit_and_range(
    given: dict[str, Any], unit: dict[str, Any], written: str
) -> None:
    within = """"at" >= TIMESTAMP '2020-01-01 00:00:00.000000' AND "at" < TIMESTAMP '2020-01-02 00:00:00.000000'"""
    assert statements(unit, **given).rows(["*"]) == written.replace("{range}", within)


def test_the_fallback_counts_where_the_watermark_is_null() -> None:
    found = statements(fallback="made", watermark_type="epoch-seconds")
    assert found.watermark == 'COALESCE("at", "made")'
    assert found.rows(["*"], nulls=True) == 'SELECT * FROM "t" WHERE COALESCE("at", "made") IS NULL'


@pytest.mark.parametrize("text", ["'{{range.from}}'", "'{{ unit.id }}", "{{unit.id}}'"])
def test_a_variable_in_quotes_is_refused(text: str) -> None:
    with pytest.raises(InvalidOption, match="stands in quotes"):
        statements({"id": 7}, query=f"SELECT * FROM a WHERE b = {text}").rows(["*"])


def test_a_field_that_the_unit_does_not_have_is_refused() -> None:
    with pytest.raises(InvalidOption, match=r"names unit\.no"):
        statements({"id": 7}, query="SELECT {{unit.no}}").rows(["*"])


SPELLINGS = (
    "2020-01-01", "2020-01-01 00:00", "2020-01-01T00:00:00Z", "2020-01-01 09:59:59.999999", "2020-01-01T09:59",
    "2020-01-01 10:00", "2020-01-01T10:00", "2020-01-01T10:00:00", "2020-01-01 10:00:00.000", "2020-01-01T10:00:00Z",
    "2020-01-01 10:00:00.25", "2020-01-01T10:00:00.250000Z", "2020-01-01T10:00:00.5", "2020-01-01 10:00:01",
    "2020-01-01T23:59:59.9", "2020-01-02T00:00:00", "2020-01-02", "2019-12-31T23:59:59.999",
)  # fmt: skip


@given(st.lists(st.sampled_from([*SPELLINGS, "2020-01-01T12:30", "2020-01-01 10:00:00.3"]), min_size=2, max_size=6))
def test_sqlite_finds_a_time_in_the_one_range_that_has_it_however_it_is_spelled(cuts: list[str]) -> None:
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE t (at TIMESTAMP)")
    connection.executemany("INSERT INTO t VALUES (?)", [(text,) for text in SPELLINGS])
    times = {text: datetime.fromisoformat(text).replace(tzinfo=None) for text in SPELLINGS}
    edges = sorted(datetime.fromisoformat(text).replace(tzinfo=None) for text in cuts)
    for lo, hi in pairwise(edges):
        condition = Dialect("sqlite").between("at", lo, hi)
        found = {row[0] for row in connection.execute(f"SELECT at FROM t WHERE {condition}")}
        assert found == {text for text, at in times.items() if lo <= at < hi}, condition
    connection.close()


def test_an_index_of_sqlite_is_used_for_hours_too() -> None:
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE t (at TIMESTAMP)")
    connection.execute("CREATE INDEX i ON t (at)")
    statement = statements(span=HOUR, dialect="sqlite").rows(["*"])
    plan = connection.execute(f"EXPLAIN QUERY PLAN {statement}").fetchall()
    assert "(at>? AND at<?)" in str(plan)
    connection.close()


@pytest.mark.parametrize(
    ("given", "dialect", "written"),
    [
        ({}, "postgresql", '("at" IS NULL) LIMIT 1'),
        ({}, "oracle", '("at" IS NULL) FETCH FIRST 1 ROWS ONLY'),
        ({"nulls": "skip"}, "postgresql", None),
        ({"nulls": "skip"}, "sqlite", """("at" < '' OR "at" >= x'') LIMIT 1"""),
        ({"nulls": "read", "watermark_type": "epoch-millis"}, "sqlite", """("at" >= '') LIMIT 1"""),
        ({"nulls": "skip", "watermark_type": "text", "pattern": "%Y%m%d"}, "sqlite", None),
        ({"query": "SELECT {{range.from}}, {{range.to}}"}, "postgresql", None),
    ],
)
def test_rows_that_no_range_would_read_are_looked_for(given: Any, dialect: str, written: str | None) -> None:
    found = statements(dialect=dialect, **given).first_misplaced()
    assert found is None if written is None else found is not None and found.endswith(written)


def test_slices_are_open_at_both_ends_and_have_what_has_no_value() -> None:
    dialect = Dialect("sqlite")
    edges = [None, 3, 7, None]
    found = [ColumnSlice("n", lo, hi).condition(dialect) for lo, hi in pairwise(edges)]
    assert found == ['("n" < 3 OR "n" IS NULL)', '"n" >= 3 AND "n" < 7', '"n" >= 7']
    assert ColumnSlice("n", None, None).condition(dialect) is None
