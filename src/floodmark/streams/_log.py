"""What a log must do for a stream: keep events in order, know its ends, end segments, and commit all or nothing."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from floodmark.streams._catalog import StreamInfo
from floodmark.streams._events import Events
from floodmark.streams._layout import Layout


@dataclass(frozen=True, slots=True)
class Author:
    """Who writes: a writer, and which of those that were opened under its id."""

    writer: str
    instance: int


@dataclass(frozen=True, slots=True)
class Opened:
    """A writer as it was opened. `watermarks` is what its times must be above to count, for each key."""

    author: Author
    next_number: int
    watermarks: Mapping[str, int | None]


@dataclass(frozen=True, slots=True)
class Chunk:
    """Events of a segment that lie side by side: the first has the offset `first`, the next one is the next.

    `batch` is a pyarrow.RecordBatch with the columns of the stream's schema.
    """

    segment: int
    first: int
    batch: Any

    @property
    def end(self) -> int:
        """The offset behind the last event."""
        return int(self.first + self.batch.num_rows)

    def slice(self, start: int, end: int) -> "Chunk":
        """Return the events from one offset to before another."""
        low, high = max(start, self.first), min(end, self.end)
        return Chunk(self.segment, low, self.batch.slice(low - self.first, max(high - low, 0)))


class EventLog(Protocol):
    """The events of streams, as writers and readers know them, wherever they are kept.

    Offsets count the events of a segment, or leave some numbers out. A log routes events by itself, since it alone
    knows when a segment ends: events for a segment that is sealed go to those that took its place, in their order, and
    never before all that it holds is settled.
    """

    def append(self, stream: StreamInfo, author: Author, first_number: int, events: Events) -> dict[int, int]:
        """Keep events, each once, and return how far the segments they went to are filled by them.

        The writer numbers its events without gaps; what it sends a second time is there already. An author that is
        not the newest instance of its writer is refused with `WriterSuperseded`.
        """

    def ends(self, stream: StreamInfo) -> dict[int, int]:
        """Return the end of each segment, sealed ones included; only what is committed counts."""

    def read(self, stream: StreamInfo, segment: int, start: int, end: int) -> Iterator[Chunk]:
        """Return the events of a segment from one offset to before another, as far as they are there."""

    def scale(self, stream: StreamInfo, change: Callable[[Layout], Layout]) -> StreamInfo:
        """Seal segments and open those that take their place."""

    def seal(self, stream: StreamInfo) -> StreamInfo:
        """Let the stream take no more events."""

    def add(self, stream: StreamInfo, transaction: str, part: int, events: Events) -> None:
        """Keep events apart until their transaction is committed. A part that comes twice is kept once."""


class StreamLog(EventLog, Protocol):
    """The events of streams, as they are kept: what a log must do to hold them.

    Transactions are ended by who keeps them, at the same place.
    """

    def opened(self, stream: StreamInfo, opened: Opened) -> Opened:
        """Return a writer that was opened, with how many events of its id the log really has."""

    def closed(self, stream: StreamInfo, author: Author) -> None:
        """Hear that a writer comes to its end."""

    def commit(self, stream: StreamInfo, transaction: str) -> dict[int, int]:
        """Put all events of a transaction into the stream, or none; return how far they fill the segments."""

    def abort(self, stream: StreamInfo, transaction: str) -> None:
        """Forget the events of a transaction."""
