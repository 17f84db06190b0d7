"""A home opened in this process: its metadata in the store, the events of each stream in the store or in Kafka."""

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING

from floodmark.control import Home
from floodmark.errors import StreamDeleted
from floodmark.streams.definition import LogTopic, StreamInfo
from floodmark.streams.events import Events
from floodmark.streams.groups.requests import News, StreamSubscription, Subscription
from floodmark.streams.layout.layout import Layout
from floodmark.streams.local.catalog import Catalog
from floodmark.streams.local.groups import GroupStore, wait_for_news
from floodmark.streams.local.log import TableLog
from floodmark.streams.local.marks import MarksTable
from floodmark.streams.local.registry import Registry
from floodmark.streams.local.transactions import Transactions
from floodmark.streams.local.watermarks import read_inputs
from floodmark.streams.marks.watermark import WatermarkExplanation, explain_watermark
from floodmark.streams.ports import Author, Chunk, OpenedWriter, StreamLog

if TYPE_CHECKING:
    from floodmark.streams.kafka.connections import ClusterConnections, StreamTopics
    from floodmark.streams.kafka.log import KafkaLog
    from floodmark.streams.kafka.marks_topic import MarksPublisher


class LocalBackend:
    """What is kept in a home. `on_wake` is called when a writer of this process was heard.

    New streams have their events in the home, or in Kafka if `log` says where that is; `log_options` are the `kafka.`
    options of all clusters. Kafka's client is loaded when a stream needs it.
    """

    def __init__(
        self,
        home: Home,
        *,
        log: str | None = None,
        log_options: Mapping[str, str] | None = None,
        failpoint: Callable[[str], None] = lambda place: None,
    ) -> None:
        """Keep it in this home. A test may let `failpoint` stop the process where writing to Kafka has come to."""
        self.home = home
        self._failpoint = failpoint
        self._log = log
        self._log_options = dict(log_options or {})
        self.catalog = Catalog(home, self)
        self._tables = TableLog(home, self.catalog)
        self.log = RoutedLog(self._tables, lambda: self.kafka_log)
        self.registry = Registry(home, self.catalog, self.log)
        self.transactions = Transactions(home, self.catalog, self.log, self.registry)
        self.groups = GroupStore(home, self.catalog, self.log)
        self.on_wake: Callable[[], None] = lambda: None

    @cached_property
    def kafka_log(self) -> "KafkaLog":
        """The log of those streams whose events are in Kafka."""
        from floodmark.streams.kafka.log import KafkaLog

        return KafkaLog(self.home, self.catalog, self._tables, self._connections, self._failpoint)

    @cached_property
    def marks_publisher(self) -> "MarksPublisher":
        """What keeps the marks topics of those streams up to date."""
        from floodmark.streams.kafka.marks_topic import MarksPublisher

        return MarksPublisher(self.home, self.catalog, self._connections)

    def make(self, name: str, stream_id: int, segments: int) -> LogTopic | None:
        """Return where the events of a new stream are kept; None for the home itself."""
        if self._log is None:
            return None
        self.catalog.check_free(name, stream_id)
        return self._topics.make(self._log, name, stream_id, segments)

    def remove(self, place: LogTopic) -> None:
        """Remove the events of a stream that is no more from Kafka."""
        self._topics.remove(place)

    def tend_topics(self, buckets: Collection[int]) -> None:
        """Look after those streams of these buckets whose events are in Kafka.

        What somebody who may be dead has begun is brought to an end, and new marks are published.
        """
        if buckets and self.catalog.has_topics:
            self.kafka_log.sweep(buckets)
            self.transactions.sweep(buckets, in_topics=True)
            self.marks_publisher.publish(buckets)

    def news(self, wanted: Subscription, seconds: float) -> News:
        """Return as soon as something is newer than what is known, or when the time is over."""
        return wait_for_news(self.home, wanted, seconds, self._ends_in_kafka)

    def marks(self, stream: StreamInfo, key: str) -> MarksTable:
        """Return the marks log of a stream and key."""
        return MarksTable(self.home, stream.id, key)

    def explain(self, stream: StreamInfo, key: str) -> WatermarkExplanation:
        """Return why the watermark of a stream and key stands where it stands."""
        (known,) = read_inputs(self.home, self.catalog, [(stream.id, key)])
        rules, layout = stream.settings.rules, known.stream.layout
        return explain_watermark(stream.name, key, known.records, known.last, rules, layout=layout, now=self.home.now())

    def now(self) -> int:
        """Return the time by the clock of the store."""
        return self.home.now()

    def wake(self) -> None:
        """Say that a writer was heard."""
        self.on_wake()

    def close(self) -> None:
        """Let go of the home, and of Kafka."""
        if "_connections" in self.__dict__:
            self._connections.close()
        self.home.close()

    def _ends_in_kafka(self, known: StreamSubscription) -> Mapping[int, int] | None:
        """Return where a stream ends whose events are in Kafka; None for another, or one that is no more."""
        stream = self.catalog.find_id(known.stream_id)
        if stream is None or stream.log is None:
            return None
        try:
            return self.log.ends(stream)
        except StreamDeleted:
            return None

    @cached_property
    def _connections(self) -> "ClusterConnections":
        from floodmark.streams.kafka.connections import ClusterConnections

        return ClusterConnections(self._log_options)

    @cached_property
    def _topics(self) -> "StreamTopics":
        from floodmark.streams.kafka.connections import StreamTopics

        return StreamTopics(self._connections)

    def __repr__(self) -> str:
        return repr(self.home)


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

    def opened(self, stream: StreamInfo, opened: OpenedWriter) -> OpenedWriter:
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
