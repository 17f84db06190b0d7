"""A Kafka cluster as far as it is asked or changed: its topics, their partitions, and where these begin and end."""

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from confluent_kafka import OFFSET_INVALID, IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic, OffsetSpec

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

PATIENCE_SECONDS: Final = 20.0
"""For how long a broker that is away is asked again, unless somebody says otherwise."""

_REQUEST_SECONDS: Final = 5.0
_LEARN_SECONDS: Final = 2.0
_STALE_LEADER_CODES: Final = {KafkaError.FENCED_LEADER_EPOCH, KafkaError.UNKNOWN_LEADER_EPOCH}

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic. Its `id` tells it from another one that had its name before."""

    name: str
    id: str
    partitions: int


class KafkaCluster:
    """Asks and changes a cluster. Threads may share it; where no broker answers, it tries again for a while."""

    def __init__(self, settings: KafkaSettings, *, patience: float = PATIENCE_SECONDS) -> None:
        """Use the cluster of these settings."""
        self.settings = settings
        self._patience = patience
        self._lock = threading.Lock()
        self._client: AdminClient | None = None
        self._has_met = False
        self._said = LastClientError()

    def cluster_id(self) -> str:
        """Return the id that the cluster has for life."""
        found = self._ask(lambda admin: admin.describe_cluster(**_TIMEOUT).result(), "asking for the cluster")
        return str(found.cluster_id)

    def topics(self) -> list[str]:
        """Return the names of all topics that may be seen, but not Kafka's own."""
        found = self._ask(lambda admin: admin.list_topics(timeout=_REQUEST_SECONDS), "listing topics")
        return sorted(name for name in found.topics if not name.startswith("__"))

    def topic(self, name: str) -> TopicInfo:
        """Return what a topic is, or refuse a name that none has."""
        found = self.find_topic(name)
        if found is None:
            known = self.topics()
            raise UnknownTopic(
                f"There is no topic {name!r} in Kafka at {self.settings.servers}.",
                rule="A topic is there before it is read.",
                remedy=did_you_mean(name, known, otherwise="Create it, or check what the user may see."),
                topic=name,
            )
        return found

    def find_topic(self, name: str) -> TopicInfo | None:
        """Return what a topic is, or None if there is none of that name."""

        def ask(admin: AdminClient) -> TopicInfo | None:
            (asked,) = admin.describe_topics(TopicCollection([name]), **_TIMEOUT).values()
            try:
                found = asked.result()
            except KafkaException as error:
                if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                    return None
                raise
            return TopicInfo(name, str(found.topic_id), len(found.partitions))

        return self._ask(ask, f"asking for the topic {name}")

    def create_topic(self, name: str, partitions: int, settings: Mapping[str, str]) -> TopicInfo:
        """Make a topic, with as many copies as the cluster makes by default; one that is there already stays."""

        def make(admin: AdminClient) -> None:
            (made,) = admin.create_topics([NewTopic(name, partitions, -1, config=dict(settings))], **_TIMEOUT).values()
            _ignore_error(KafkaError.TOPIC_ALREADY_EXISTS, made.result)

        self._ask(make, f"creating the topic {name}")
        give_up = time.monotonic() + self._patience
        # It is made, but not every broker knows yet.
        while (made := self.find_topic(name)) is None:
            if time.monotonic() > give_up:
                raise translate_error(KafkaError(KafkaError._TIMED_OUT), f"creating the topic {name}", self.settings)
            time.sleep(0.02)
        return made

    def grow_topic(self, name: str, partitions: int) -> None:
        """Let a topic have at least so many partitions."""
        if self.topic(name).partitions >= partitions:
            return

        def grow(admin: AdminClient) -> None:
            (grown,) = admin.create_partitions([NewPartitions(name, partitions)], **_TIMEOUT).values()
            # Somebody else may have been first.
            _ignore_error(KafkaError.INVALID_PARTITIONS, grown.result)

        self._ask(grow, f"adding partitions to the topic {name}")

    def delete_topics(self, names: Iterable[str]) -> None:
        """Delete topics; those that are gone already are no error."""

        def delete(admin: AdminClient) -> None:
            for gone in admin.delete_topics(list(names), **_TIMEOUT).values():
                _ignore_error(KafkaError.UNKNOWN_TOPIC_OR_PART, gone.result)

        self._ask(delete, f"deleting the topics {', '.join(names)}")

    def ends(self, topic: str, partitions: Iterable[int], *, committed: bool = True) -> dict[int, int]:
        """Return where partitions end; if `committed`, before the first transaction that is not over."""
        return self._offsets(topic, partitions, OffsetSpec.latest(), committed=committed)

    def starts(self, topic: str, partitions: Iterable[int]) -> dict[int, int]:
        """Return the first offset that each partition still has."""
        return self._offsets(topic, partitions, OffsetSpec.earliest())

    def newest_times(self, topic: str, partitions: Iterable[int]) -> dict[int, tuple[int, int]]:
        """Return of each partition that has records the offset and the time of the one with the greatest timestamp."""
        found = self._list(topic, partitions, OffsetSpec.max_timestamp(), committed=True)
        return {partition: (one.offset, one.timestamp) for partition, one in found.items() if one.offset >= 0}

    def _offsets(
        self, topic: str, partitions: Iterable[int], wanted: OffsetSpec, *, committed: bool = True
    ) -> dict[int, int]:
        found = self._list(topic, partitions, wanted, committed=committed)
        return {partition: int(one.offset) for partition, one in found.items()}

    def _list(self, topic: str, partitions: Iterable[int], wanted: OffsetSpec, *, committed: bool) -> dict[int, Any]:
        asked = {TopicPartition(topic, partition): wanted for partition in partitions}
        level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED

        def once(admin: AdminClient) -> dict[int, Any]:
            answers = admin.list_offsets(asked, isolation_level=level, **_TIMEOUT)
            found = {place.partition: answer.result() for place, answer in answers.items()}
            if any(one.offset == OFFSET_INVALID for one in found.values()):
                # So says a broker that has just come back.
                raise KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE))
            return found

        def ask(admin: AdminClient) -> dict[int, Any]:
            if not self._has_met:
                # A client that has not heard of its brokers may ask them for offsets seconds later.
                admin.describe_cluster(**_TIMEOUT).result()
                self._has_met = True
            try:
                return once(admin)
            except KafkaException as error:
                if not is_unknown_partition(error.args[0]):
                    raise
            await_partitions(admin, topic, 1 + max(place.partition for place in asked), _LEARN_SECONDS)
            return once(admin)

        return self._ask(ask, f"asking where the topic {topic} ends") if asked else {}

    def _ask(self, ask: Callable[[AdminClient], T], doing: str) -> T:
        def once() -> T:
            admin = self._admin()
            try:
                return ask(admin)
            except KafkaException as error:
                admin.poll(0)
                if error.args[0].code() in _STALE_LEADER_CODES:
                    self._forget(admin)
                raise translate_error(error.args[0], doing, self.settings, self._said.error) from error

        return retry_while_away(once, self._patience)

    def _admin(self) -> AdminClient:
        with self._lock:
            if self._client is None:
                options = {**self.settings.client(), "error_cb": self._said}
                self._client = new_client(AdminClient, options, self.settings)
            return self._client

    def _forget(self, admin: AdminClient) -> None:
        """Let another client ask: this one goes by what it heard of the leaders before they came back, for minutes."""
        with self._lock:
            if self._client is admin:
                self._client = None
                self._has_met = False

    def __getstate__(self) -> dict[str, Any]:
        return {"settings": self.settings, "patience": self._patience}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["settings"], patience=state["patience"])  # type: ignore[misc]


_TIMEOUT: Final[dict[str, Any]] = {"request_timeout": _REQUEST_SECONDS}


def _ignore_error(code: int, result: Callable[[], object]) -> None:
    """Wait for a result; an error of this code is none."""
    try:
        result()
    except KafkaException as error:
        if error.args[0].code() != code:
            raise
