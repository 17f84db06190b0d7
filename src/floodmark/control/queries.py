"""The streaming queries that are known to a home: a record of each, and which of two accounts of one holds."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Literal, get_args

from sqlalchemy import Row, select, update

from floodmark._util.codec import from_json, to_json
from floodmark._util.ints import check_int64, check_number
from floodmark._util.names import check_id
from floodmark._util.text import did_you_mean, replace_unstorable
from floodmark.control.home import Home
from floodmark.control.store.base import insert_if_absent
from floodmark.control.tables import QUERIES
from floodmark.errors import AmbiguousQuery, InvalidOption, UnknownQuery

QueryState = Literal["running", "stopped", "failed"]
"""Whether a query runs, or how it ended."""

_STATES: Final = get_args(QueryState)


@dataclass(frozen=True, slots=True)
class QueryRecord:
    """A streaming query as of one of its events.

    `incarnations` has, for each watermarked column, (incarnation, seq, column). `batch_id` is -1 before the first
    batch. Times are microseconds since the epoch; `spark_watermark` is milliseconds, as Spark has it.

    >>> QueryRecord("q1", "r1", "orders", 4, (("a1", 4, "order_time"),), None, "running", None, (), 100, 200).state
    'running'
    """

    query_id: str
    run_id: str
    name: str | None
    batch_id: int
    incarnations: tuple[tuple[str, int, str], ...]
    spark_watermark: int | None
    state: QueryState
    error: str | None
    warnings: tuple[str, ...]
    started_at: int
    updated_at: int

    def __post_init__(self) -> None:
        """Refuse what cannot be kept."""
        check_id("query_id", self.query_id)
        check_id("run_id", self.run_id)
        check_number("batch_id", self.batch_id, least=-1)
        check_int64(self.started_at, "started_at")
        check_int64(self.updated_at, "updated_at")
        if self.spark_watermark is not None:
            check_int64(self.spark_watermark, "spark_watermark")
        if self.state not in _STATES:
            raise InvalidOption(
                f"The state of the query is {self.state!r}.",
                rule=f"It is one of: {', '.join(_STATES)}.",
                remedy="Use 'running' until the query has ended.",
                state=self.state,
            )

    @property
    def has_ended(self) -> bool:
        """Whether this run of the query is over."""
        return self.state != "running"


def merge_records(known: QueryRecord, told: QueryRecord) -> QueryRecord:
    """Return what holds when `told` arrives after `known`, in whichever order the two things happened.

    Of two runs the one that started later holds. Within a run the newer batch holds, and an end stays an end:
    the last batch is often told after it.

    >>> known = QueryRecord("q1", "r1", None, 5, (), None, "stopped", None, (), 100, 200)
    >>> kept = merge_records(known, replace(known, batch_id=6, state="running", updated_at=190))
    >>> kept.batch_id, kept.state, kept.updated_at
    (6, 'stopped', 200)
    """
    if known.run_id != told.run_id:
        return known if (known.started_at, known.updated_at) > (told.started_at, told.updated_at) else told
    older, newer = sorted((known, told), key=lambda record: (record.batch_id, record.updated_at))
    ends = sorted((record for record in (older, newer) if record.has_ended), key=lambda record: record.updated_at)
    end = ends[-1] if ends else newer
    return replace(newer, state=end.state, error=end.error, updated_at=max(known.updated_at, told.updated_at))


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
                if insert_if_absent(connection, QUERIES, _row_values(record)):
                    return record
                row = connection.execute(wanted).one()
            known = _load_record(row)
            kept = merge_records(known, record)
            if kept != known:
                connection.execute(
                    update(QUERIES).where(QUERIES.c.query_id == record.query_id).values(_row_values(kept))
                )
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
        raise _ambiguous_query(name_or_id, found) if found else _unknown_query(name_or_id, records)

    def all(self) -> tuple[QueryRecord, ...]:
        """Return all queries, the one heard of last first."""
        with self._home.read() as connection:
            rows = connection.execute(select(QUERIES).order_by(QUERIES.c.updated_at.desc(), QUERIES.c.query_id)).all()
        return tuple(_load_record(row) for row in rows)


def _unknown_query(name_or_id: str, records: Sequence[QueryRecord]) -> UnknownQuery:
    names = [record.name for record in records if record.name]
    listed = [*dict.fromkeys(names), *(record.query_id for record in records if not record.name)]
    guess = did_you_mean(name_or_id, [*names, *(one.query_id for one in records)])
    return UnknownQuery(
        f"There is no query {name_or_id!r}. {guess}".rstrip(),
        rule=f"The home knows: {', '.join(listed) or 'no query yet'}.",
        remedy="Give a name, an id or the beginning of an id, or name another home.",
        query=name_or_id,
    )


def _ambiguous_query(name_or_id: str, found: Sequence[QueryRecord]) -> AmbiguousQuery:
    candidates = ", ".join(f"{one.query_id} ({one.name or 'no name'}, {one.state})" for one in found)
    return AmbiguousQuery(
        f"{len(found)} queries answer to {name_or_id!r}: {candidates}.",
        rule="The one heard of last is first.",
        remedy="Give the id of one, or enough of its beginning.",
        query=name_or_id,
        candidates=[record.query_id for record in found],
    )


def _row_values(record: QueryRecord) -> dict[str, Any]:
    # These come from Spark and from users as they are, and must not keep a query from being known.
    free = {"name": record.name, "error": record.error}
    return asdict(record) | {
        **{key: None if value is None else replace_unstorable(value) for key, value in free.items()},
        "incarnations": to_json(record.incarnations, "incarnations"),
        "warnings": to_json(record.warnings, "warnings"),
    }


def _load_record(row: Row[Any]) -> QueryRecord:
    fields = row._asdict()
    fields["incarnations"] = tuple((one, seq, column) for one, seq, column in from_json(row.incarnations))
    fields["warnings"] = tuple(from_json(row.warnings))
    return QueryRecord(**fields)
