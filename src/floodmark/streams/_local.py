"""The home of streams in this process: everything goes straight to the store, and events to their log."""

from collections.abc import Callable, Collection, Mapping
from functools import cached_property
from typing import TYPE_CHECKING

from floodmark.control import Home
from floodmark.errors import StreamDeleted
from floodmark.streams._catalog import Catalog, StreamInfo
from floodmark.streams._cycle import read
from floodmark.streams._log_place import LogPlace
from floodmark.streams._marks_table import MarksTable
from floodmark.streams._registry import Registry
from floodmark.streams._routed_log import RoutedLog
from floodmark.streams._table_log import TableLog
from floodmark.streams._transactions import Transactions
from floodmark.streams._why import WatermarkExplanation, explain_watermark
from floodmark.streams.readers._news import wait_for_news
from floodmark.streams.readers._requests import News, Wanted, WantedStream
from floodmark.streams.readers._store import GroupStore

if TYPE_CHECKING:
    from floodmark.streams.kafka_log import Connections, KafkaLog, MarksPublisher, StreamTopics


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
        from floodmark.streams.kafka_log import KafkaLog

        return KafkaLog(self.home, self.catalog, self._tables, self._connections, self._failpoint)

    @cached_property
    def marks_publisher(self) -> "MarksPublisher":
        """What keeps the marks topics of those streams up to date."""
        from floodmark.streams.kafka_log import MarksPublisher

        return MarksPublisher(self.home, self.catalog, self._connections)

    def make(self, name: str, stream_id: int, segments: int) -> LogPlace | None:
        """Return where the events of a new stream are kept; None for the home itself."""
        if self._log is None:
            return None
        self.catalog.check_free(name, stream_id)
        return self._topics.make(self._log, name, stream_id, segments)

    def remove(self, place: LogPlace) -> None:
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

    def news(self, wanted: Wanted, seconds: float) -> News:
        """Return as soon as something is newer than what is known, or when the time is over."""
        return wait_for_news(self.home, wanted, seconds, self._ends_in_kafka)

    def marks(self, stream: StreamInfo, key: str) -> MarksTable:
        """Return the marks log of a stream and key."""
        return MarksTable(self.home, stream.id, key)

    def explain(self, stream: StreamInfo, key: str) -> WatermarkExplanation:
        """Return why the watermark of a stream and key stands where it stands."""
        (known,) = read(self.home, self.catalog, [(stream.id, key)])
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

    def _ends_in_kafka(self, known: WantedStream) -> Mapping[int, int] | None:
        """Return where a stream ends whose events are in Kafka; None for another, or one that is no more."""
        stream = self.catalog.find_id(known.stream_id)
        if stream is None or stream.log is None:
            return None
        try:
            return self.log.ends(stream)
        except StreamDeleted:
            return None

    @cached_property
    def _connections(self) -> "Connections":
        from floodmark.streams.kafka_log import Connections

        return Connections(self._log_options)

    @cached_property
    def _topics(self) -> "StreamTopics":
        from floodmark.streams.kafka_log import StreamTopics

        return StreamTopics(self._connections)

    def __repr__(self) -> str:
        return repr(self.home)
