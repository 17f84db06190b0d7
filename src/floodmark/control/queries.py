"""One record of each streaming query of a home, kept current when events arrive late or out of order."""

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
"""Whether a query is running, or how it ended."""

_STATES: Final = get_args(QueryState)


@dataclass(frozen=True, slots=True)
class QueryRecord:
    """The state of a streaming query at one of its events.

    `incarnations` holds (incarnation, seq, column) for each watermarked column. `batch_id` is -1 before the first
    batch. Times are microseconds since the epoch, except `spark_watermark`: milliseconds, as in Spark.

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
        """Reject values that cannot be stored."""
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
                rule=f"A state is one of: {', '.join(_STATES)}.",
                remedy="Use 'running' until the query ends, then 'stopped' or 'failed'.",
                state=self.state,
            )

    @property
    def has_ended(self) -> bool:
        """Whether this run of the query is over."""
        return self.state != "running"


def merge_records(stored: QueryRecord, arrived: QueryRecord) -> QueryRecord:
    """Merge an arriving record into the stored one, whichever of the two events happened first.

    Of two runs the later one wins. Within a run the newer batch wins, and an ended run stays ended: its last batch is
    often reported after the end.

    >>> stored = QueryRecord("q1", "r1", None, 5, (), None, "stopped", None, (), 100, 200)
    >>> merged = merge_records(stored, replace(stored, batch_id=6, state="running", updated_at=190))
    >>> merged.batch_id, merged.state, merged.updated_at
    (6, 'stopped', 200)
    """
    if stored.run_id != arrived.run_id:
        return stored if (stored.started_at, stored.updated_at) > (arrived.started_at, arrived.updated_at) else arrived
    older, newer = sorted((stored, arrived), key=lambda record: (record.batch_id, record.updated_at))
    ends = sorted((record for record in (older, newer) if record.has_ended), key=lambda record: record.updated_at)
    end = ends[-1] if ends else newer
    return replace(newer, state=end.state, error=end.error, updated_at=max(stored.updated_at, arrived.updated_at))


class Queries:
    """The query records of a home, one for each query.

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
        """Use the records of this home."""
        self._home = home

    def record(self, record: QueryRecord) -> QueryRecord:
        """Merge a record into the stored one and return the result. A late event never overwrites a newer one."""
        with self._home.write() as connection:
            query_row = select(QUERIES).where(QUERIES.c.query_id == record.query_id).with_for_update()
            row = connection.execute(query_row).one_or_none()
            if row is None:
                if insert_if_absent(connection, QUERIES, _row_values(record)):
                    return record
                row = connection.execute(query_row).one()
            stored = _load_record(row)
            merged = merge_records(stored, record)
            if merged != stored:
                connection.execute(
                    update(QUERIES).where(QUERIES.c.query_id == record.query_id).values(_row_values(merged))
                )
            return merged

    def find(self, name_or_id: str) -> QueryRecord:
        """Return the query with this id, else the newest with this name, else the only one whose id starts with it.

        A query that starts with a new checkpoint under an old name is a new query; older ones are found by their ids.

        >>> with Home.open() as home:
        ...     Queries(home).find("ordrs")
        Traceback (most recent call last):
        floodmark.errors.UnknownQuery: There is no query 'ordrs'. ... [unknown-query]
        """
        records = self.all()
        named = [record for record in records if record.name == name_or_id]
        matches = (
            [record for record in records if record.query_id == name_or_id]
            or sorted(named, key=lambda record: (record.started_at, record.updated_at))[-1:]
            or [record for record in records if name_or_id and record.query_id.startswith(name_or_id)]
        )
        if len(matches) == 1:
            return matches[0]
        raise _ambiguous_query(name_or_id, matches) if matches else _unknown_query(name_or_id, records)

    def all(self) -> tuple[QueryRecord, ...]:
        """Return all queries, the most recently updated first."""
        with self._home.read() as connection:
            rows = connection.execute(select(QUERIES).order_by(QUERIES.c.updated_at.desc(), QUERIES.c.query_id)).all()
        return tuple(_load_record(row) for row in rows)


def _unknown_query(name_or_id: str, records: Sequence[QueryRecord]) -> UnknownQuery:
    names = [record.name for record in records if record.name]
    listed = [*dict.fromkeys(names), *(record.query_id for record in records if not record.name)]
    guess = did_you_mean(name_or_id, [*names, *(record.query_id for record in records)])
    return UnknownQuery(
        f"There is no query {name_or_id!r}. {guess}".rstrip(),
        rule=f"Queries in this home: {', '.join(listed) or 'none yet'}.",
        remedy="Use the name, the id or the beginning of the id of one of them, or choose another home.",
        query=name_or_id,
    )


def _ambiguous_query(name_or_id: str, matches: Sequence[QueryRecord]) -> AmbiguousQuery:
    candidates = ", ".join(f"{record.query_id} ({record.name or 'no name'}, {record.state})" for record in matches)
    return AmbiguousQuery(
        f"{len(matches)} queries match {name_or_id!r}: {candidates}.",
        rule="The beginning of an id must match one query; the most recently updated is listed first.",
        remedy="Use the id or the name of one of them, or more of the beginning of its id.",
        query=name_or_id,
        candidates=[record.query_id for record in matches],
    )


def _row_values(record: QueryRecord) -> dict[str, Any]:
    # Free text from Spark and from users: characters that the store cannot hold must not fail the insert.
    free_text = {"name": record.name, "error": record.error}
    return asdict(record) | {
        **{key: None if value is None else replace_unstorable(value) for key, value in free_text.items()},
        "incarnations": to_json(record.incarnations, "incarnations"),
        "warnings": to_json(record.warnings, "warnings"),
    }


def _load_record(row: Row[Any]) -> QueryRecord:
    fields = row._asdict()
    fields["incarnations"] = tuple((name, seq, column) for name, seq, column in from_json(row.incarnations))
    fields["warnings"] = tuple(from_json(row.warnings))
    return QueryRecord(**fields)
