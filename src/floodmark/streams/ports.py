"""What streams, writers and readers need of a home, wherever it is: in this process, or behind a service.

The protocols of a backend and of a log, and the values that pass through them.
"""

import enum
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from floodmark.errors import FloodmarkError
from floodmark.streams.definition import StreamInfo, StreamSettings
from floodmark.streams.events import Events
from floodmark.streams.groups.requests import GroupRef, NewGroup, News, Report, StreamBounds, Subscription
from floodmark.streams.groups.state import GroupState
from floodmark.streams.layout.layout import Layout
from floodmark.streams.layout.positions import Position
from floodmark.streams.marks.log import MarkEntry, MarksIndex
from floodmark.streams.marks.watermark import WatermarkExplanation
from floodmark.streams.marks.writer_record import MarkOutcome


@dataclass(frozen=True, slots=True)
class Author:
    """Who writes: a writer, and which of those that were opened under its id."""

    writer: str
    instance: int


@dataclass(frozen=True, slots=True)
class OpenedWriter:
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

    def opened(self, stream: StreamInfo, opened: OpenedWriter) -> OpenedWriter:
        """Return a writer that was opened, with how many events of its id the log really has."""

    def closed(self, stream: StreamInfo, author: Author) -> None:
        """Hear that a writer comes to its end."""

    def commit(self, stream: StreamInfo, transaction: str) -> dict[int, int]:
        """Put all events of a transaction into the stream, or none; return how far they fill the segments."""

    def abort(self, stream: StreamInfo, transaction: str) -> None:
        """Forget the events of a transaction."""


OutcomeOrError = MarkOutcome | FloodmarkError
"""What became of a mark: an outcome, or why it was none."""


StreamKey = tuple[int, str]
RecordKey = tuple[int, str, str]


@dataclass(frozen=True, slots=True)
class MarkRequest:
    """A mark that a writer wants to make in a stream, for a key."""

    stream: StreamInfo
    author: Author
    key: str
    time: int
    position: Position

    @property
    def target(self) -> StreamKey:
        """The stream and key it is for."""
        return self.stream.id, self.key

    @property
    def place(self) -> RecordKey:
        """Where the record of its writer is."""
        return self.stream.id, self.key, self.author.writer


REASON_TIMED_OUT: Final = "it took longer than its timeout"
REASON_OPENED_AGAIN: Final = "its writer was opened again"


class TransactionState(enum.Enum):
    """Where a transaction is: open, on the way to one of two ends, or at that end."""

    OPEN = "open"
    COMMITTING = "committing"
    COMMITTED = "committed"
    ABORTING = "aborting"
    ABORTED = "aborted"


@dataclass(frozen=True, slots=True)
class CommitResult:
    """What a commit came to: how far its events fill the segments, and what became of its mark, if it had a time."""

    position: Position
    outcome: MarkOutcome | None


def new_transaction_id() -> str:
    """Return the id of a new transaction."""
    return uuid.uuid4().hex


class StreamCatalog(Protocol):
    """The streams of a home; see `Catalog`."""

    def create(self, name: str, settings: StreamSettings, segments: int = 1) -> StreamInfo:
        """Make a stream under a name that no other has."""

    def find(self, name: str) -> StreamInfo:
        """Return the stream of a name, or refuse a name that none has."""

    def all(self) -> list[StreamInfo]:
        """Return all streams, by their names."""

    def refresh(self, stream: StreamInfo) -> StreamInfo:
        """Return what the stream is now."""

    def newest_known(self, stream: StreamInfo) -> StreamInfo:
        """Return the newest that this process has seen of the stream; others may have changed it since."""

    def alter(self, stream: StreamInfo, changes: Mapping[str, Any]) -> StreamInfo:
        """Change settings."""

    def delete(self, stream: StreamInfo) -> None:
        """Forget the stream, its events and its marks."""


