"""What is wrong with a database is said with the way out, and without a secret."""

from typing import Any

import pytest

from floodmark.errors import (
    FloodmarkError,
    InvalidOption,
    MissingPackage,
    SecretMissing,
    SourceAway,
)
from floodmark.ingest import Secret, SqlSource
from floodmark.ingest.database import SqlUrl, source_error
from support.ingest.sql_reading import parts_of, table_of

DRIVERS = ("adbc", "sqlalchemy")


def read(url: str | Secret, unit: Any = None, **given: Any) -> int:
    asked: dict[str, Any] = {"url": url, "watermark": "updated_at"} | given
    source = SqlSource(**(asked if "query" in asked else {"table": "orders"} | asked))
    return int(table_of(parts_of(source, unit=unit)).num_rows)


def text_of(error: FloodmarkError) -> str:
    whole = f"{error} {error!r} {error.fields} {error.__cause__}"
    return whole if error.__suppress_context__ else f"{whole} {error.__context__}"


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_database_that_is_away_is_said_to_be_away(driver: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_PASSWORD", "hunter2 /@")
    scheme = "postgresql" if driver == "adbc" else "postgresql+psycopg"
    with pytest.raises(SourceAway, match=r"127\.0\.0\.1:1/shop cannot be reached") as caught:
        read(f"{scheme}://ann@127.0.0.1:1/shop", password=Secret("env", "SHOP_PASSWORD"))
    assert "hunter2" not in text_of(caught.value)


def test_a_secret_that_is_not_there_is_refused_where_the_part_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SHOP_PASSWORD", raising=False)
    source = SqlSource(
        url="postgresql://a@b/c", password=Secret("env", "SHOP_PASSWORD"), table="orders", watermark="at"
    )
    (part,) = parts_of(source)
    with pytest.raises(SecretMissing, match="env:SHOP_PASSWORD"):
        next(part.read())


def test_a_driver_that_is_not_installed_is_named() -> None:
    with pytest.raises(MissingPackage, match="oracle"):
        read("oracle+nothing://ann@db/shop")


@pytest.mark.parametrize("text", ["postgresql://ann:hunter2@db:port/shop", "hunter2"])
def test_a_url_that_cannot_be_read_is_refused_unseen(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP", text)
    with pytest.raises(InvalidOption, match="is invalid") as caught:
        read(Secret("env", "SHOP"))
    assert "hunter2" not in text_of(caught.value)


def test_a_connection_waits_for_a_while_and_not_for_ever() -> None:
    url = SqlUrl.of(SqlSource(url="postgresql://db/shop?connect_timeout=3", table="t", watermark="at"))
    assert "connect_timeout='3'" in url.for_libpq
    assert "keepalives_idle='30'" in url.for_libpq


@pytest.mark.parametrize(
    ("said", "state", "code"),
    [
        ("FATAL: sorry, too many clients already", "53300", "source-away"),
        ("FATAL: the database system is starting up", "57P03", "source-away"),
        ("ERROR: canceling statement due to conflict with recovery", "40001", "source-failed"),
        ("database is locked", "", "source-away"),
        ("server closed the connection unexpectedly", "", "source-away"),
        ("(1045) Access denied for user", "", "source-refused"),
        ("ERROR: schema x does not exist", "3F000", "unknown-table"),
        ("something else", "", "source-failed"),
    ],
)
def test_what_a_driver_says_becomes_the_error_that_fits(said: str, state: str, code: str) -> None:
    error = OSError(f"{said} hunter2\nQuery was: SELECT secret")
    error.sqlstate = state  # type: ignore[attr-defined]
    found = source_error(error, "db://x", ("hunter2",))
    assert found.code == code
    assert "hunter2" not in str(found)
    assert "Query was" not in str(found)
