"""The backend of a home opened in this process: metadata in the store, events in the store or in Kafka."""

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING

from floodmark.control import Home
from floodmark.errors import StreamDeleted
from floodmark.streams.definition import LogTopic, StreamInfo
from floodmark.streams.events import Events
from floodmark.streams.groups.requests import News, StreamSubscription, Subscription
from floodmark.streams.layout.layout import Layout
from floodmark.streams.layout.retention import RetentionStatus
from floodmark.streams.local.catalog import Catalog
from floodmark.streams.local.groups import GroupStore, wait_for_news
from floodmark.streams.local.log import TableLog
from floodmark.streams.local.marks import MarksTable
from floodmark.streams.local.registry import Registry
from floodmark.streams.local.retention import TableRetention
from floodmark.streams.local.transactions import Transactions
from floodmark.streams.local.watermarks import read_inputs
from floodmark.streams.marks.watermark import WatermarkExplanation, explain_watermark
from floodmark.streams.ports import Author, Chunk, OpenedWriter, StreamLog

if TYPE_CHECKING:
    from floodmark.streams.kafka.connections import ClusterConnections, StreamTopics
    from floodmark.streams.kafka.log import KafkaLog
    from floodmark.streams.kafka.marks_topic import MarksPublisher
    from floodmark.streams.kafka.retention import KafkaRetention


