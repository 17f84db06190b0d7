"""The topics of a sink: made if they are missing, and refused if their shape does not fit."""

from typing import Any, Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource

from floodmark.errors import SinkTopicUnfit
from floodmark.kafka import KafkaCluster, KafkaSettings, TopicInfo
from floodmark.kafka._failures import failure, option_refused, patiently

PROGRESS_SETTINGS: Final = {"cleanup.policy": "compact"}
_SECONDS: Final = 5.0
_PATIENCE_SECONDS: Final = 20.0
_TIMEOUT_NAME: Final = "transaction.max.timeout.ms"


def progress_topic_of(topic: str) -> str:
    """Return the name of the progress topic of a topic.

    >>> progress_topic_of("orders")
    'orders.progress'
    """
    return topic + ".progress"


class TopicShapes:
    """Looks at the settings of topics and brokers."""

    def __init__(self, settings: KafkaSettings, cluster: KafkaCluster) -> None:
        """Ask this cluster."""
        self._settings = settings
        self._cluster = cluster

    def ensure_progress_topic(self, topic: str) -> TopicInfo:
        """Return a progress topic, made if it is missing: it has one partition, and the newest record of each key."""
        found = self._cluster.find_topic(topic) or self._cluster.create_topic(topic, 1, PROGRESS_SETTINGS)
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
            value = self._setting(ConfigResource.Type.BROKER, "", _TIMEOUT_NAME)
        except Exception:
            # It is only told to a person: to know it is no condition.
            return None
        return None if value is None else int(value) / 1_000

    def _setting(self, kind: Any, name: str, setting: str) -> str | None:
        try:
            admin = AdminClient(self._settings.client())
        except KafkaException as error:
            raise option_refused(error, self._settings) from error

        def ask() -> str | None:
            try:
                where = name or str(next(iter(admin.list_topics(timeout=_SECONDS).brokers)))
                (asked,) = admin.describe_configs([ConfigResource(kind, where)], request_timeout=_SECONDS).values()
                found = asked.result().get(setting)
            except KafkaException as error:
                raise failure(error.args[0], f"asking for the setting {setting}", self._settings) from error
            return None if found is None else found.value

        return patiently(ask, _PATIENCE_SECONDS)
