"""Where a job lands what it has read, and what becomes of what is there already."""

from dataclasses import dataclass
from typing import Final, Literal

from floodmark.ingest._spec_checks import refused, require_one_of, require_text

Mode = Literal["append", "replace", "merge"]
MODES: Final = ("append", "replace", "merge")
Drift = Literal["evolve", "freeze", "rescue"]
DRIFTS: Final = ("evolve", "freeze", "rescue")


@dataclass(frozen=True, slots=True)
class Landing:
    """A Delta table or a stream of Floodmark's.

    >>> Landing(path="landed/orders", mode="merge", keys=("id",), newest_by="updated_at").kind
    'delta'
    """

    mode: Mode
    """append adds rows; replace puts them in place of those of the same range; merge keeps the newest of each key."""
    path: str | None = None
    """The directory of a Delta table."""
    stream: str | None = None
    """The name of a stream in the home. One of the two."""
    keys: tuple[str, ...] = ()
    """For merge: the columns that name a row."""
    newest_by: str | None = None
    """For merge: of two rows with the same key the one with the larger value is kept; by default the watermark.

    That of files is `_file_time`, unless it is a column of theirs.
    """
    range_column: str | None = None
    """For replace: the column of the table whose range is replaced; by default the watermark, as in `newest_by`."""
    partition_by: tuple[str, ...] = ()
    drift: Drift = "freeze"
    """Columns that the table does not have: it gets them, the cell fails, or they are kept aside as JSON."""

    @property
    def kind(self) -> Literal["delta", "stream"]:
        """What it is."""
        return "delta" if self.path is not None else "stream"

    def __post_init__(self) -> None:
        """Refuse what cannot be landed."""
        require_one_of("mode", self.mode, MODES)
        require_one_of("drift", self.drift, DRIFTS)
        if (self.path is None) == (self.stream is None):
            raise refused(
                "path",
                "The target has both a path and a stream." if self.path else "The target has neither path nor stream.",
                "It is a Delta table, named by its path, or a stream, named by its name.",
                'Write path = "landed/orders" or stream = "orders".',
            )
        require_text("path" if self.path is not None else "stream", self.path or self.stream)
        if (self.mode == "merge") != bool(self.keys):
            raise refused(
                "keys",
                f"The mode is {self.mode!r}, and there are {len(self.keys) or 'no'} keys.",
                "Merging needs the keys of a row, and nothing else has them.",
                'Add keys = ["id"].' if self.mode == "merge" else "Leave keys out, or merge.",
            )
        if len(set(self.keys)) != len(self.keys):
            raise refused("keys", "A key is named twice.", "Each is named once.", "Leave one of them out.")
        for name, mode in (("newest_by", "merge"), ("range_column", "replace")):
            if getattr(self, name) is not None and self.mode != mode:
                raise refused(
                    name, f"The mode is {self.mode!r}, and there is {name}.", f"It belongs to {mode}.", "Leave it out."
                )
        if self.stream is not None and (self.mode == "replace" or self.partition_by):
            raise refused(
                "mode" if self.mode == "replace" else "partition_by",
                f"The target is a stream, and its mode is {self.mode!r}."
                if self.mode == "replace"
                else "The target is a stream, and has partition_by.",
                "What is in a stream stays: events are appended, or newer ones of a key follow. It has segments.",
                'Write mode = "append" or "merge".' if self.mode == "replace" else "Leave partition_by out.",
            )
