"""The topics of a sink: created if missing, refused if unfit, and read when the sink starts."""

from collections.abc import Callable
from typing import Final

from floodmark.errors import KafkaAway, SinkTopicUnfit
from floodmark.kafka import Fetcher, KafkaCluster, KafkaSettings, MarkRecord, TopicInfo
from floodmark.sinks.progress import Progress, SinkMark, newest_progress
from floodmark.sinks.target import SCANNED_IN_PART, Failpoint, no_failpoint

_PROGRESS_TOPIC_CONFIG: Final = {
    "cleanup.policy": "compact",
    # Kafka compacts closed files only: close them early, so that the topic stays small and a start reads it quickly.
    "segment.bytes": str(16 * 2**20),
    "segment.ms": str(3_600_000),
    "min.cleanable.dirty.ratio": "0.1",
}
_MAX_TIMEOUT_CONFIG: Final = "transaction.max.timeout.ms"


def progress_topic_of(topic: str) -> str:
    """Return the name of a topic's progress topic.

    >>> progress_topic_of("orders")
    'orders.progress'
    """
    return topic + ".progress"


class SinkTopics:
    """Creates and checks the topics beside a sink's rows, and reads broker settings."""

    def __init__(self, cluster: KafkaCluster) -> None:
        """Use this cluster."""
        self._cluster = cluster

    def ensure_progress_topic(self, topic: str) -> TopicInfo:
        """Return the progress topic, created if missing; it must have one partition and be compacted."""
        info = self._cluster.find_topic(topic) or self._cluster.create_topic(topic, 1, _PROGRESS_TOPIC_CONFIG)
        policy = self._cluster.topic_setting(topic, "cleanup.policy")
        if info.partitions != 1 or policy != "compact":
            raise SinkTopicUnfit(
                f"The topic {topic!r} has {info.partitions} partitions and the cleanup policy {policy!r}.",
                rule="A progress topic has one partition and cleanup policy 'compact', to keep its newest record.",
                remedy="If no sink uses it, delete it and let the sink create it; or set another progress_topic.",
                topic=topic,
                partitions=info.partitions,
                policy=policy,
            )
        return info

    def ensure_marks_topic(self, topic: str) -> TopicInfo:
        """Return the marks topic, created if missing; raise an error unless it has one partition."""
        info = self._cluster.find_topic(topic) or self._cluster.create_topic(topic, 1, {})
        if info.partitions != 1:
            raise SinkTopicUnfit(
                f"The topic {topic!r} has {info.partitions} partitions.",
                rule="A marks topic has one partition, so that its records are ordered.",
                remedy="If no program reads it, delete it and let the sink create it; or set marks=False.",
                topic=topic,
                partitions=info.partitions,
            )
        return info

    def broker_maximum(self) -> float | None:
        """Return the brokers' maximum transaction timeout in seconds; None if it cannot be read."""
        try:
            value = self._cluster.broker_setting(_MAX_TIMEOUT_CONFIG)
        except Exception:
            # The value is only shown in an error message.
            return None
        return None if value is None else int(value) / 1_000


CLEANUP_SECONDS: Final = 30.0
"""How long brokers may take, beyond the transaction timeout, to end the transaction of a dead process."""


class ProgressTopicReader:
    """Reads progress records from a progress topic."""

    def __init__(
        self, settings: KafkaSettings, topic: str, *, timeout: float, failpoint: Failpoint = no_failpoint
    ) -> None:
        """Read this topic. `timeout` is the longest transaction timeout of the sinks that write to it."""
        self._settings = settings
        self._topic = topic
        self._deadline = timeout + CLEANUP_SECONDS
        self._failpoint = failpoint

    def read(
        self, sink: str, cluster: KafkaCluster, is_own: Callable[[str], bool] | None = None
    ) -> dict[str, Progress]:
        """Return the newest progress of a sink and of its groups for which `is_own` is true, by name.

        Reads up to the current end, and waits for transactions still open there to end; only committed records count.
        """
        (end,) = cluster.ends(self._topic, [0], committed=False).values()
        (start,) = cluster.starts(self._topic, [0]).values()
        newest: dict[str, Progress] = {}
        fetcher = Fetcher(self._settings, patience=self._deadline)
        try:
            for records in fetcher.read(self._topic, 0, start, end, wait_to=end):
                for record in records:
                    name = _sink_name(record.key())
                    if name is not None and (name == sink or (is_own is not None and is_own(name))):
                        progress = newest_progress(name, [(record.key(), record.value())], newest.get(name))
                        if progress is not None:
                            newest[name] = progress
                self._failpoint(SCANNED_IN_PART)
        except KafkaAway as error:
            raise KafkaAway(
                f"The progress topic {self._topic!r} could not be read up to {end} within {self._deadline:.0f} s.",
                rule="A sink must read its whole progress before it writes.",
                remedy="Start the sink again; if that fails, abort hanging transactions with kafka-transactions.sh.",
                topic=self._topic,
                end=end,
                seconds=self._deadline,
            ) from error
        finally:
            fetcher.close()
        return newest


def _sink_name(key: bytes | None) -> str | None:
    try:
        return None if key is None else key.decode()
    except UnicodeDecodeError:
        return None


def has_records(cluster: KafkaCluster, topic: str, partitions: int) -> bool:
    """Return whether a topic has any committed record."""
    starts, ends = cluster.starts(topic, range(partitions)), cluster.ends(topic, range(partitions))
    fetcher = Fetcher(cluster.settings)
    try:
        return any(any(fetcher.read(topic, number, starts[number], end)) for number, end in ends.items())
    finally:
        fetcher.close()


def read_last_marks(cluster: KafkaCluster, topic: str) -> dict[str, SinkMark]:
    """Return the last mark of each key in a marks topic; a new sink continues their sequence numbers."""
    (start,), (end,) = cluster.starts(topic, [0]).values(), cluster.ends(topic, [0]).values()
    fetcher, marks = Fetcher(cluster.settings), {}
    try:
        for records in fetcher.read(topic, 0, start, end):
            for record in records:
                mark = MarkRecord.load(record.value() or b"")
                if mark.lower is not None:
                    marks[mark.key] = SinkMark(mark.lower, mark.seq)
    finally:
        fetcher.close()
    return marks
