"""A row of a plan: one range to be read, and why."""

from dataclasses import dataclass
from typing import Final, Literal, get_args

from floodmark.ingest._ranges import Range
from floodmark.ingest._unit import Unit

Reason = Literal["failed", "gap", "new", "backfill", "grace"]

REASONS: Final[tuple[Reason, ...]] = get_args(Reason)
"""The most pressing first."""

STAGES: Final = ("first", "new", "backfill", "grace")
"""In which order cells are taken: failed ones and gaps first, the older of either."""


@dataclass(frozen=True, slots=True)
class Row:
    """One range to be read, whole or not at all."""

    unit: Unit
    cell: Range
    """The period it is of, as far as the job reads now."""
    range: Range
    """What exactly is to be read."""
    reason: Reason
    """Why: the most pressing of all reasons."""
    reasons: tuple[Reason, ...]
    """All reasons, in the order of time."""
    attempts: int = 0
    """How often something of it has failed in a row."""
    why: str = ""
    """What holds it, if it is held."""
