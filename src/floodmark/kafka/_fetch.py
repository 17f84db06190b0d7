"""Records of a partition, from one offset to before another."""

import threading
import time
from collections.abc import Iterator
from typing import Any, Final

from confluent_kafka import OFFSET_INVALID, Consumer, KafkaError, KafkaException, Message, TopicPartition

from floodmark.errors import KafkaAway, TopicTrimmed
from floodmark.kafka._collector import collector_paused
from floodmark.kafka._consumer import new_consumer
from floodmark.kafka._failures import LastError, failure
from floodmark.kafka._settings import KafkaSettings

_AT_ONCE: Final = 20_000
_PATIENCE_SECONDS: Final = 60.0
_POLL_SECONDS: Final = 0.5
_MORE_SECONDS: Final = 0.005
_AGAIN_SECONDS: Final = 0.1
_REQUEST_SECONDS: Final = 5.0
_KEPT: Final = 8
_DEFAULTS: Final = {
    # A limit for its own memory; who knows better may say so.
    "queued.max.messages.kbytes": 65_536,
    "fetch.message.max.bytes": 4 * 2**20,
    # At the end of a partition the broker waits for more so long, and lets nothing else through.
    "fetch.wait.max.ms": 10,
    # When it has read ahead enough, the client pauses: a second, unless it is told otherwise.
    "fetch.queue.backoff.ms": 5,
}

Records = list[Any]
"""Messages of Kafka's client, in the order of their offsets."""


class Fetcher:
    """Reads ranges. Each reading has a consumer of its own while it lasts; idle ones are kept for the next.

    Only what is committed is read, unless told otherwise, and no offset is ever stored in Kafka.
    """

    def __init__(self, settings: KafkaSettings, *, committed: bool = True, patience: float = _PATIENCE_SECONDS) -> None:
        """Read from the cluster of these settings."""
        self.settings = settings
        self._committed = committed
        self._patience = patience
        self._idle: list[_Consumer] = []
        self._lock = threading.Lock()

    def read(self, topic: str, partition: int, start: int, end: int, *, wait_to: int = 0) -> Iterator[Records]:
        """Return the records from `start` to before `end`, as far as they are there.

        Those below `wait_to` are waited for, since they are known to come: an open transaction may hide them yet.
        """
        if start >= end:
            return
        consumer = self._take()
        is_sound = False
        try:
            yield from self._read(consumer, TopicPartition(topic, partition, start), end, wait_to)
            is_sound = True
        except GeneratorExit:
            is_sound = True
            raise
        finally:
            self._give_back(consumer, is_sound=is_sound)

    def close(self) -> None:
        """Let go of the consumers that are idle."""
        with self._lock:
            idle, self._idle = self._idle, []
        for consumer in idle:
            consumer.client.close()

    def _read(self, consumer: "_Consumer", place: TopicPartition, end: int, wait_to: int) -> Iterator[Records]:
        client = consumer.client
        client.assign([place])
        give_up = time.monotonic() + self._patience
        position = int(place.offset)
        while True:
            first = client.poll(_POLL_SECONDS)
            # The client waits for as many as it is asked for; what is there is enough.
            more = max(min(_AT_ONCE, end - position) - 1, 0)
            with collector_paused():
                records = [] if first is None else [first, *(client.consume(more, _MORE_SECONDS) if more else ())]
            if not records:
                if time.monotonic() > give_up:
                    error = KafkaError(KafkaError._TIMED_OUT)
                    raise failure(error, _reading(place), self.settings, consumer.said.error)
                continue
            give_up = time.monotonic() + self._patience
            last = records[-1]
            is_over = False
            # What says that an end was reached may also come in the middle.
            if any(map(Message.error, records)):
                records, is_over = self._checked(client, records, place, end, wait_to)
            elif last.offset() >= end:
                is_over = True
                records = [record for record in records if record.offset() < end]
            if records:
                position = place.offset = records[-1].offset() + 1
                yield records
            if is_over or (last.error() is None and last.offset() == end - 1):
                return

    def _checked(
        self, client: Consumer, records: Records, place: TopicPartition, end: int, wait_to: int
    ) -> tuple[Records, bool]:
        """Return the records among what came, and whether there are no more to wait for."""
        sound: Records = []
        for record in records:
            error = record.error()
            if error is None:
                if record.offset() >= end:
                    return sound, True
                sound.append(record)
            elif error.code() == KafkaError._PARTITION_EOF:
                reached = record.offset()
                if reached == OFFSET_INVALID or reached >= max(wait_to, 0):
                    return sound, True
            elif error.code() == KafkaError._AUTO_OFFSET_RESET:
                self._assign_again(client, place)
                return [], False
            else:
                problem = failure(error, _reading(place), self.settings)
                # The client reconnects by itself.
                if not isinstance(problem, KafkaAway):
                    raise problem
        return sound, False

    def _assign_again(self, client: Consumer, place: TopicPartition) -> None:
        """Go on where it was; a broker that has just come back says for a moment that there is no such offset."""
        try:
            start, _ = client.get_watermark_offsets(place, timeout=_REQUEST_SECONDS)
        except KafkaException as error:
            problem = failure(error.args[0], _reading(place), self.settings)
            if not isinstance(problem, KafkaAway):
                raise problem from error
        else:
            if start > place.offset:
                raise trimmed(place.topic, place.partition, place.offset)
        time.sleep(_AGAIN_SECONDS)
        client.assign([place])

    def _take(self) -> "_Consumer":
        with self._lock:
            if self._idle:
                return self._idle.pop()
        return _Consumer(self.settings, committed=self._committed)

    def _give_back(self, consumer: "_Consumer", *, is_sound: bool) -> None:
        if is_sound:
            consumer.client.unassign()
            with self._lock:
                if len(self._idle) < _KEPT:
                    self._idle.append(consumer)
                    return
        consumer.client.close()

    def __getstate__(self) -> dict[str, Any]:
        return {"settings": self.settings, "committed": self._committed, "patience": self._patience}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]


class _Consumer:
    """A consumer, and what it has said of its connections."""

    __slots__ = ("client", "said")

    def __init__(self, settings: KafkaSettings, *, committed: bool) -> None:
        self.said = LastError()
        self.client = new_consumer(settings, self.said, committed=committed, defaults=_DEFAULTS)


def trimmed(topic: str, partition: int, offset: int) -> TopicTrimmed:
    """Return the error for records that a topic does not keep any more."""
    return TopicTrimmed(
        f"The topic {topic!r} has no record {offset} in partition {partition} any more.",
        rule="What was bound to a timestamp is read again after a restart, so Kafka must keep it as long.",
        remedy="Raise the topic's retention; a query without a checkpoint begins at what is left.",
        topic=topic,
        partition=partition,
        offset=offset,
    )


def _reading(place: TopicPartition) -> str:
    return f"reading the topic {place.topic}, partition {place.partition}"