class LocalBackend:
    """Implements `ports.Backend` on the store of a home.

    The Kafka client is loaded when a stream first needs it. `on_wake` is called when a writer of this process noted
    time, became idle or closed.
    """

    def __init__(
        self,
        home: Home,
        *,
        log: str | None = None,
        log_options: Mapping[str, str] | None = None,
        failpoint: Callable[[str], None] = lambda name: None,
    ) -> None:
        """Use this home.

        Args:
            home: The opened home.
            log: The Kafka brokers (`host:port,...`) for the events of new streams; None to keep events in the store.
            log_options: The `kafka.` options of all clusters.
            failpoint: For tests: called with the name of each step of a write to Kafka.
        """
        self.home = home
        self._failpoint = failpoint
        self._log = log
        self._log_options = dict(log_options or {})
        self.catalog = Catalog(home, self)
        self._tables = TableLog(home, self.catalog)
        self.log = RoutedLog(self._tables, lambda: self.kafka_log)
        self.transactions = Transactions(home, self.catalog, self.log)
        self.registry = Registry(home, self.catalog, self.log, self.transactions)
        self.groups = GroupStore(home, self.catalog, self.log)
        self.table_retention = TableRetention(home, self.catalog, failpoint)
        self.on_wake: Callable[[], None] = lambda: None

    @cached_property
    def kafka_log(self) -> "KafkaLog":
        """The log of the streams whose events are in Kafka."""
        from floodmark.streams.kafka.log import KafkaLog

        return KafkaLog(self.home, self.catalog, self._tables, self._connections, self._failpoint)

    @cached_property
    def kafka_retention(self) -> "KafkaRetention":
        """Removes old events of the streams whose events are in Kafka."""
        from floodmark.streams.kafka.retention import KafkaRetention

        return KafkaRetention(self.home, self.catalog, self._connections, self.kafka_log, self._failpoint)

    @cached_property
    def marks_publisher(self) -> "MarksPublisher":
        """Publishes new marks log entries to the marks topics of these streams."""
        from floodmark.streams.kafka.marks_topic import MarksPublisher

        return MarksPublisher(self.home, self.catalog, self._connections)

    def make(self, name: str, stream_id: int, segments: int) -> LogTopic | None:
        """Create the topic of a new stream and return it; None if its events are kept in the store."""
        if self._log is None:
            return None
        self.catalog.check_free(name, stream_id)
        return self._topics.make(self._log, name, stream_id, segments)

    def remove(self, topic: LogTopic) -> None:
        """Delete the topic of a deleted stream."""
        self._topics.remove(topic)

    def maintain_topics(self, buckets: Collection[int]) -> bool:
        """Maintain the streams of these buckets whose events are in Kafka; return whether the home has such streams.

        Finish writes and transactions that other, possibly dead, processes began, publish new marks, and remove old
        events.
        """
        if not buckets or not self.catalog.has_topics:
            return False
        self.kafka_log.sweep(buckets)
        self.transactions.sweep(buckets, in_topics=True)
        self.marks_publisher.publish(buckets)
        self.marks_publisher.trim(buckets)
        self.kafka_retention.sweep(buckets)
        return True

    def news(self, subscription: Subscription, seconds: float) -> News:
        """Wait for something newer than the subscription."""
        return wait_for_news(self.home, subscription, seconds, self._ends_in_kafka)

    def marks(self, stream: StreamInfo, key: str) -> MarksTable:
        """Return the marks log of a stream and key."""
        return MarksTable(self.home, stream.id, key)

    def explain(self, stream: StreamInfo, key: str) -> WatermarkExplanation:
        """Return why the watermark of a stream and key is where it is."""
        (inputs,) = read_inputs(self.home, self.catalog, [(stream.id, key)])
        rules, layout, now = stream.settings.rules, inputs.stream.layout, self.home.now()
        return explain_watermark(stream.name, key, inputs.records, inputs.last, rules, layout=layout, now=now)

    def retention(self, stream: StreamInfo) -> RetentionStatus:
        """Return what retention has removed of a stream, and what it waits for."""
        return (self.table_retention if stream.log is None else self.kafka_retention).status(stream)

    def now(self) -> int:
        """Return the time by the clock of the store."""
        return self.home.now()

    def wake(self) -> None:
        """Call `on_wake`."""
        self.on_wake()

    def close(self) -> None:
        """Close the home and the connections to Kafka."""
        if "_connections" in self.__dict__:
            self._connections.close()
        self.home.close()

    def _ends_in_kafka(self, subscription: StreamSubscription) -> Mapping[int, int] | None:
        """Return the segment ends of a stream whose events are in Kafka; None for other or deleted streams."""
        stream = self.catalog.find_id(subscription.stream_id)
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
    """A `StreamLog` that delegates each call to the log that has the stream's events."""

    __slots__ = ("_kafka", "_tables")

    def __init__(self, tables: StreamLog, kafka: Callable[[], StreamLog]) -> None:
        """Delegate to `tables` or to the log that `kafka` returns; it is called only for streams in Kafka."""
        self._tables = tables
        self._kafka = kafka

    def append(self, stream: StreamInfo, author: Author, first_number: int, events: Events) -> dict[int, int]:
        """Append events exactly once."""
        return self._log_of(stream).append(stream, author, first_number, events)

    def ends(self, stream: StreamInfo) -> dict[int, int]:
        """Return the end of each segment."""
        return self._log_of(stream).ends(stream)

    def starts(self, stream: StreamInfo) -> dict[int, int]:
        """Return the start of each segment from which events were removed."""
        return self._log_of(stream).starts(stream)

    def read(self, stream: StreamInfo, segment: int, start: int, end: int) -> Iterator[Chunk]:
        """Return events of a segment."""
        return self._log_of(stream).read(stream, segment, start, end)

    def scale(self, stream: StreamInfo, change: Callable[[Layout], Layout]) -> StreamInfo:
        """Change the layout."""
        return self._log_of(stream).scale(stream, change)

    def seal(self, stream: StreamInfo) -> StreamInfo:
        """Seal the stream."""
        return self._log_of(stream).seal(stream)

    def add(self, stream: StreamInfo, transaction: str, part: int, events: Events) -> None:
        """Stage events of a transaction."""
        self._log_of(stream).add(stream, transaction, part, events)

    def writer_opened(self, stream: StreamInfo, opened: OpenedWriter) -> OpenedWriter:
        """Notify the log that a writer was opened."""
        return self._log_of(stream).writer_opened(stream, opened)

    def writer_closed(self, stream: StreamInfo, author: Author) -> None:
        """Notify the log that a writer was closed."""
        self._log_of(stream).writer_closed(stream, author)

    def commit(self, stream: StreamInfo, transaction: str) -> dict[int, int]:
        """Append the staged events of a transaction."""
        return self._log_of(stream).commit(stream, transaction)

    def abort(self, stream: StreamInfo, transaction: str) -> None:
        """Discard the staged events of a transaction."""
        self._log_of(stream).abort(stream, transaction)

    def _log_of(self, stream: StreamInfo) -> StreamLog:
        return self._tables if stream.log is None else self._kafka()
