"""A topic that is written without transactions as a target: records in its progress topic say which rows count.

Each row has, as headers, its timestamp, the name of the task that has sent it, and its number there. A record names the
tasks that count. They have one partition, and so all agree which record of a number is the first: it counts. Each has a
key of its own, and so Kafka keeps all of them, as long as it keeps rows.
"""

from collections.abc import Iterator
from typing import Final

from floodmark.kafka import Fetcher, KafkaCluster, KafkaSettings
from floodmark.sinks._closings import Closing, counted
from floodmark.sinks._plain_producer import PlainProducer
from floodmark.sinks._topic_contents import has_records
from floodmark.sinks._topic_shape import TopicShapes, progress_topic_of

_PREFIX: Final = "floodmark.closing/"


class TopicLog:
    """The records of a sink that writes to a topic without transactions."""

    noun = "topic"

    def __init__(
        self, settings: KafkaSettings, topic: str, sink: str, *, partitions: int = 1, progress_topic: str | None = None
    ) -> None:
        """Write to this topic; one that is made gets so many partitions."""
        self.sink = sink
        self.settings = settings
        self.topic = topic
        self.progress_topic = progress_topic or progress_topic_of(topic)
        self._partitions = partitions
        self._cluster = KafkaCluster(settings)
        self._producer: PlainProducer | None = None
        self._next = 0
        self._newest: Closing | None = None

    @property
    def place(self) -> str:
        """The topic."""
        return self.topic

    @property
    def address(self) -> str:
        """The cluster and the topic, without any secret."""
        return f"{self.settings.url}/{self.topic}"

    def open(self) -> str | None:
        """Return the id of the topic, or None if there is none."""
        found = self._cluster.find_topic(self.topic)
        if found is None:
            return None
        TopicShapes(self.settings, self._cluster).ensure_progress_topic(self.progress_topic)
        return found.id

    def make(self) -> None:
        """Make the topic."""
        self._cluster.create_topic(self.topic, self._partitions, {})

    def newest(self) -> Closing | None:
        """Return the last record of the sink that counts."""
        (end,) = self._cluster.ends(self.progress_topic, [0], committed=False).values()
        self._read(end)
        return self._newest

    def has_rows(self) -> bool:
        """Return whether the topic has any record."""
        return has_records(self._cluster, self.topic, self._cluster.topic(self.topic).partitions)

    def add(self, record: Closing) -> bool:
        """Send a record, and see whether it is the first of its number."""
        if self._producer is None:
            self._producer = PlainProducer(self.settings)
        key = f"{_PREFIX}{record.sink}/{record.number}/{record.token}"
        offset = self._producer.put(self.progress_topic, record.save(), key.encode(), 0)
        return record.token in self._read(offset + 1)

    def clean(self, record: Closing) -> None:
        """Leave rows that do not count to Kafka's own retention."""

    def close(self) -> None:
        """Let go."""
        self._producer = None

    def _read(self, end: int) -> set[str]:
        """Read records up to an offset, and return the tokens of those that count."""
        found: set[str] = set()
        for record in _closings(self.settings, self.progress_topic, self._next, end):
            if record.sink == self.sink and record.number == (self._newest.number if self._newest else 0) + 1:
                self._newest = record
                found.add(record.token)
        self._next = max(self._next, end)
        return found


def closed_tasks(settings: KafkaSettings, progress_topic: str, sink: str | None = None) -> dict[str, int]:
    """Return the tasks whose rows count, of all sinks or of one, and how many rows each has sent."""
    cluster = KafkaCluster(settings)
    if cluster.find_topic(progress_topic) is None:
        return {}
    (end,) = cluster.ends(progress_topic, [0], committed=False).values()
    chains = counted(_closings(settings, progress_topic, 0, end))
    chosen = [chain for name, chain in chains.items() if sink in (None, name)]
    return {part.name: part.rows for chain in chosen for record in chain for part in record.parts}


def _closings(settings: KafkaSettings, topic: str, start: int, end: int) -> Iterator[Closing]:
    # They are in no transaction: none of others that is open needs to be waited for.
    fetcher = Fetcher(settings, committed=False)
    first = max(start, *KafkaCluster(settings).starts(topic, [0]).values())
    try:
        for records in fetcher.read(topic, 0, first, end):
            for record in records:
                key, value = record.key(), record.value()
                if key is not None and key.startswith(_PREFIX.encode()) and value is not None:
                    yield Closing.load(value)
    finally:
        fetcher.close()
