"""The entries of a marks log: each says how far time has come where the cut is passed."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from floodmark._util.codec import new_snapshot, open_snapshot
from floodmark.errors import InvalidValue
from floodmark.progress import Snapshot
from floodmark.streams._positions import Position, load_position, save_position


class EntryKind(enum.Enum):
    """What an entry says."""

    WATERMARK = "watermark"
    """Time has come to `lower`: past the cut, no writer that counted has an event below it."""
    IDLE = "idle"
    """All writers are idle. The watermark stands, and nobody need wait for this stream."""
    UNKNOWN = "unknown"
    """All writers have closed or timed out. The watermark stands, but nobody vouches for what comes."""


@dataclass(frozen=True, slots=True)
class MarkEntry:
    """One entry. `lower` and `upper` are the least and the greatest time of the marks behind it.

    `lower` rises strictly from watermark to watermark; `upper` and the cut never go back. Entries that are no
    watermark repeat the `lower` that stands (None if there never was one).

    >>> entry = MarkEntry(1, EntryKind.WATERMARK, lower=100, upper=102, writers=("w1", "w2"), cut={0: 20}, at=5)
    >>> print(entry)
    1: watermark 100 to 102 at {0: 20}, from w1, w2
    """

    seq: int
    kind: EntryKind
    lower: int | None
    upper: int | None
    writers: tuple[str, ...]
    """Who counted: the watermark is a promise of theirs."""
    cut: Position
    at: int
    """When it was written, by the clock of the store."""

    def __post_init__(self) -> None:
        """Refuse an entry whose times are upside down, or a watermark without any."""
        if self.lower is None or self.upper is None:
            is_wrong = self.kind is EntryKind.WATERMARK or self.lower is not None
        else:
            is_wrong = self.upper < self.lower
        if is_wrong:
            raise InvalidValue(
                f"An entry of kind {self.kind.value!r} has lower {self.lower} and upper {self.upper}.",
                rule="A watermark has both, and upper is not below lower.",
                remedy="Take entries from decide().",
                lower=self.lower,
                upper=self.upper,
            )

    def save(self) -> Snapshot:
        """Return the entry as JSON values.

        >>> entry = MarkEntry(1, EntryKind.WATERMARK, 100, 102, ("w1",), {0: 20}, at=5)
        >>> MarkEntry.load(entry.save()) == entry
        True
        """
        return new_snapshot(
            "mark-entry",
            seq=self.seq,
            entry=self.kind.value,
            lower=self.lower,
            upper=self.upper,
            writers=list(self.writers),
            cut=save_position(self.cut),
            at=self.at,
        )

    @classmethod
    def load(cls, saved: Mapping[str, Any]) -> "MarkEntry":
        """Return the entry that was saved."""
        with open_snapshot(saved, "mark-entry") as state:
            return cls(
                seq=state["seq"],
                kind=EntryKind(state["entry"]),
                lower=state["lower"],
                upper=state["upper"],
                writers=tuple(state["writers"]),
                cut=load_position(state["cut"]),
                at=state["at"],
            )

    def __str__(self) -> str:
        """Return the entry in one line."""
        times = "" if self.lower is None else f" {self.lower} to {self.upper}"
        who = f", from {', '.join(self.writers)}" if self.writers else ""
        return f"{self.seq}: {self.kind.value}{times} at {dict(self.cut)}{who}"
