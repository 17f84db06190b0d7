"""URLs of databases, as SQLAlchemy writes them: units are read from there, and rows."""

from typing import Any, TypeVar

from floodmark.errors import FloodmarkError, InvalidOption

E = TypeVar("E", bound=FloodmarkError)


def parsed_url(text: str, password: str | None = None) -> Any:
    """Return a URL in parts, with a password if it is given apart; refuse one that is none, without showing it.

    >>> parsed_url("postgresql://ann@db/shop", "x").password
    'x'
    >>> parsed_url("shop.db")
    Traceback (most recent call last):
    floodmark.errors.InvalidOption: The URL of the database cannot be read. ... [invalid-option]
    """
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        parts = make_url(text)
    except (ArgumentError, ValueError):
        raise not_a_url() from None
    return parts if password is None else parts.set(password=password)


def not_a_url() -> InvalidOption:
    """Return the error for a URL that cannot be read, which does not show it."""
    return InvalidOption(
        "The URL of the database cannot be read.",
        rule="It is written as SQLAlchemy writes it.",
        remedy='Write for example "postgresql://USER@HOST/DATABASE" or "sqlite:///FILE".',
        option="url",
    )


def no_sqlite(path: str, kind: type[E], rule: str) -> E:
    """Return the error for a database of SQLite that is not there: SQLite would make it."""
    return kind(
        f"There is no SQLite database {path or ':memory:'}.",
        rule=rule,
        remedy="Correct the URL; sqlite:////x has an absolute path, sqlite:///x one in the working directory.",
        path=path,
    )
