"""A step of the schema of a home."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Migration:
    """One step: its number, what it is about, and its statements, which SQLite and PostgreSQL both understand."""

    number: int
    about: str
    statements: tuple[str, ...]
