"""The log of a home: each stream's events are where the stream says, in the home itself or in Kafka."""

from collections.abc import Callable, Iterator

from floodmark.streams._catalog import StreamInfo
from floodmark.streams._events import Events
from floodmark.streams._layout import Layout
from floodmark.streams._log import Author, Chunk, Opened, StreamLog


class RoutedLog:
    """Passes everything on to the log that has the stream. The one in Kafka is made when a stream needs it."""

    __slots__ = ("_kafka", "_tables")

    def __init__(self, tables: StreamLog, kafka: Callable[[], StreamLog]) -> None:
        """Keep events in `tables`, or in what `kafka` returns."""
        self._tables = tables
        self._kafka = kafka

    def append(self, stream: StreamInfo, author: Author, first_number: int, events: Events) -> dict[int, int]:
        """Keep events, each once, and return how far the segments they went to are filled by them."""
        return self._of(stream).append(stream, author, first_number, events)

    def ends(self, stream: StreamInfo) -> dict[int, int]:
        """Return the end of each segment, sealed ones included; only what is committed counts."""
        return self._of(stream).ends(stream)

    def read(self, stream: StreamInfo, segment: int, start: int, end: int) -> Iterator[Chunk]:
        """Return the events of a segment from one offset to before another, as far as they are there."""
        return self._of(stream).read(stream, segment, start, end)

    def scale(self, stream: StreamInfo, change: Callable[[Layout], Layout]) -> StreamInfo:
        """Seal segments and open those that take their place."""
        return self._of(stream).scale(stream, change)

    def seal(self, stream: StreamInfo) -> StreamInfo:
        """Let the stream take no more events."""
        return self._of(stream).seal(stream)

    def add(self, stream: StreamInfo, transaction: str, part: int, events: Events) -> None:
        """Keep events apart until their transaction is committed."""
        self._of(stream).add(stream, transaction, part, events)

    def opened(self, stream: StreamInfo, opened: Opened) -> Opened:
        """Return a writer that was opened, with how many events of its id the log really has."""
        return self._of(stream).opened(stream, opened)

    def closed(self, stream: StreamInfo, author: Author) -> None:
        """Hear that a writer comes to its end."""
        self._of(stream).closed(stream, author)

    def commit(self, stream: StreamInfo, transaction: str) -> dict[int, int]:
        """Put all events of a transaction into the stream, or none; return how far they fill the segments."""
        return self._of(stream).commit(stream, transaction)

    def abort(self, stream: StreamInfo, transaction: str) -> None:
        """Forget the events of a transaction."""
        self._of(stream).abort(stream, transaction)

    def _of(self, stream: StreamInfo) -> StreamLog:
        return self._tables if stream.log is None else self._kafka()
