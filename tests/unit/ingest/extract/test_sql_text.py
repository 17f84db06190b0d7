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
from floodmark.ingest.extract.sql.dialect import Dialect, split_texts
from floodmark.ingest.extract.sql.statements import ColumnSlice, Statements
from support.ingest.sql_reading import HOSTILE_TEXTS, between, clock

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


@pytest.mark.parametrize("dialect", ["postgresql", "sqlite", "snowflake"])
@pytest.mark.parametrize("text", ["a\0b", "\ud800"])
def test_a_nul_and_half_a_surrogate_pair_are_refused(text: str, dialect: str) -> None:
    with pytest.raises(InvalidOption, match="NUL"):
        statements({"id": text}, dialect=dialect).rows(["*"])
    with pytest.raises(InvalidOption, match="NUL"):
        Dialect(dialect).identifier(text)
    with pytest.raises(InvalidOption, match="NUL"):
        statements({"id": 7}, dialect=dialect, where="id = '\0' OR 1 = 1").rows(["*"])


BINDING = ("sqlite", "mysql", "mariadb", "mssql", "oracle", "snowflake", "bigquery", "clickhouse", "databricks", "x")


@pytest.mark.parametrize("dialect", BINDING)
@pytest.mark.parametrize("value", HOSTILE_TEXTS)
def test_a_text_of_a_unit_is_a_parameter_and_never_sql(dialect: str, value: str) -> None:
    given: dict[str, Any] = {
        "query": "SELECT * FROM a WHERE b LIKE '%' || {{unit.b}} || '%'",
        "where": "c <> {{ unit.b }}",
    }
    found = statements({"b": value, "id": value}, dialect=dialect, watermark_type="epoch-seconds", **given)
    harmless = statements({"b": "x", "id": "x"}, dialect=dialect, watermark_type="epoch-seconds", **given)
    parts, texts = split_texts(found.rows(["*"]))
    assert parts == split_texts(harmless.rows(["*"]))[0]
    assert texts == [value] * 3


@pytest.mark.parametrize("dialect", ["mssql", "oracle", "snowflake", "bigquery", "clickhouse", "x"])
@pytest.mark.parametrize("value", HOSTILE_TEXTS)
def test_a_text_is_no_literal_where_the_rules_for_quotes_are_not_known(dialect: str, value: str) -> None:
    with pytest.raises(InvalidOption, match=f"cannot be written as a literal for {dialect}"):
        Dialect(dialect).literal(value)


def test_the_bounds_of_a_watermark_of_texts_are_parameters_too() -> None:
    found = statements(dialect="snowflake", watermark_type="text", pattern="%Y%m%d")
    assert split_texts(found.rows(["*"])) == (
        ['SELECT * FROM "t" WHERE "at" >= ', ' AND "at" < ', ""],
        ["20200101", "20200102"],
    )


@pytest.mark.parametrize("dialect", ["snowflake", "bigquery", "clickhouse", "databricks", "x"])
@pytest.mark.parametrize("name", ['a"b', "a`b", "a\\", "a'b", "a]b", "a\nb"])
def test_a_name_with_a_quote_is_refused_where_the_rules_for_quotes_are_not_known(dialect: str, name: str) -> None:
    with pytest.raises(InvalidOption, match=f"the database is {dialect}"):
        statements({"id": name}, dialect=dialect, table="t_{{unit.id}}").rows(["*"])


@pytest.mark.parametrize(
    ("dialect", "name", "written"),
    [
        ("mssql", "a]b[", "[a]]b[]"),
        ("mysql", "a`\\", "`a``\\`"),
        ("oracle", 'a"', '"a"""'),
        ("databricks", "a b", "`a b`"),
        ("snowflake", "ä b", '"ä b"'),
    ],
)
def test_a_name_is_quoted_as_the_database_reads_it(dialect: str, name: str, written: str) -> None:
    assert Dialect(dialect).identifier(name) == written


@pytest.mark.parametrize(
    ("table", "value", "written"),
    [
        ("t_{{unit.id}}", "x.secrets", '"t_x.secrets"'),
        ("shop.{{ unit.id }}", "a.b", '"shop"."a.b"'),
        ("{{unit.id}}.{{unit.id}}_lines", 'e"u', '"e""u"."e""u_lines"'),
        ("a.b.c", "x", '"a"."b"."c"'),
    ],
)
def test_a_unit_gives_a_part_of_one_name_of_a_table(table: str, value: str, written: str) -> None:
    assert statements({"id": value}, table=table).relation == written


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


