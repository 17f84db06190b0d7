"""The topics of a sink: created if missing, refused if unfit, and read when the sink starts."""

from collections.abc import Callable
from typing import Any, Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource

from floodmark.errors import KafkaAway, SinkTopicUnfit
from floodmark.kafka import Fetcher, KafkaCluster, KafkaSettings, MarkRecord, TopicInfo
from floodmark.kafka.errors import invalid_client_option, retry_while_away, translate_error
from floodmark.sinks.progress import Progress, SinkMark, newest_progress
from floodmark.sinks.target import SCANNED_IN_PART, Failpoint, no_failpoint

_PROGRESS_TOPIC_CONFIG: Final = {"cleanup.policy": "compact"}
_REQUEST_SECONDS: Final = 5.0
_RETRY_SECONDS: Final = 20.0
_MAX_TIMEOUT_CONFIG: Final = "transaction.max.timeout.ms"


def progress_topic_of(topic: str) -> str:
    """Return the name of the progress topic of a topic.

    >>> progress_topic_of("orders")
    'orders.progress'
    """
    return topic + ".progress"


class SinkTopics:
    """Looks at the settings of topics and brokers."""

    def __init__(self, settings: KafkaSettings, cluster: KafkaCluster) -> None:
        """Ask this cluster."""
        self._settings = settings
        self._cluster = cluster

    def ensure_progress_topic(self, topic: str) -> TopicInfo:
        """Return a progress topic, made if it is missing: it has one partition, and the newest record of each key."""
        found = self._cluster.find_topic(topic) or self._cluster.create_topic(topic, 1, _PROGRESS_TOPIC_CONFIG)
        policy = self._setting(ConfigResource.Type.TOPIC, topic, "cleanup.policy")
        if found.partitions != 1 or policy != "compact":
            raise SinkTopicUnfit(
                f"The topic {topic!r} has {found.partitions} partitions and the cleanup policy {policy!r}.",
                rule="A progress topic has one partition, and is compacted only: its newest record must stay.",
                remedy="Delete it if no sink uses it, and let the sink make it; or name another one.",
                topic=topic,
                partitions=found.partitions,
                policy=policy,
            )
        return found

    def ensure_marks_topic(self, topic: str) -> TopicInfo:
        """Return a marks topic, made if it is missing: it has one partition."""
        found = self._cluster.find_topic(topic) or self._cluster.create_topic(topic, 1, {})
        if found.partitions != 1:
            raise SinkTopicUnfit(
                f"The topic {topic!r} has {found.partitions} partitions.",
                rule="A marks topic has one partition: its records have an order.",
                remedy="Delete it if nobody uses it, and let the sink make it; or write no marks.",
                topic=topic,
                partitions=found.partitions,
            )
        return found

    def broker_maximum(self) -> float | None:
        """Return the longest time a transaction may take, in seconds; None if the cluster does not tell."""
        try:
            value = self._setting(ConfigResource.Type.BROKER, "", _MAX_TIMEOUT_CONFIG)
        except Exception:
            # It is only told to a person: to know it is no condition.
            return None
        return None if value is None else int(value) / 1_000

    def _setting(self, kind: Any, name: str, setting: str) -> str | None:
        try:
            admin = AdminClient(self._settings.client())
        except KafkaException as error:
            raise invalid_client_option(error, self._settings) from error

        def ask() -> str | None:
            try:
                where = name or str(next(iter(admin.list_topics(timeout=_REQUEST_SECONDS).brokers)))
                (asked,) = admin.describe_configs(
                    [ConfigResource(kind, where)], request_timeout=_REQUEST_SECONDS
                ).values()
                found = asked.result().get(setting)
            except KafkaException as error:
                raise translate_error(error.args[0], f"asking for the setting {setting}", self._settings) from error
            return None if found is None else found.value

        return retry_while_away(ask, _RETRY_SECONDS)


CLEANUP_SECONDS: Final = 30.0
"""How long brokers may take, beyond its timeout, to end a transaction of somebody who has died."""


class ProgressTopicReader:
    """Reads the progress of sinks."""

    def __init__(
        self, settings: KafkaSettings, topic: str, *, timeout: float, failpoint: Failpoint = no_failpoint
    ) -> None:
        """Read this topic. `timeout` is the longest that a transaction of those who write to it may take."""
        self._settings = settings
        self._topic = topic
        self._deadline = timeout + CLEANUP_SECONDS
        self._failpoint = failpoint

    def read(
        self, sink: str, cluster: KafkaCluster, is_own: Callable[[str], bool] | None = None
    ) -> dict[str, Progress]:
        """Return the newest progress of a sink, and of those of its groups that `is_own` names; by their names.

        Everything up to the end is read, that of open transactions included, and what was committed of it is seen.
        Transactions of other sinks may still be open: they are waited for.
        """
        (end,) = cluster.ends(self._topic, [0], committed=False).values()
        (start,) = cluster.starts(self._topic, [0]).values()
        found: dict[str, Progress] = {}
        fetcher = Fetcher(self._settings, patience=self._deadline)
        try:
            for records in fetcher.read(self._topic, 0, start, end, wait_to=end):
                for record in records:
                    name = _sink_name(record.key())
                    if name is not None and (name == sink or (is_own is not None and is_own(name))):
                        known = newest_progress(name, [(record.key(), record.value())], found.get(name))
                        if known is not None:
                            found[name] = known
                self._failpoint(SCANNED_IN_PART)
        except KafkaAway as error:
            raise KafkaAway(
                f"The progress topic {self._topic!r} could not be read up to {end} within {self._deadline:.0f} s.",
                rule="A sink that does not know what it has written does not write.",
                remedy="Start it again; if that does not help, look for a transaction that hangs in this topic.",
                topic=self._topic,
                end=end,
                seconds=self._deadline,
            ) from error
        finally:
            fetcher.close()
        return found


def _sink_name(key: bytes | None) -> str | None:
    try:
        return None if key is None else key.decode()
    except UnicodeDecodeError:
        return None


def has_records(cluster: KafkaCluster, topic: str, partitions: int) -> bool:
    """Return whether a topic has any record that is committed: what was aborted does not count."""
    starts, ends = cluster.starts(topic, range(partitions)), cluster.ends(topic, range(partitions))
    fetcher = Fetcher(cluster.settings)
    try:
        return any(any(fetcher.read(topic, part, starts[part], end)) for part, end in ends.items())
    finally:
        fetcher.close()


def read_last_marks(cluster: KafkaCluster, topic: str) -> dict[str, SinkMark]:
    """Return what a marks topic tells of each key: whoever begins there goes on counting."""
    (start,), (end,) = cluster.starts(topic, [0]).values(), cluster.ends(topic, [0]).values()
    fetcher, found = Fetcher(cluster.settings), {}
    try:
        for records in fetcher.read(topic, 0, start, end):
            for record in records:
                told = MarkRecord.load(record.value() or b"")
                if told.lower is not None:
                    found[told.key] = SinkMark(told.lower, told.seq)
    finally:
        fetcher.close()
    return found
