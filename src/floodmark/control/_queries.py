"""The streaming queries that are known to a home, for those who ask why."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from sqlalchemy import Row, select, update

from floodmark._util.codec import from_json, to_json
from floodmark._util.text import did_you_mean, replace_unstorable
from floodmark.control._home import Home
from floodmark.control._query_record import QueryRecord, merged
from floodmark.control._schema import QUERIES
from floodmark.control._store import insert_unless_there
from floodmark.errors import AmbiguousQuery, UnknownQuery


class Queries:
    """One record a query, as new as what was told about it.

    >>> with Home.open() as home:
    ...     queries = Queries(home)
    ...     kept = queries.record(
    ...         QueryRecord("6f1c-22", "r1", "orders", 4, (), None, "running", None, (), started_at=100, updated_at=200)
    ...     )
    ...     queries.find("orders").query_id, queries.find("6f1").query_id
    ('6f1c-22', '6f1c-22')
    """

    __slots__ = ("_home",)

    def __init__(self, home: Home) -> None:
        """Keep them in this home."""
        self._home = home

    def record(self, record: QueryRecord) -> QueryRecord:
        """Take note of a query and return what is now known: an event that comes late changes nothing newer."""
        with self._home.write() as connection:
            wanted = select(QUERIES).where(QUERIES.c.query_id == record.query_id).with_for_update()
            row = connection.execute(wanted).one_or_none()
            if row is None:
                if insert_unless_there(connection, QUERIES, _columns(record)):
                    return record
                row = connection.execute(wanted).one()
            known = _record(row)
            kept = merged(known, record)
            if kept != known:
                connection.execute(update(QUERIES).where(QUERIES.c.query_id == record.query_id).values(_columns(kept)))
            return kept

    def find(self, name_or_id: str) -> QueryRecord:
        """Return the query of this id, else of this name, else whose id begins so, if there is only one.

        >>> with Home.open() as home:
        ...     Queries(home).find("ordrs")
        Traceback (most recent call last):
        floodmark.errors.UnknownQuery: There is no query 'ordrs'. ... [unknown-query]
        """
        records = self.all()
        found = (
            [record for record in records if record.query_id == name_or_id]
            or [record for record in records if record.name == name_or_id]
            or [record for record in records if name_or_id and record.query_id.startswith(name_or_id)]
        )
        if len(found) == 1:
            return found[0]
        raise _ambiguous(name_or_id, found) if found else _unknown(name_or_id, records)

    def all(self) -> tuple[QueryRecord, ...]:
        """Return all queries, the one heard of last first."""
        with self._home.read() as connection:
            rows = connection.execute(select(QUERIES).order_by(QUERIES.c.updated_at.desc(), QUERIES.c.query_id)).all()
        return tuple(_record(row) for row in rows)


def _unknown(name_or_id: str, records: Sequence[QueryRecord]) -> UnknownQuery:
    names = [record.name for record in records if record.name]
    listed = [*dict.fromkeys(names), *(record.query_id for record in records if not record.name)]
    guess = did_you_mean(name_or_id, [*names, *(one.query_id for one in records)])
    return UnknownQuery(
        f"There is no query {name_or_id!r}. {guess}".rstrip(),
        rule=f"The home knows: {', '.join(listed) or 'no query yet'}.",
        remedy="Give a name, an id or the beginning of an id, or name another home.",
        query=name_or_id,
    )


def _ambiguous(name_or_id: str, found: Sequence[QueryRecord]) -> AmbiguousQuery:
    candidates = ", ".join(f"{one.query_id} ({one.name or 'no name'}, {one.state})" for one in found)
    return AmbiguousQuery(
        f"{len(found)} queries answer to {name_or_id!r}: {candidates}.",
        rule="The one heard of last is first.",
        remedy="Give the id of one, or enough of its beginning.",
        query=name_or_id,
        candidates=[record.query_id for record in found],
    )


def _columns(record: QueryRecord) -> dict[str, Any]:
    # These come from Spark and from users as they are, and must not keep a query from being known.
    free = {"name": record.name, "error": record.error}
    return asdict(record) | {
        **{key: None if value is None else replace_unstorable(value) for key, value in free.items()},
        "incarnations": to_json(record.incarnations, "incarnations"),
        "warnings": to_json(record.warnings, "warnings"),
    }


def _record(row: Row[Any]) -> QueryRecord:
    fields = row._asdict()
    fields["incarnations"] = tuple((one, seq, column) for one, seq, column in from_json(row.incarnations))
    fields["warnings"] = tuple(from_json(row.warnings))
    return QueryRecord(**fields)
