"""What the answer to "why?" consists of. Its fields are the fields of `--json`: they are not renamed."""

from dataclasses import dataclass

from floodmark.control import QueryRecord
from floodmark.progress import Name


@dataclass(frozen=True, slots=True)
class OriginAnswer:
    """One origin of one column. What nobody has told is None.

    `origin` is what it is called in the home, `name` what a person calls it. `watermark` is how far the origin itself
    has come, `newest_time` the newest row that counted. `last_heard` is when a batch last had rows of it. `left_out`
    says that it came back behind the watermark and is not waited for.
    """

    origin: Name
    name: str
    state: str
    idle_cause: str | None
    in_state_since: int | None
    watermark: int | None
    newest_time: int | None
    last_heard: int | None
    holds: bool
    left_out: bool
    future_rows: int
    newest_future: int | None
    late_rows: int | None
    oldest_late: int | None


@dataclass(frozen=True, slots=True)
class ColumnAnswer:
    """One watermarked column, as of its newest step `seq`. Without a step nothing has been computed yet.

    `lacking` names origins that bring other columns but never this one. Rows of the future are counted here where
    nobody told whose they were; these and late rows from the batch `counted_since_batch` on, the oldest that is kept.
    `spark_dropped` is Spark's own number for the whole query: rows, or groups of rows where it groups before it drops.
    """

    column: str
    incarnation: str
    release: str
    warnings: tuple[str, ...] = ()
    seq: int | None = None
    watermark: int | None = None
    computed_at: int | None = None
    is_idle: bool = False
    holders: tuple[str, ...] = ()
    held_since: int | None = None
    lacking: tuple[str, ...] = ()
    counted_since_batch: int | None = None
    future_rows: int = 0
    newest_future: int | None = None
    spark_dropped: int = 0
    origins: tuple[OriginAnswer, ...] = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """One query: what is known of it, and its columns, as of `now`."""

    now: int
    query: QueryRecord
    columns: tuple[ColumnAnswer, ...]