ENCLOSED = {
    "sqlite": (
        "'{{range.from}}'", "'{{ unit.id }}", "{{unit.id}}'", "'%-{{unit.id}}-%'", "'it''s {{unit.id}}'",
        '"{{unit.id}}"', "`x{{unit.id}}`", "[x {{unit.id}}]", "1 -- {{unit.id}}", "1 -- it's {{unit.id}}",
        "1 /* {{unit.id}} */",
        "1 /* it's\n {{unit.id}} */", "'--' -- {{unit.id}}", "'/*' || ' {{unit.id}}'", '"a\'b" || \'{{unit.id}}\'',
        "'\\' || '{{unit.id}}'", "1 /* /* */ || '*/ {{unit.id}}'", "'' || ' {{unit.id}} ",
    ),
    "postgresql": (
        "'%-{{unit.id}}-%'", "$$ {{unit.id}} $$", "$a$ $b$ {{unit.id}} $a$", "1 /* /* */ {{unit.id}} */",
        r"E'\' {{unit.id}} '", "e'x''{{unit.id}}'", r"'\' || ' {{unit.id}}'", "U&'{{unit.id}}'", "1 --\r-- {{unit.id}}",
    ),
    "mysql": (r"'\' {{unit.id}} '", r'"\" {{unit.id}} "', "1 # {{unit.id}}", "`a\\` || ' {{unit.id}} '"),
    "mssql": ("[a]] {{unit.id}}]", "1 /* /* */ {{unit.id}} */", "N'{{unit.id}}'"),
    "oracle": ("q'[it's {{unit.id}}]'", "Nq'!it's {{unit.id}}!'", "q'{ {{unit.id}} }'"),
    "snowflake": (
        "'{{unit.id}}'", r"'\' {{unit.id}} '", "$$ {{unit.id}} $$", "1 # {{unit.id}}", "[ {{unit.id}} ]",
        "` {{unit.id}} `",
        "\'\'\' a \' {{unit.id}} \'\'\'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("option", ["query", "where"])
@pytest.mark.parametrize(("dialect", "text"), [(name, text) for name, texts in ENCLOSED.items() for text in texts])
def test_a_variable_in_quotes_or_in_a_comment_is_refused(dialect: str, text: str, option: str) -> None:
    given: dict[str, Any] = (
        {"where": f"b = {text}"} if option == "where" else {"query": f"SELECT * FROM a WHERE b = {text}"}
    )
    with pytest.raises(InvalidOption, match=r"stands in (quotes|a comment)") as caught:
        statements({"id": "x"}, dialect=dialect, **given).rows(["*"])
    assert caught.value.fields == {"option": option}


OUTSIDE = {
    "sqlite": (
        "'it''s' || {{unit.id}} || '--'", "{{unit.id}} -- it's", "/* it's */ {{unit.id}}", "1 -- x\n+ {{unit.id}}",
        "'\\' || {{unit.id}}", "b LIKE 'a\\_' ESCAPE '\\' AND b = {{unit.id}}", '"a\'b" = {{unit.id}}',
        "({{unit.id}},{{unit.id}})",
        "1-{{unit.id}}", "x'00' || {{unit.id}}", "/* /* */ {{unit.id}}",
    ),
    "postgresql": (
        "data #>> '{a}' = {{unit.id}}", "ARRAY[{{unit.id}}]", "{{unit.id}}::int", "$$it's$$ || {{unit.id}}",
        r"E'it\'s' || {{unit.id}}",
        r"'\' || {{unit.id}}", "/* /* */ */ {{unit.id}}",
        "a$b$ = {{unit.id}} AND c$b$ = 1", "data->>{{unit.id}}",
    ),
    "mysql": (r"'it\'s' || {{unit.id}}", '"it\'s" || {{unit.id}}', "1 # it's\n + {{unit.id}}"),
    "mssql": ("[it's] = {{unit.id}}",),
    "oracle": ("q'[it's]' || {{unit.id}}",),
    "snowflake": ("'it''s' || {{unit.id}}", "f({{unit.id}}, 7)", "/* all */ {{unit.id}}"),
}  # fmt: skip


@pytest.mark.parametrize(("dialect", "text"), [(name, text) for name, texts in OUTSIDE.items() for text in texts])
def test_a_variable_outside_quotes_and_comments_becomes_its_value(dialect: str, text: str) -> None:
    written = statements({"id": 7}, dialect=dialect, query=f"SELECT {text}").relation
    assert written.startswith(f"(SELECT {text.replace('{{unit.id}}', '7')}\n)")


@pytest.mark.parametrize(
    "text", ["E{{unit.id}}", "t_{{unit.id}}", "{{unit.id}}_t", "{{unit.id}}{{unit.id}}", "@{{unit.id}}"]
)
def test_a_variable_that_touches_a_word_is_refused(text: str) -> None:
    with pytest.raises(InvalidOption, match="touches"):
        statements({"id": "x"}, query=f"SELECT {text}").rows(["*"])


@pytest.mark.parametrize("dialect", ["postgresql", "sqlite", "snowflake"])
def test_a_minus_before_a_negative_number_does_not_begin_a_comment(dialect: str) -> None:
    written = statements({"n": -7}, dialect=dialect, where="a = 5-{{unit.n}} AND b = 1").rows(["*"])
    assert "(a = 5- -7 AND b = 1\n)" in written


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
