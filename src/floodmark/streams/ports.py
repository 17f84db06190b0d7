"""The ports of a home: the protocols through which streams, writers and readers use it, and the values they pass.

`Backend` is implemented by `backend.LocalBackend` (a home opened in this process) and by `remote.backend` (a home
behind a service). `StreamLog` is implemented by `local.log` (events in the home) and by `kafka.log`.
"""

import enum
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from floodmark.errors import FloodmarkError
from floodmark.streams.definition import StreamInfo, StreamSettings
from floodmark.streams.events import Events
from floodmark.streams.groups.requests import GroupRef, NewGroup, News, Report, StreamBounds, Subscription
from floodmark.streams.groups.state import GroupState
from floodmark.streams.layout.layout import Layout
from floodmark.streams.layout.positions import Position
from floodmark.streams.layout.retention import RetentionStatus
from floodmark.streams.marks.log import MarkEntry, MarksIndex
from floodmark.streams.marks.watermark import WatermarkExplanation
from floodmark.streams.marks.writer_record import MarkOutcome


@dataclass(frozen=True, slots=True)
class Author:
    """One instance of a writer. Each time a writer is opened, its id gets the next instance number."""

    writer: str
    instance: int


@dataclass(frozen=True, slots=True)
class OpenedWriter:
    """The result of opening a writer.

    `next_number` is how many events of this id the stream has. `watermarks` has the watermark of each key: only later
    times advance it.
    """

    author: Author
    next_number: int
    watermarks: Mapping[str, int | None]


@dataclass(frozen=True, slots=True)
class Chunk:
    """Events of a segment with consecutive offsets, starting at `first`.

    `batch` is a pyarrow.RecordBatch with the columns of the stream's schema.
    """

    segment: int
    first: int
    batch: Any

    @property
    def end(self) -> int:
        """The offset after the last event."""
        return int(self.first + self.batch.num_rows)

    def slice(self, start: int, end: int) -> "Chunk":
        """Return the events from offset `start` to before `end`."""
        low, high = max(start, self.first), min(end, self.end)
        return Chunk(self.segment, low, self.batch.slice(low - self.first, max(high - low, 0)))


class EventLog(Protocol):
    """The events of streams, as writers and readers use them.

    Offsets increase by one for each event of a segment, but a log may skip some. The log routes events to segments
    itself, because only it knows when a segment is sealed. Events for a sealed segment go to its successors, in order,
    after all events of the sealed segment are committed or aborted.
    """

    def append(self, stream: StreamInfo, author: Author, first_number: int, events: Events) -> dict[int, int]:
        """Append events exactly once, and return the new end of each segment that got some.

        The writer numbers its events without gaps, so that events sent again by a retry are not appended twice. An
        author that is not the newest instance of its writer is refused with `WriterSuperseded` (fencing).
        """

    def ends(self, stream: StreamInfo) -> dict[int, int]:
        """Return the end of each segment, sealed ones included, counting committed events only."""

    def starts(self, stream: StreamInfo) -> dict[int, int]:
        """Return the start of each segment from which retention has removed events."""

    def read(self, stream: StreamInfo, segment: int, start: int, end: int) -> Iterator[Chunk]:
        """Return the events of a segment from offset `start` to before `end`, without waiting for new ones.

        Events that retention has removed are left out.
        """

    def scale(self, stream: StreamInfo, change: Callable[[Layout], Layout]) -> StreamInfo:
        """Change the layout: seal segments and open their successors."""

    def seal(self, stream: StreamInfo) -> StreamInfo:
        """Seal the stream: it takes no more events."""

    def add(self, stream: StreamInfo, transaction: str, part: int, events: Events) -> None:
        """Stage events until their transaction is committed. `part` numbers the calls, which makes them idempotent."""


class StreamLog(EventLog, Protocol):
    """The full interface of a log, including what the writer registry and the transaction keeper need of it."""

    def writer_opened(self, stream: StreamInfo, opened: OpenedWriter) -> OpenedWriter:
        """Called when a writer was opened. Return it with the `next_number` that the log really has."""

    def writer_closed(self, stream: StreamInfo, author: Author) -> None:
        """Called when a writer was closed."""

    def commit(self, stream: StreamInfo, transaction: str) -> dict[int, int]:
        """Append all staged events of a transaction atomically; return the new end of each segment that got some."""

    def abort(self, stream: StreamInfo, transaction: str) -> None:
        """Discard the staged events of a transaction."""


