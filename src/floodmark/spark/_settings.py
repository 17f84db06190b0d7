"""What a computed watermark is computed by: the settings that go with it wherever it is computed."""

import json
from dataclasses import asdict, dataclass
from typing import Final, Literal

from floodmark.progress import BoundedDisorder, Generator, Idleness, OriginWatermarks, Snapshot

MOST_ORIGINS: Final = 1 << 16
"""How many origins one batch may have."""

Late = Literal["drop", "count", "fail", "route"]
"""What happens to rows behind the watermark."""


@dataclass(frozen=True, slots=True)
class WatermarkSettings:
    """The choices of one `with_watermark`, in microseconds, as they are kept with its steps.

    `schema` is that of the rows, as Spark's JSON, where late ones are kept apart.
    """

    column: str
    per: tuple[str, ...]
    delay: int
    idle: int | None
    future: int | None
    assume_caught_up: bool
    late: Late = "drop"
    schema: str | None = None

    def to_json(self) -> str:
        """Return the settings as text that `from_json` reads."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "WatermarkSettings":
        """Return the settings that were written.

        >>> settings = WatermarkSettings("t", ("partition",), 5, None, None, False)
        >>> WatermarkSettings.from_json(settings.to_json()) == settings
        True
        """
        values = json.loads(text)
        return cls(**{**values, "per": tuple(values["per"])})

    def begin(self, now: int) -> OriginWatermarks:
        """Return watermarks that have seen nothing yet."""
        return OriginWatermarks(self._generators(), now=now, idle=self._idleness())

    def resume(self, snapshot: Snapshot, now: int) -> OriginWatermarks:
        """Return watermarks that go on from a snapshot."""
        return OriginWatermarks.restore(snapshot, self._generators(), now=now, idle=self._idleness())

    def _generators(self) -> dict[str, Generator]:
        return {self.column: BoundedDisorder(self.delay)}

    def _idleness(self) -> Idleness:
        return Idleness(timeout=self.idle)
