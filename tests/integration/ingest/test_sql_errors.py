"""What a real database refuses becomes an error with the way out, and without a secret."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from floodmark.errors import (
    DuplicateName,
    FloodmarkError,
    SourceFailed,
    SourceRefused,
    UnknownColumn,
    UnknownTable,
)
from floodmark.ingest import Secret, SqlSource
from floodmark.ingest.extract.sql import split as _sql_reader
from floodmark.ingest.extract.sql.alchemy import AlchemyReader
from floodmark.testing import PostgresServer
from support.ingest.sql_reading import parts_of, postgres_run, sqlite_file, table_of

DRIVERS = ("adbc", "sqlalchemy")


@pytest.fixture(scope="module")
def database(postgres: PostgresServer) -> Iterator[str]:
    url = postgres.new_database()
    postgres_run(
        url,
        "CREATE TABLE orders (id int, updated_at timestamp, region text)",
        "CREATE TABLE hidden (at timestamp)",
        "CREATE ROLE errol LOGIN PASSWORD 'hunter2'",
        "GRANT SELECT ON orders TO errol",
    )
    yield url
    postgres_run(url, "DROP OWNED BY errol", "DROP ROLE errol")


@pytest.fixture(params=[f"{kind}-{driver}" for kind in ("postgres", "sqlite") for driver in DRIVERS])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    kind, driver = request.param.split("-")
    if kind == "sqlite":
        made = sqlite_file(tmp_path / "t.db", "CREATE TABLE orders (id INT, updated_at TIMESTAMP, region TEXT)")
        return made if driver == "adbc" else made.replace("sqlite:", "sqlite+pysqlite:", 1)
    given: str = request.getfixturevalue("database")
    return given if driver == "adbc" else given.replace("postgresql:", "postgresql+psycopg:", 1)


def read(url: str | Secret, unit: Any = None, **given: Any) -> int:
    asked: dict[str, Any] = {"url": url, "watermark": "updated_at"} | given
    source = SqlSource(**(asked if "query" in asked else {"table": "orders"} | asked))
    return int(table_of(parts_of(source, unit=unit)).num_rows)


def text_of(error: FloodmarkError) -> str:
    whole = f"{error} {error!r} {error.fields} {error.__cause__}"
    return whole if error.__suppress_context__ else f"{whole} {error.__context__}"


def test_a_table_that_is_not_there_is_named(url: str) -> None:
    with pytest.raises(UnknownTable, match="ordrs"):
        read(url, table="ordrs")


@pytest.mark.parametrize(
    ("given", "unit", "column", "near"),
    [
        ({"watermark": "update_at"}, {}, "update_at", "updated_at"),
        ({"columns": ("id", "Region")}, {}, "Region", "region"),
        ({"fallback": "updatd_at"}, {}, "updatd_at", "updated_at"),
        ({"split_by": "ID", "splits": 2}, {}, "ID", "id"),
        ({}, {"regon": "eu"}, "regon", "region"),
        ({"units": {"r": "regio"}}, {"r": "eu"}, "regio", "region"),
        ({"query": "SELECT * FROM orders", "watermark": "updatedat"}, {}, "updatedat", "updated_at"),
    ],
)
def test_a_column_that_is_not_there_is_named_with_the_one_that_may_be_meant(
    url: str, given: dict[str, Any], unit: dict[str, Any], column: str, near: str
) -> None:
    with pytest.raises(UnknownColumn, match=f"has no column '{column}'.*Did you mean '{near}'") as caught:
        read(url, unit, **given)
    assert caught.value.fields == {"column": column}


@pytest.mark.parametrize("given", [{"query": "SELEC 1"}, {"where": "id = = 1"}, {"where": "nope = 1"}])
def test_a_query_that_the_database_does_not_understand_is_an_error_that_says_why(url: str, given: Any) -> None:
    with pytest.raises(SourceFailed, match="rejects the query"):
        read(url, **given)


def test_two_columns_of_one_name_are_refused(database: str) -> None:
    for url in (database, database.replace("postgresql:", "postgresql+psycopg:")):
        with pytest.raises(DuplicateName, match="The query has two columns 'a'"):
            read(url, query="SELECT updated_at, id AS a, region AS a FROM orders")


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_wrong_password_is_said_to_be_wrong_and_not_shown(
    driver: str, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = database.replace("postgres@", "errol@")
    url = url if driver == "adbc" else url.replace("postgresql:", "postgresql+psycopg:", 1)
    monkeypatch.setenv("SHOP_PASSWORD", "hunter3")
    with pytest.raises(SourceRefused, match="password authentication failed") as caught:
        read(url, password=Secret("env", "SHOP_PASSWORD"))
    assert "hunter3" not in text_of(caught.value)
    with pytest.raises(SourceRefused, match="no password"):
        read(url)
    monkeypatch.setenv("SHOP_PASSWORD", "hunter2")
    assert read(url, password=Secret("env", "SHOP_PASSWORD")) == 0
    with pytest.raises(SourceRefused, match="permission denied for table hidden"):
        read(url, password=Secret("env", "SHOP_PASSWORD"), table="hidden", watermark="at")


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_url_with_a_password_that_is_a_secret_as_a_whole_is_not_shown(
    driver: str, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheme = "postgresql" if driver == "adbc" else "postgresql+psycopg"
    url = database.replace("postgresql://postgres@", f"{scheme}://errol:hunter%204@")
    monkeypatch.setenv("SHOP", url)
    with pytest.raises(SourceRefused) as caught:
        read(Secret("env", "SHOP"))
    assert "hunter" not in text_of(caught.value)


def test_a_database_that_is_not_there_is_named(postgres: PostgresServer) -> None:
    for scheme in ("postgresql:", "postgresql+psycopg:"):
        with pytest.raises(UnknownTable, match="nowhere"):
            read(postgres.url_of("nowhere").replace("postgresql:", scheme, 1))


def test_without_adbc_sqlalchemy_reads(database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_sql_reader, "_has_driver", lambda package: False)
    made = sqlite_file(tmp_path / "t.db", "CREATE TABLE orders (updated_at TIMESTAMP)", rows=())
    for url in (database, made):
        source = SqlSource(url=url, table="orders", watermark="updated_at")
        with _sql_reader.open_reader(source, "UTC") as reader:
            assert isinstance(reader, AlchemyReader)
        assert read(url) == 0
