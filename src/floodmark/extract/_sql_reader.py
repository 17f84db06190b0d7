"""What reads a database: one connection, for one part."""

from collections.abc import Iterator
from typing import Any, Protocol, Self

import pyarrow as pa

from floodmark.extract._sql_columns import Column
from floodmark.extract._sql_dialect import Dialect
from floodmark.extract._sql_url import SqlUrl
from floodmark.ingest._source_spec import SqlSource


class SqlReader(Protocol):
    """A connection that reads. What goes wrong is raised as an error of Floodmark's."""

    @property
    def dialect(self) -> Dialect:
        """The SQL that it takes."""
        ...

    def columns(self, relation: str) -> list[Column]:
        """Return the columns of a table, a view or a query, as declared. No row is read."""
        ...

    def first(self, statement: str) -> tuple[Any, ...] | None:
        """Return the first row of a statement."""
        ...

    def batches(self, statement: str, columns: list[Column]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a statement as they arrive."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


def open_reader(source: SqlSource, zone: str) -> SqlReader:
    """Connect to the database of a source, by ADBC where there is a driver, else by SQLAlchemy."""
    url = SqlUrl.of(source)
    if url.parts.get_backend_name() == "sqlite":
        url.check_file()
    has_lists = any(not isinstance(value, str) for value in url.parts.query.values())
    if url.is_postgres and not has_lists and _has("adbc_driver_postgresql"):
        from floodmark.extract._sql_postgres import PostgresReader

        return PostgresReader(url)
    if url.is_sqlite and _has("adbc_driver_sqlite"):
        from floodmark.extract._sql_sqlite import SqliteReader

        return SqliteReader(url, source, zone)
    from floodmark.extract._sql_alchemy import AlchemyReader

    return AlchemyReader(url, source, zone)


def _has(package: str) -> bool:
    from importlib.util import find_spec

    return find_spec(package) is not None and find_spec("adbc_driver_manager") is not None
