"""A tracker in numbers."""

from dataclasses import dataclass

from floodmark._util.names import Name
from floodmark.progress._prefix import NO_WATERMARK, Prefix


@dataclass(frozen=True, slots=True)
class BatchOutcome:
    """What a batch of reports did: the origins whose prefix grew, and how many rows were not news."""

    advanced: tuple[Name, ...]
    duplicates: int
    stale: int


@dataclass(frozen=True, slots=True)
class OriginStatistics:
    """One origin in numbers.

    `prefix` is the last sequence of the gap-free prefix. `pending` counts the pieces kept for what lies behind
    the gaps. `regressions` is a lower bound: so many sequences had a watermark below that of one before them.
    """

    prefix: int
    watermark: int | None
    closed: bool
    incomplete: int
    pending: int
    duplicates: int
    stale: int
    conflicts: int
    regressions: int

    @classmethod
    def of(cls, prefix: Prefix, *, closed: bool) -> "OriginStatistics":
        """Return the numbers of one prefix."""
        return cls(
            prefix=prefix.next - 1,
            watermark=known_time(prefix.watermark),
            closed=closed,
            incomplete=len(prefix.open),
            pending=prefix.pending(),
            duplicates=prefix.duplicates,
            stale=prefix.stale,
            conflicts=prefix.conflicts,
            regressions=prefix.falls,
        )


def known_time(watermark: int) -> int | None:
    """Return a watermark as the caller sees it: None before there is one."""
    return None if watermark == NO_WATERMARK else watermark
