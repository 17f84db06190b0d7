"""What streams, writers and readers need of a home, wherever it is: here, or behind a service."""

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from floodmark.errors import StreamDeleted, WriterSuperseded
from floodmark.streams._catalog import StreamInfo
from floodmark.streams._entries import MarkEntry
from floodmark.streams._log import Author, EventLog, Opened
from floodmark.streams._marks_log import MarksIndex
from floodmark.streams._positions import Position
from floodmark.streams._registry import ANONYMOUS
from floodmark.streams._settings import StreamSettings
from floodmark.streams._transaction_rows import TransactionState
from floodmark.streams._transactions import CommitResult
from floodmark.streams._why import WatermarkExplanation
from floodmark.streams._writers import MarkOutcome
from floodmark.streams.readers._requests import GroupRef, NewGroup, News, Report, StreamBounds, Wanted
from floodmark.streams.readers._state import GroupState


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

    def open(self, stream: StreamInfo, writer: str | None, keys: Iterable[str]) -> Opened:
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

    def news(self, wanted: Wanted, seconds: float) -> News:
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


def say_closed(backend: Backend, stream: StreamInfo, author: Author, position: Position) -> None:
    """Take a writer's word that nothing comes any more, if there is still somebody to hear it."""
    try:
        backend.registry.close(stream, author, position)
    except (StreamDeleted, WriterSuperseded):
        # Nobody waits for this one any more. If events were lost by that, to flush them has failed and said so.
        return
    if not author.writer.startswith(ANONYMOUS):
        backend.wake()
