"""A Kafka cluster: its topics, their partitions, and where these begin and end."""

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from confluent_kafka import OFFSET_INVALID, IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewPartitions, NewTopic, OffsetSpec

from floodmark._util.text import did_you_mean
from floodmark.errors import UnknownTopic
from floodmark.kafka.errors import (
    LastClientError,
    await_partitions,
    is_unknown_partition,
    new_client,
    retry_while_away,
    translate_error,
)
from floodmark.kafka.settings import KafkaSettings

_REQUEST_SECONDS: Final = 5.0
PATIENCE_SECONDS: Final = 20.0
"""Default time for which requests are retried while no broker answers."""

_LEARN_SECONDS: Final = 2.0
_STALE_LEADER_CODES: Final = {KafkaError.FENCED_LEADER_EPOCH, KafkaError.UNKNOWN_LEADER_EPOCH}

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic. Its `id` differs from that of an earlier topic of the same name."""

    name: str
    id: str
    partitions: int


class KafkaCluster:
    """Queries and changes a cluster. Thread-safe and picklable; requests are retried while no broker answers."""

    def __init__(
        self, settings: KafkaSettings, *, patience: float = PATIENCE_SECONDS, timeout: float | None = None
    ) -> None:
        """Use the cluster of these settings. A request takes up to `timeout` seconds, and is retried for `patience`."""
        self.settings = settings
        self._patience = patience
        self._chosen_timeout = timeout
        self._lock = threading.Lock()
        self._client: AdminClient | None = None
        self._is_connected = False
        self._client_error = LastClientError()

    def cluster_id(self) -> str:
        """Return the permanent id of the cluster."""
        cluster = self._request(
            lambda admin: admin.describe_cluster(request_timeout=self._timeout).result(), "reading the cluster id"
        )
        return str(cluster.cluster_id)

    def topics(self) -> list[str]:
        """Return the names of all visible topics, without Kafka's internal ones."""
        metadata = self._request(lambda admin: admin.list_topics(timeout=self._timeout), "listing topics")
        return sorted(name for name in metadata.topics if not name.startswith("__"))

    def topic(self, name: str) -> TopicInfo:
        """Return a topic, or raise UnknownTopic."""
        info = self.find_topic(name)
        if info is None:
            names = self.topics()
            raise UnknownTopic(
                f"There is no topic {name!r} in Kafka at {self.settings.servers}.",
                rule="A topic must exist before it is read.",
                remedy=did_you_mean(name, names, otherwise="Create it, or check which topics the user may see."),
                topic=name,
            )
        return info

    def find_topic(self, name: str) -> TopicInfo | None:
        """Return a topic, or None if it does not exist."""

        def describe(admin: AdminClient) -> TopicInfo | None:
            (future,) = admin.describe_topics(TopicCollection([name]), request_timeout=self._timeout).values()
            try:
                description = future.result()
            except KafkaException as error:
                if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                    return None
                raise
            return TopicInfo(name, str(description.topic_id), len(description.partitions))

        return self._request(describe, f"reading the topic {name}")

    def topic_setting(self, topic: str, setting: str) -> str | None:
        """Return a setting of a topic, such as cleanup.policy; None if brokers do not know it."""
        return self._setting(lambda _: ConfigResource(ConfigResource.Type.TOPIC, topic), setting)

    def broker_setting(self, setting: str) -> str | None:
        """Return a setting of one of the brokers; None if it does not know it."""

        def any_broker(admin: AdminClient) -> ConfigResource:
            brokers = admin.list_topics(timeout=_REQUEST_SECONDS).brokers
            return ConfigResource(ConfigResource.Type.BROKER, str(next(iter(brokers))))

        return self._setting(any_broker, setting)

    def _setting(self, resource: Callable[[AdminClient], ConfigResource], setting: str) -> str | None:
        def describe(admin: AdminClient) -> str | None:
            (future,) = admin.describe_configs([resource(admin)], request_timeout=self._timeout).values()
            entry = future.result().get(setting)
            return None if entry is None else entry.value

        return self._request(describe, f"reading the setting {setting}")

    def create_topic(self, name: str, partitions: int, settings: Mapping[str, str]) -> TopicInfo:
        """Create a topic with the cluster's default replication factor; an existing one stays as it is."""

        def create(admin: AdminClient) -> None:
            new_topic = NewTopic(name, partitions, -1, config=dict(settings))
            (future,) = admin.create_topics([new_topic], request_timeout=self._timeout).values()
            _ignore_error(KafkaError.TOPIC_ALREADY_EXISTS, future.result)

        self._request(create, f"creating the topic {name}")
        deadline = time.monotonic() + self._patience
        # It may take a moment until all brokers know the topic.
        while (info := self.find_topic(name)) is None:
            if time.monotonic() > deadline:
                raise translate_error(KafkaError(KafkaError._TIMED_OUT), f"creating the topic {name}", self.settings)
            time.sleep(0.02)
        return info

    def grow_topic(self, name: str, partitions: int) -> None:
        """Add partitions to a topic so that it has at least this many."""
        if self.topic(name).partitions >= partitions:
            return

        def grow(admin: AdminClient) -> None:
            (future,) = admin.create_partitions(
                [NewPartitions(name, partitions)], request_timeout=self._timeout
            ).values()
            # Another process may have been first.
            _ignore_error(KafkaError.INVALID_PARTITIONS, future.result)

        self._request(grow, f"adding partitions to the topic {name}")

    def delete_topics(self, names: Iterable[str]) -> None:
        """Delete topics; it is no error if one does not exist."""

        def delete(admin: AdminClient) -> None:
            for future in admin.delete_topics(list(names), request_timeout=self._timeout).values():
                _ignore_error(KafkaError.UNKNOWN_TOPIC_OR_PART, future.result)

        self._request(delete, f"deleting the topics {', '.join(names)}")

    def ends(self, topic: str, partitions: Iterable[int], *, committed: bool = True) -> dict[int, int]:
        """Return the end offsets of partitions; with `committed`, at most the first offset of an open transaction."""
        return self._offsets(topic, partitions, OffsetSpec.latest(), committed=committed)

    def starts(self, topic: str, partitions: Iterable[int]) -> dict[int, int]:
        """Return the first available offset of each partition."""
        return self._offsets(topic, partitions, OffsetSpec.earliest())

    def offsets_at(self, topic: str, partitions: Iterable[int], millis: int) -> dict[int, int]:
        """Return the first offset from a time on, by record timestamps, of partitions that have such a record."""
        answers = self._list_offsets(topic, partitions, OffsetSpec.for_timestamp(millis), committed=False)
        return {number: int(answer.offset) for number, answer in answers.items() if answer.offset >= 0}

    def delete_records(self, topic: str, starts: Mapping[int, int]) -> None:
        """Delete the records of partitions before these offsets."""
        offsets = [TopicPartition(topic, partition, start) for partition, start in starts.items()]

        def delete(admin: AdminClient) -> None:
            for future in admin.delete_records(offsets, request_timeout=self._timeout).values():
                future.result()

        self._request(delete, f"deleting records of the topic {topic}")

    def newest_times(self, topic: str, partitions: Iterable[int]) -> dict[int, tuple[int, int]]:
        """Return (offset, timestamp) of the record with the greatest timestamp, for partitions that have records."""
        answers = self._list_offsets(topic, partitions, OffsetSpec.max_timestamp(), committed=True)
        return {number: (answer.offset, answer.timestamp) for number, answer in answers.items() if answer.offset >= 0}

    def _offsets(
        self, topic: str, partitions: Iterable[int], spec: OffsetSpec, *, committed: bool = True
    ) -> dict[int, int]:
        answers = self._list_offsets(topic, partitions, spec, committed=committed)
        return {partition: int(answer.offset) for partition, answer in answers.items()}

    def _list_offsets(
        self, topic: str, partitions: Iterable[int], spec: OffsetSpec, *, committed: bool
    ) -> dict[int, Any]:
        specs = {TopicPartition(topic, partition): spec for partition in partitions}
        level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED

        def list_once(admin: AdminClient) -> dict[int, Any]:
            futures = admin.list_offsets(specs, isolation_level=level, request_timeout=self._timeout)
            answers = {partition.partition: future.result() for partition, future in futures.items()}
            if any(answer.offset == OFFSET_INVALID for answer in answers.values()):
                # A broker that is just restarting answers so.
                raise KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE))
            return answers

        def list_offsets(admin: AdminClient) -> dict[int, Any]:
            if not self._is_connected:
                # Without metadata of its brokers, a new client may delay the request by seconds.
                admin.describe_cluster(request_timeout=self._timeout).result()
                self._is_connected = True
            try:
                return list_once(admin)
            except KafkaException as error:
                if not is_unknown_partition(error.args[0]):
                    raise
            await_partitions(admin, topic, 1 + max(partition.partition for partition in specs), _LEARN_SECONDS)
            return list_once(admin)

        return self._request(list_offsets, f"reading offsets of the topic {topic}") if specs else {}

    @property
    def _timeout(self) -> float:
        return _REQUEST_SECONDS if self._chosen_timeout is None else self._chosen_timeout

    def _request(self, request: Callable[[AdminClient], T], doing: str) -> T:
        def attempt() -> T:
            admin = self._admin()
            try:
                return request(admin)
            except KafkaException as error:
                admin.poll(0)
                if error.args[0].code() in _STALE_LEADER_CODES:
                    self._discard_client(admin)
                raise translate_error(error.args[0], doing, self.settings, self._client_error.error) from error

        return retry_while_away(attempt, self._patience)

    def _admin(self) -> AdminClient:
        with self._lock:
            if self._client is None:
                options = {**self.settings.client(), "error_cb": self._client_error}
                self._client = new_client(AdminClient, options, self.settings)
            return self._client

    def _discard_client(self, admin: AdminClient) -> None:
        """Replace the client: after a leader change it may use stale metadata for minutes."""
        with self._lock:
            if self._client is admin:
                self._client = None
                self._is_connected = False

    def __getstate__(self) -> dict[str, Any]:
        return {"settings": self.settings, "patience": self._patience, "timeout": self._chosen_timeout}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["settings"], patience=state["patience"], timeout=state["timeout"])  # type: ignore[misc]


def _ignore_error(code: int, result: Callable[[], object]) -> None:
    """Wait for a result, and ignore errors with this code."""
    try:
        result()
    except KafkaException as error:
        if error.args[0].code() != code:
            raise
