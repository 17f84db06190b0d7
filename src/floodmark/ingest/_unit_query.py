"""Rows of a table or query in a SQL database, from which units are made."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from floodmark.errors import MissingPackage, SecondaryInputFailed
from floodmark.ingest._database_url import no_sqlite, not_a_url, parsed_url
from floodmark.ingest._unit_rows import UnitRow, check_columns


def rows_of_query(
    url: str, columns: Sequence[str], *, table: str | None = None, query: str | None = None, password: str | None = None
) -> Iterator[UnitRow]:
    """Yield rows with these columns of a table or query. Nothing is changed in the database, and nothing made."""
    from sqlalchemy import text
    from sqlalchemy.exc import SQLAlchemyError

    engine = engine_of(url, password)
    try:
        with engine.connect().execution_options(stream_results=True, max_row_buffer=1_000) as connection:
            # A colon would begin a parameter.
            statement: Any = text(query.replace(":", r"\:")) if query is not None else _select(table or "")
            result = connection.execute(statement)
            check_columns(columns, list(result.keys()), "The query" if table is None else f"The table {table}")
            for row in result.mappings():
                yield {column: row[column] for column in columns}
    except SQLAlchemyError as error:
        # What the error says of its own may quote parameters; what the driver says does not.
        said = str(getattr(error, "orig", None) or error).splitlines() or [""]
        raise SecondaryInputFailed(
            f"The units cannot be read from {_shown(url)}: {said[0]}.",
            rule="Units are read from a database that is there before a plan is made.",
            remedy="Correct the URL, the table or the query; see whether the database answers.",
        ) from error
    finally:
        engine.dispose()


def engine_of(url: str, password: str | None = None) -> Any:
    """Return an engine for a URL; PostgreSQL is spoken to by psycopg unless the URL says otherwise."""
    from sqlalchemy import create_engine
    from sqlalchemy.exc import ArgumentError, NoSuchModuleError

    parts = parsed_url(url, password)
    try:
        if parts.drivername in ("postgresql", "postgres"):
            parts = parts.set(drivername="postgresql+psycopg")
        if parts.get_backend_name() == "sqlite":
            _check_file(parts.database)
        return create_engine(parts)
    except (ImportError, NoSuchModuleError) as error:
        raise MissingPackage(
            f"Nothing is installed that speaks to {_shown(url)}: {error}.",
            rule="A database is read by a driver that SQLAlchemy knows.",
            remedy='Install it; for PostgreSQL: pip install "floodmark[postgres]".',
        ) from error
    except (ArgumentError, ValueError):
        raise not_a_url() from None


def _select(table: str) -> Any:
    from sqlalchemy import literal_column, select
    from sqlalchemy.sql import table as named

    schema, _, name = table.rpartition(".")
    return select(literal_column("*")).select_from(named(name, schema=schema or None))


def _check_file(database: str | None) -> None:
    # SQLite would make a file that is not there, and say that it has no such table.
    if database and database != ":memory:" and not database.startswith("file:") and not Path(database).is_file():
        rule = "Units are read from a database that is there before a plan is made."
        raise no_sqlite(database, SecondaryInputFailed, rule)


def _shown(url: str) -> str:
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2].partition('?')[0]}"