class WriterRegistry(Protocol):
    """The writers of streams; see `Registry`."""

    def open(self, stream: StreamInfo, writer: str | None, keys: Iterable[str]) -> OpenedWriter:
        """Open a writer, new or known."""

    def note(self, stream: StreamInfo, author: Author, key: str, time: int, position: Position) -> MarkOutcome:
        """Take a mark, or say why not."""

    def idle(self, stream: StreamInfo, author: Author, position: Position) -> None:
        """Take a writer's word that nothing comes for now."""

    def close(self, stream: StreamInfo, author: Author, position: Position) -> None:
        """Take a writer's word that nothing comes any more."""


class TransactionKeeper(Protocol):
    """The transactions of streams; see `Transactions`."""

    def begin(self, stream: StreamInfo, author: Author, timeout: int | None = None) -> str:
        """Begin a transaction, and return its id."""

    def state(self, stream: StreamInfo, transaction: str) -> TransactionState:
        """Return where a transaction is."""

    def request(self, stream: StreamInfo, transaction: str, key: str | None, time: int | None) -> None:
        """Ask for a commit."""

    def finish(self, stream: StreamInfo, transaction: str) -> CommitResult:
        """Commit a transaction for which that was asked."""

    def abort(self, stream: StreamInfo, transaction: str) -> None:
        """Give a transaction up."""


class MarksPages(MarksIndex, Protocol):
    """The marks log of a stream and key; see `MarksTable`."""

    def page(self, after: int, most: int) -> list[MarkEntry]:
        """Return entries in their order, from behind a number on."""


class GroupKeeper(Protocol):
    """The reader groups of a home; see `GroupStore`. To ask again after an answer was lost does no harm."""

    def create(self, group: NewGroup) -> GroupState:
        """Make a group under a name that no other has."""

    def find(self, name: str) -> GroupState:
        """Return the group of a name, or refuse a name that none has."""

    def all(self) -> list[GroupState]:
        """Return all groups, by their names."""

    def delete(self, group: GroupRef) -> None:
        """Forget a group."""

    def join(self, group: GroupRef, reader: str, instance: str, ttl: int) -> GroupState:
        """Take a reader in, which may be silent for so many microseconds."""

    def sync(self, group: GroupRef, report: Report) -> GroupState:
        """Take what a reader says of itself, and return where the group is then."""

    def leave(self, group: GroupRef, report: Report) -> None:
        """Take the last word of a reader; its segments are free from then on."""

    def expel(self, group: GroupRef, reader: str, instance: str) -> GroupState:
        """Send a reader away that is known to be dead."""

    def tend(self, group: GroupRef) -> GroupState:
        """Settle what time alone changes, such as readers that have fallen silent, and return the state."""

    def start_checkpoint(self, group: GroupRef, checkpoint: str, name: str, timeout: int) -> GroupState:
        """Begin a checkpoint, by its id, which is given up after so many microseconds."""

    def cancel_checkpoint(self, group: GroupRef, checkpoint: str) -> GroupState:
        """Give a checkpoint up that is not complete."""

    def reset(self, group: GroupRef, reset_id: str, streams: tuple[StreamBounds, ...]) -> GroupState:
        """Set all streams of a group to other places, under an id of this reset, and send its readers away."""


class Backend(Protocol):
    """A home, as streams, writers and readers know it."""

    @property
    def catalog(self) -> StreamCatalog:
        """The streams."""

    @property
    def log(self) -> EventLog:
        """Their events."""

    @property
    def registry(self) -> WriterRegistry:
        """Their writers."""

    @property
    def transactions(self) -> TransactionKeeper:
        """Their transactions."""

    @property
    def groups(self) -> GroupKeeper:
        """Its reader groups."""

    def news(self, wanted: Subscription, seconds: float) -> News:
        """Return as soon as something is newer than what is known, or when the time is over."""

    def marks(self, stream: StreamInfo, key: str) -> MarksPages:
        """Return the marks log of a stream and key."""

    def explain(self, stream: StreamInfo, key: str) -> WatermarkExplanation:
        """Return why the watermark of a stream and key stands where it stands."""

    def now(self) -> int:
        """Return the time in microseconds since the epoch, by the one clock that all who use the home share."""

    def wake(self) -> None:
        """Tell a controller in this process, if there is one, that a writer was heard."""

    def close(self) -> None:
        """Let go of the home; to say so twice is no error."""
