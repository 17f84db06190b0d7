"""Where a reader of a bound source is: in which timestamp, how far inside it, and how far time has come there."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from floodmark.bindings._history import BindingHistory
from floodmark.errors import SnapshotInvalid


@dataclass(frozen=True, slots=True)
class SourceOffset:
    """A place in a source. It reads the same today and after a restart, for everybody who reads the source.

    >>> offset = SourceOffset("a1b2", 2000, {0: 7}, {"at": 50})
    >>> SourceOffset.load(offset.save()) == offset
    True
    """

    incarnation: str
    """Which query it belongs to: one that starts anew has another."""
    ts: int | None
    """The timestamp that was read last, perhaps not to its end; None before the first."""
    cut: Mapping[int, int]
    """How far each partition was read."""
    watermarks: Mapping[str, int] = field(default_factory=dict)
    """How far time has come: that of the last timestamp that was read to its end."""
    step: int = 0
    """How many empty steps were taken here."""

    def save(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            "incarnation": self.incarnation,
            "ts": self.ts,
            "cut": {str(partition): end for partition, end in sorted(self.cut.items())},
            "watermarks": dict(sorted(self.watermarks.items())),
            "step": self.step,
        }

    @classmethod
    def load(cls, saved: Mapping[str, Any]) -> "SourceOffset":
        """Return what was saved."""
        try:
            cut = {int(partition): int(end) for partition, end in saved["cut"].items()}
            watermarks = {str(key): int(time) for key, time in saved["watermarks"].items()}
            ts = None if saved["ts"] is None else int(saved["ts"])
            return cls(str(saved["incarnation"]), ts, cut, watermarks, int(saved["step"]))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise SnapshotInvalid(
                f"An offset is {saved!r:.200}.",
                rule="It has an incarnation, ts, cut, watermarks and step, as this release writes them.",
                remedy="Start the query with a new checkpoint.",
            ) from error

    def is_at_end_of_ts(self, history: BindingHistory) -> bool:
        """Return whether all that is bound up to its timestamp was read."""
        if self.ts is None:
            return True
        return all(self.cut.get(partition, 0) >= end for partition, end in cut_upto(history, self.ts).items())


def cut_upto(history: BindingHistory, ts: int | None) -> dict[int, int]:
    """Return how far each partition is bound at a timestamp, also one that was compacted; nothing before the first."""
    return {} if ts is None or ts < history.origin else history.cut_at(max(ts, history.since))