OutcomeOrError = MarkOutcome | FloodmarkError
"""The outcome of a mark, or the error that it failed with."""


StreamKey = tuple[int, str]
RecordKey = tuple[int, str, str]


@dataclass(frozen=True, slots=True)
class MarkRequest:
    """A request of a writer to note a mark for a stream and key."""

    stream: StreamInfo
    author: Author
    key: str
    time: int
    position: Position

    @property
    def stream_key(self) -> StreamKey:
        """The stream and key of the mark."""
        return self.stream.id, self.key

    @property
    def record_key(self) -> RecordKey:
        """The key of the writer record: stream, time key and writer."""
        return self.stream.id, self.key, self.author.writer


REASON_TIMED_OUT: Final = "it took longer than its timeout"
REASON_OPENED_AGAIN: Final = "its writer was opened again"


class TransactionState(enum.Enum):
    """The state of a transaction."""

    OPEN = "open"
    COMMITTING = "committing"
    COMMITTED = "committed"
    ABORTING = "aborting"
    ABORTED = "aborted"


@dataclass(frozen=True, slots=True)
class CommitResult:
    """The result of a commit: the end of its events in each segment, and the outcome of the mark of each key.

    >>> CommitResult({0: 7}, {"at": MarkOutcome.ACCEPTED}).outcome
    <MarkOutcome.ACCEPTED: 'accepted'>
    """

    position: Position
    outcomes: Mapping[str, MarkOutcome] = field(default_factory=dict)

    @property
    def outcome(self) -> MarkOutcome | None:
        """Accepted if all marks were accepted, else the outcome of the first that was refused; None without a mark."""
        refused = (outcome for outcome in self.outcomes.values() if outcome is not MarkOutcome.ACCEPTED)
        return next(refused, MarkOutcome.ACCEPTED) if self.outcomes else None


def new_transaction_id() -> str:
    """Return the id of a new transaction."""
    return uuid.uuid4().hex


class StreamCatalog(Protocol):
    """The streams of a home."""

    def create(self, name: str, settings: StreamSettings, segments: int = 1) -> StreamInfo:
        """Create a stream, or raise `StreamExists`."""

    def find(self, name: str) -> StreamInfo:
        """Return the stream with a name, or raise `UnknownStream`."""

    def all(self) -> list[StreamInfo]:
        """Return all streams, sorted by name."""

    def refresh(self, stream: StreamInfo) -> StreamInfo:
        """Return the current definition of the stream, or raise `StreamDeleted`."""

    def newest_known(self, stream: StreamInfo) -> StreamInfo:
        """Return the newest definition in this process's cache; another process may have changed it since."""

    def alter(self, stream: StreamInfo, changes: Mapping[str, Any]) -> StreamInfo:
        """Change settings."""

    def delete(self, stream: StreamInfo) -> None:
        """Delete the stream with its events and marks."""


class WriterRegistry(Protocol):
    """The writers of streams, and their marks."""

    def open(self, stream: StreamInfo, writer: str | None, keys: Iterable[str]) -> OpenedWriter:
        """Open a writer as a new instance, which fences earlier instances. Without an id the writer is anonymous.

        Commits that earlier instances requested are carried out first, and their open transactions are aborted.
        """

    def note(self, stream: StreamInfo, author: Author, key: str, time: int, position: Position) -> MarkOutcome:
        """Record a mark, and return whether it was accepted. Idempotent."""

    def idle(self, stream: StreamInfo, author: Author, position: Position) -> None:
        """Record that a writer is idle, so that the watermark does not wait for it.

        Its requested commits are carried out first.
        """

    def close(self, stream: StreamInfo, author: Author, position: Position) -> None:
        """Record that a writer was closed, so that the watermark does not wait for it.

        Its requested commits are carried out first.
        """


