"""The URL of a SQL source, with its secrets in place: only where it is read."""

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, unquote

from floodmark.errors import UnknownTable
from floodmark.ingest._database_url import no_sqlite, parsed_url
from floodmark.ingest._secrets import Secret
from floodmark.ingest._source_spec import SqlSource

# A host that is away, or goes without a word, must not hold a task for hours.
_POSTGRES_WAITS: Final = {
    "connect_timeout": "30",
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
}


@dataclass(frozen=True)
class SqlUrl:
    """A URL that can be used, and how it is shown: without user, password and options.

    >>> url = SqlUrl.of(SqlSource(url="postgresql://ann@db/shop", table="orders", watermark="at"))
    >>> url.shown, url.is_postgres
    ('postgresql://db/shop', True)
    """

    text: str = field(repr=False)
    secrets: tuple[str, ...] = field(repr=False)

    @classmethod
    def of(cls, source: SqlSource) -> "SqlUrl":
        """Look up the secrets of a source."""
        text = source.url.value() if isinstance(source.url, Secret) else source.url
        password = None if source.password is None else source.password.value()
        parts = parsed_url(text.strip(), password)
        if parts.get_backend_name() in ("postgresql", "postgres"):
            parts = parts.update_query_dict({k: v for k, v in _POSTGRES_WAITS.items() if k not in parts.query})
        rendered = parts.render_as_string(hide_password=False)
        # However a driver may come to write them.
        secrets = {str(parts.password), quote(str(parts.password), safe=""), quote(str(parts.password), safe=" +")}
        if not parts.password:
            secrets = set()
        if isinstance(source.url, Secret):
            secrets |= {text, rendered}
        return cls(rendered, tuple(sorted(secrets, key=len, reverse=True)))

    @cached_property
    def parts(self) -> Any:
        """As SQLAlchemy has it."""
        from sqlalchemy.engine import make_url

        return make_url(self.text)

    @property
    def shown(self) -> str:
        """The URL without what may be secret."""
        parts = self.parts
        host = f"{parts.host or ''}{f':{parts.port}' if parts.port else ''}"
        return f"{parts.drivername}://{host}/{parts.database or ''}"

    @property
    def is_postgres(self) -> bool:
        """Whether it says PostgreSQL, and not by which driver."""
        return self.parts.drivername in ("postgresql", "postgres")

    @property
    def is_sqlite(self) -> bool:
        """Whether it says SQLite, and not by which driver."""
        return bool(self.parts.drivername == "sqlite")

    @property
    def for_libpq(self) -> str:
        """As PostgreSQL's own library takes it: names and values, since it refuses some URLs, and says all of them."""
        parts = self.parts
        named = {"host": parts.host, "port": parts.port, "user": parts.username, "password": parts.password}
        given = {**named, "dbname": parts.database, **parts.query}
        return " ".join(f"{name}={_quoted(str(value))}" for name, value in given.items() if value not in (None, ""))

    @property
    def for_sqlite(self) -> str:
        """As SQLite takes it: to be read only."""
        database = str(self.parts.database)
        if database.startswith("file:"):
            return database + ("" if "mode=" in database else f"{'&' if '?' in database else '?'}mode=ro")
        return f"file:{quote(str(Path(database).resolve()))}?mode=ro"

    @property
    def for_reading(self) -> str:
        """As SQLAlchemy takes it; a file of SQLite is to be read only."""
        if self.parts.get_backend_name() != "sqlite":
            return self.text
        options = {**self.parts.query, "mode": "ro", "uri": "true"}
        path = self.for_sqlite.partition("?")[0]
        text: str = self.parts.set(database=path, query=options).render_as_string(hide_password=False)
        return text

    def check_file(self) -> None:
        """Refuse a SQLite database that is not there: SQLite would make it."""
        path = self.parts.database or ""
        if path.startswith("file:"):
            path = unquote(path.removeprefix("file:").partition("?")[0])
        if not path or path == ":memory:" or not Path(path).is_file():
            raise no_sqlite(path, UnknownTable, "A source is a database that is there; none is made.")


def _quoted(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
