"""The values of a unit select its rows and nothing else, whatever stands in them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from floodmark.errors import InvalidOption
from floodmark.ingest import SqlSource
from support.ingest.sql_reading import HOSTILE_TEXTS, between, parts_of, sqlite_file, table_of, unknown_dialect

DAY = between("2020-01-01", "2020-01-02")
NOON = 1577880000


@pytest.fixture(params=["sqlite", "sqlite+pysqlite", "shopdb"])
def url(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    """Give a database with one row a hostile text, read by ADBC, by SQLAlchemy, and as one that is not known."""
    made = sqlite_file(
        tmp_path / "t.db",
        "CREATE TABLE t (at BIGINT, shop VARCHAR, n INTEGER)",
        "CREATE TABLE secrets (at BIGINT, shop VARCHAR, n INTEGER)",
        "CREATE TABLE t_eu (at BIGINT, shop VARCHAR, n INTEGER)",
        'CREATE TABLE "t_eu.secrets" (at BIGINT, shop VARCHAR, n INTEGER)',
        f"INSERT INTO secrets VALUES ({NOON}, 'x', -1)",
        f"INSERT INTO t_eu VALUES ({NOON}, 'x', 1)",
        f"INSERT INTO \"t_eu.secrets\" VALUES ({NOON}, 'x', 2)",
        rows=[(NOON, text, n) for n, text in enumerate(HOSTILE_TEXTS)],
    )
    with unknown_dialect():
        yield made.replace("sqlite", request.param, 1)


def numbers(url: str, unit: dict[str, Any], **given: Any) -> list[int]:
    asked: dict[str, Any] = {"url": url, "watermark": "at", "watermark_type": "epoch-seconds"} | given
    source = SqlSource(**(asked if "query" in asked else {"table": "t"} | asked))
    return sorted(table_of(parts_of(source, DAY, unit))["n"].to_pylist())


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"splits": 2, "split_by": "n"},
        {"where": "{{unit.shop}} = shop AND shop LIKE shop -- it's"},
        {"query": "SELECT * FROM t WHERE shop = {{unit.shop}}"},
        {"query": "SELECT at, n, {{unit.shop}} AS shop FROM t WHERE shop IN ({{unit.shop}}, {{unit.shop}})"},
    ],
)
def test_a_unit_reads_its_own_rows(url: str, given: dict[str, Any]) -> None:
    for number, text in enumerate(HOSTILE_TEXTS):
        assert numbers(url, {"shop": text}, **given) == [number], text


@pytest.mark.parametrize(
    "where",
    [
        "shop LIKE '%-{{unit.shop}}-%'",
        "n > 0 -- {{unit.shop}}",
        "n > 0 /* {{unit.shop}} */",
        '"{{unit.shop}}" = shop',
    ],
)
@pytest.mark.parametrize("value", ["x' UNION SELECT * FROM secrets --", "\n OR n < 0", "*/ OR n < 0 /*", "harmless"])
def test_a_unit_is_no_part_of_a_literal_or_of_a_comment(url: str, where: str, value: str) -> None:
    for given in ({"where": where}, {"query": f"SELECT * FROM t WHERE {where}"}):
        with pytest.raises(InvalidOption, match="stands in"):
            numbers(url, {"shop": value}, **given)


def test_a_unit_names_a_table_and_no_other_schema(url: str) -> None:
    assert numbers(url, {"region": "eu"}, table="t_{{unit.region}}") == [1]
    assert numbers(url, {"region": "eu.secrets"}, table="t_{{unit.region}}") == [2]
    assert numbers(url, {"region": "secrets"}, table="main.{{unit.region}}") == [-1]


def test_a_unit_with_a_negative_number_begins_no_comment(url: str) -> None:
    assert numbers(url, {"n": -1}, where="n = 3-{{unit.n}} AND n < 4") == []
    assert numbers(url, {"n": -1}, where="n = 3-{{unit.n}} AND n < 5") == [4]
