"""How patient the watermark of a stream is."""

from dataclasses import dataclass

from floodmark._util.ints import check_int64
from floodmark.errors import InvalidOption


@dataclass(frozen=True, slots=True)
class WatermarkRules:
    """The settings of a stream that its watermark depends on: durations, in the unit of the store's clock.

    >>> WatermarkRules(timeout=60_000_000)
    WatermarkRules(timeout=60000000, first_delay=0, rate_floor=0, forget_after=None)
    """

    timeout: int
    """How long the watermark waits for a writer that does not get ahead of it, from the writer's last mark."""
    first_delay: int = 0
    """How long after the first mark the first watermark comes, so that all writers have time to start."""
    rate_floor: int = 0
    """The least time between two entries of the marks log."""
    forget_after: int | None = None
    """How long a writer that timed out is remembered, from its last mark; None for ever."""

    def __post_init__(self) -> None:
        """Refuse a duration below 0."""
        for name in ("timeout", "first_delay", "rate_floor", "forget_after"):
            value = getattr(self, name)
            if (value is None and name == "forget_after") or check_int64(value, name) >= 0:
                continue
            raise InvalidOption(
                f"{name} is {value}.",
                rule="A duration is not below 0.",
                remedy="Pass 0 or more, in the unit of the store's clock.",
                option=name,
                value=value,
            )