class TransactionKeeper(Protocol):
    """The transactions of streams."""

    def begin(self, stream: StreamInfo, author: Author, timeout: int | None = None) -> str:
        """Begin a transaction, and return its id. `timeout` is in microseconds; None for that of the stream."""

    def state(self, stream: StreamInfo, transaction: str) -> TransactionState:
        """Return the state of a transaction."""

    def request(self, stream: StreamInfo, transaction: str, times: Mapping[str, int]) -> None:
        """Request the commit of a transaction, with a time to note for each of some keys.

        From then on it will be committed, even if its writer dies.
        """

    def finish(self, stream: StreamInfo, transaction: str) -> CommitResult:
        """Carry out a requested commit, and return its result. Idempotent."""

    def abort(self, stream: StreamInfo, transaction: str) -> None:
        """Abort a transaction."""


class MarksPages(MarksIndex, Protocol):
    """The marks log of a stream and key, with lookups and paging."""

    def entry(self, number: int) -> MarkEntry:
        """Return the entry with that number, or raise `UnknownName` if retention has deleted it."""

    def page(self, after: int, most: int) -> list[MarkEntry]:
        """Return at most `most` entries in order, starting after the number `after`."""


class GroupKeeper(Protocol):
    """The reader groups of a home. All methods are idempotent, so that a lost answer can be retried."""

    def create(self, group: NewGroup) -> GroupState:
        """Create a group, or raise `GroupExists`."""

    def find(self, name: str) -> GroupState:
        """Return the group with a name, or raise `UnknownGroup`."""

    def all(self) -> list[GroupState]:
        """Return all groups, sorted by name."""

    def delete(self, group: GroupRef) -> None:
        """Delete a group."""

    def join(self, group: GroupRef, reader: str, instance: str, ttl: int) -> GroupState:
        """Add a reader, which is expelled after `ttl` microseconds without a report.

        `instance` is a random text that only this reader knows; the state shows its `instance_id`.
        """

    def sync(self, group: GroupRef, report: Report) -> GroupState:
        """Apply the report of a reader, and return the state after it."""

    def leave(self, group: GroupRef, report: Report) -> None:
        """Apply the last report of a reader, and free its segments."""

    def expel(self, group: GroupRef, reader: str, instance_id: str) -> GroupState:
        """Remove a reader that is known to be dead, by the `instance_id` that the state shows."""

    def refresh(self, group: GroupRef) -> GroupState:
        """Apply what is due by time, such as expelling readers past their ttl, and return the state."""

    def start_checkpoint(self, group: GroupRef, checkpoint: str, name: str, timeout: int) -> GroupState:
        """Start a checkpoint with this id. It is abandoned after `timeout` microseconds."""

    def cancel_checkpoint(self, group: GroupRef, checkpoint: str) -> GroupState:
        """Abandon a pending checkpoint."""

    def reset(self, group: GroupRef, reset_id: str, streams: tuple[StreamBounds, ...]) -> GroupState:
        """Set the group to other positions and remove its readers. `reset_id` makes a retry idempotent."""


class Backend(Protocol):
    """A home, as streams, writers and readers use it."""

    @property
    def catalog(self) -> StreamCatalog:
        """The streams of the home."""

    @property
    def log(self) -> EventLog:
        """The events of the streams."""

    @property
    def registry(self) -> WriterRegistry:
        """The writers of the streams."""

    @property
    def transactions(self) -> TransactionKeeper:
        """The transactions of the streams."""

    @property
    def groups(self) -> GroupKeeper:
        """The reader groups of the home."""

    def news(self, subscription: Subscription, seconds: float) -> News:
        """Wait up to `seconds` for something newer than the subscription, and return the current versions."""

    def marks(self, stream: StreamInfo, key: str) -> MarksPages:
        """Return the marks log of a stream and key."""

    def explain(self, stream: StreamInfo, key: str) -> WatermarkExplanation:
        """Return why the watermark of a stream and key is where it is."""

    def retention(self, stream: StreamInfo) -> RetentionStatus:
        """Return what retention has removed of a stream, and what it waits for."""

    def now(self) -> int:
        """Return the time in microseconds since the epoch, by the clock of the store, which all processes share."""

    def wake(self) -> None:
        """Notify the controller of this process, if there is one, that a writer record changed."""

    def close(self) -> None:
        """Close the connections to the home. Idempotent."""
