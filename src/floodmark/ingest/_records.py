"""What a home answers about a job: runs, attempts, events, gaps, and how far it has come."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from floodmark.ingest._plan import Plan
from floodmark.ingest._ranges import Range
from floodmark.ingest._unit import Unit

RunState = Literal["running", "done", "failed", "lost"]


@dataclass(frozen=True, slots=True)
class JobInfo:
    """A job that a home knows. `definition` says what decided about its plans when it was last registered."""

    name: str
    definition: Mapping[str, Any]
    created_at: int
    updated_at: int


@dataclass(frozen=True, slots=True)
class RunInfo:
    """A run of a job. One that is lost was overtaken, because it did not renew its lease in time."""

    job: str
    run: int
    owner: str
    token: int
    state: str
    planned_at: int
    """The moment that its plan was made for."""
    plan: Mapping[str, Any]
    """A summary: reach, totals, cells, the keys of the units, the definition of the job."""
    started_at: int
    ended_at: int | None
    succeeded: int = 0
    failed: int = 0
    rows: int = 0


@dataclass(frozen=True, slots=True)
class Attempt:
    """What a run has recorded of one range."""

    run: int
    unit: Unit
    range: Range
    reason: str
    state: str
    """succeeded, failed, or adopted: found to have been landed by an earlier run."""
    rows: int | None
    took: int | None
    """Microseconds."""
    error: str
    at: int


@dataclass(frozen=True, slots=True)
class Event:
    """Something that a person, or a changed job, has done to what is known. Never deleted."""

    job: str
    event: int
    kind: str
    """registered, changed, units changed, backfill, retry, edit, undo or taken over."""
    actor: str
    details: Mapping[str, Any]
    at: int


@dataclass(frozen=True, slots=True)
class Gap:
    """Something that was not read, and why not."""

    unit: Unit
    range: Range
    cause: str


@dataclass(frozen=True, slots=True)
class Status:
    """How far a job has come."""

    job: str
    now: int
    plan: Plan
    """What would be read now."""
    complete_through: int | None
    """Up to when everything was read, of every unit."""
    largest_end: int | None
    """The largest end of all that was read: DIL's high watermark, which says nothing of holes."""
    units: int
    running: RunInfo | None
    last: RunInfo | None
    """The newest run that has ended."""


@dataclass(frozen=True, slots=True)
class Typical:
    """What a cell has taken on average, in the newest runs. Good for an estimate."""

    cells: int
    rows: float | None
    took: float | None
    """Microseconds."""
