"""What is known of one streaming query, and which of two accounts of it holds."""

from dataclasses import dataclass, replace
from typing import Final, Literal, get_args

from floodmark._util.ints import check_int64, check_number
from floodmark._util.names import check_id
from floodmark.errors import InvalidOption

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


def merged(known: QueryRecord, told: QueryRecord) -> QueryRecord:
    """Return what holds when `told` arrives after `known`, in whichever order the two things happened.

    Of two runs the one that started later holds. Within a run the newer batch holds, and an end stays an end:
    the last batch is often told after it.

    >>> known = QueryRecord("q1", "r1", None, 5, (), None, "stopped", None, (), 100, 200)
    >>> kept = merged(known, replace(known, batch_id=6, state="running", updated_at=190))
    >>> kept.batch_id, kept.state, kept.updated_at
    (6, 'stopped', 200)
    """
    if known.run_id != told.run_id:
        return known if (known.started_at, known.updated_at) > (told.started_at, told.updated_at) else told
    older, newer = sorted((known, told), key=lambda record: (record.batch_id, record.updated_at))
    ends = sorted((record for record in (older, newer) if record.has_ended), key=lambda record: record.updated_at)
    end = ends[-1] if ends else newer
    return replace(newer, state=end.state, error=end.error, updated_at=max(known.updated_at, told.updated_at))
