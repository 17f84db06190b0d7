"""Consumers of partitions: records from one offset to before another, and the newest committed record times.

A consumer here is assigned its partitions: it joins no group, and stores no offset.
"""

import gc
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from confluent_kafka import OFFSET_INVALID, Consumer, KafkaError, KafkaException, Message, TopicPartition

from floodmark.errors import KafkaAway, TopicTrimmed
from floodmark.kafka.errors import LastClientError, new_client, translate_error
from floodmark.kafka.settings import KafkaSettings


def new_consumer(
    settings: KafkaSettings,
    said: LastClientError,
    *,
    committed: bool = True,
    defaults: Mapping[str, Any] | None = None,
    **own: Any,
) -> Consumer:
    """Return a consumer that says where a partition ends, and that an offset is gone.

    The settings may change the `defaults`, but not the `own` options, whose dots are written as underscores.
    """
    options = settings.client(
        # Nobody joins the group, but the client insists on a name.
        group_id="floodmark",
        enable_auto_commit=False,
        enable_auto_offset_store=False,
        enable_partition_eof=True,
        auto_offset_reset="error",
        isolation_level="read_committed" if committed else "read_uncommitted",
        **own,
    )
    return new_client(Consumer, {**(defaults or {}), **options, "error_cb": said}, settings)


@contextmanager
def collector_paused() -> Iterator[None]:
    """Keep Python's collector from running: it would look at each of 20,000 records dozens of times, for nothing.

    >>> with collector_paused():
    ...     gc.isenabled()
    False
    >>> gc.isenabled()
    True
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


_MAX_RECORDS: Final = 20_000
_FETCH_PATIENCE_SECONDS: Final = 60.0
_FETCH_POLL_SECONDS: Final = 0.5
_MORE_SECONDS: Final = 0.005
_AGAIN_SECONDS: Final = 0.1
_REQUEST_SECONDS: Final = 5.0
_MAX_IDLE_CONSUMERS: Final = 8
_FETCH_DEFAULTS: Final = {
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

    def __init__(
        self, settings: KafkaSettings, *, committed: bool = True, patience: float = _FETCH_PATIENCE_SECONDS
    ) -> None:
        """Read from the cluster of these settings."""
        self.settings = settings
        self._committed = committed
        self._patience = patience
        self._idle: list[_PooledConsumer] = []
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

    def _read(self, consumer: "_PooledConsumer", place: TopicPartition, end: int, wait_to: int) -> Iterator[Records]:
        client = consumer.client
        client.assign([place])
        give_up = time.monotonic() + self._patience
        position = int(place.offset)
        while True:
            first = client.poll(_FETCH_POLL_SECONDS)
            # The client waits for as many as it is asked for; what is there is enough.
            more = max(min(_MAX_RECORDS, end - position) - 1, 0)
            with collector_paused():
                records = [] if first is None else [first, *(client.consume(more, _MORE_SECONDS) if more else ())]
            if not records:
                if time.monotonic() > give_up:
                    error = KafkaError(KafkaError._TIMED_OUT)
                    raise translate_error(error, _describe_reading(place), self.settings, consumer.said.error)
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
                problem = translate_error(error, _describe_reading(place), self.settings)
                # The client reconnects by itself.
                if not isinstance(problem, KafkaAway):
                    raise problem
        return sound, False

    def _assign_again(self, client: Consumer, place: TopicPartition) -> None:
        """Go on where it was; a broker that has just come back says for a moment that there is no such offset."""
        try:
            start, _ = client.get_watermark_offsets(place, timeout=_REQUEST_SECONDS)
        except KafkaException as error:
            problem = translate_error(error.args[0], _describe_reading(place), self.settings)
            if not isinstance(problem, KafkaAway):
                raise problem from error
        else:
            if start > place.offset:
                raise topic_trimmed(place.topic, place.partition, place.offset)
        time.sleep(_AGAIN_SECONDS)
        client.assign([place])

    def _take(self) -> "_PooledConsumer":
        with self._lock:
            if self._idle:
                return self._idle.pop()
        return _PooledConsumer(self.settings, committed=self._committed)

    def _give_back(self, consumer: "_PooledConsumer", *, is_sound: bool) -> None:
        if is_sound:
            consumer.client.unassign()
            with self._lock:
                if len(self._idle) < _MAX_IDLE_CONSUMERS:
                    self._idle.append(consumer)
                    return
        consumer.client.close()

    def __getstate__(self) -> dict[str, Any]:
        return {"settings": self.settings, "committed": self._committed, "patience": self._patience}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]


class _PooledConsumer:
    """A consumer, and what it has said of its connections."""

    __slots__ = ("client", "said")

    def __init__(self, settings: KafkaSettings, *, committed: bool) -> None:
        self.said = LastClientError()
        self.client = new_consumer(settings, self.said, committed=committed, defaults=_FETCH_DEFAULTS)


def topic_trimmed(topic: str, partition: int, offset: int) -> TopicTrimmed:
    """Return the error for records that a topic does not keep any more."""
    return TopicTrimmed(
        f"The topic {topic!r} has no record {offset} in partition {partition} any more.",
        rule="What was bound to a timestamp is read again after a restart, so Kafka must keep it as long.",
        remedy="Raise the topic's retention; a query without a checkpoint begins at what is left.",
        topic=topic,
        partition=partition,
        offset=offset,
    )


def _describe_reading(place: TopicPartition) -> str:
    return f"reading the topic {place.topic}, partition {place.partition}"


PartitionKey = tuple[str, int]
"""A topic and a partition."""

_TAIL_RECORDS: Final = 100
_NEWEST_PATIENCE_SECONDS: Final = 20.0
_NEWEST_POLL_SECONDS: Final = 0.2


class NewestTimes:
    """Says of what a broker tells whether it is committed, and looks at the last records where it is not.

    A broker that is asked for the record with the greatest timestamp says nothing while that one belongs to a
    transaction that is open, and counts those of transactions that were aborted.
    """

    def __init__(self, settings: KafkaSettings, *, patience: float = _NEWEST_PATIENCE_SECONDS) -> None:
        """Read from the cluster of these settings; one thread at a time."""
        self._settings = settings
        self._patience = patience
        self._client: Any = None
        self._said = LastClientError()

    def confirmed(
        self,
        told: Mapping[PartitionKey, tuple[int, int]],
        ranges: Mapping[PartitionKey, tuple[int, int]],
        latest: int | None = None,
    ) -> dict[PartitionKey, int]:
        """Return times, in milliseconds, that committed records have, the greatest that is known of each partition.

        `told` is the offset and the time that a broker named; `ranges` is where each partition begins and ends. Times
        after the `latest` do not count. A partition of which nothing can be said is left out.
        """
        wanted = {
            place: (offset, ranges[place][1])
            for place, (offset, time) in told.items()
            if offset < ranges[place][1] and (latest is None or time <= latest)
        }
        first = self._read({place: (offset, offset + 1) for place, (offset, _) in wanted.items()})
        found = {place: told[place][1] for place, times in first.items() if times}
        rest = {
            place: (max(start, end - _TAIL_RECORDS), end)
            for place, (start, end) in ranges.items()
            if place not in found and end > start
        }
        for place, times in self._read(rest).items():
            counted = [time for time in times if latest is None or time <= latest]
            if counted:
                found[place] = max(counted)
        return found

    def close(self) -> None:
        """Let go of the connection."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def _read(self, ranges: Mapping[PartitionKey, tuple[int, int]]) -> dict[PartitionKey, list[int]]:
        """Return the times of the committed records in these ranges."""
        found: dict[PartitionKey, list[int]] = {place: [] for place in ranges}
        left = dict(ranges)
        if not left:
            return found
        client = self._consumer()
        client.assign([TopicPartition(*place, start) for place, (start, _) in left.items()])
        try:
            give_up = time.monotonic() + self._patience
            while left:
                # To wait for many would be to wait for the whole time.
                first = client.poll(_NEWEST_POLL_SECONDS)
                for record in [] if first is None else [first, *client.consume(1_000, 0)]:
                    self._take(record, left, found)
                if left and time.monotonic() > give_up:
                    doing = f"looking for the newest records of {next(iter(left))[0]}"
                    raise translate_error(KafkaError(KafkaError._TIMED_OUT), doing, self._settings, self._said.error)
        finally:
            client.unassign()
        return found

    def _take(
        self, record: Any, left: dict[PartitionKey, tuple[int, int]], found: dict[PartitionKey, list[int]]
    ) -> None:
        place, error = (record.topic(), record.partition()), record.error()
        if place not in left:
            return
        if error is None:
            if record.offset() < left[place][1]:
                found[place].append(record.timestamp()[1])
            if record.offset() >= left[place][1] - 1:
                del left[place]
        elif error.code() == KafkaError._AUTO_OFFSET_RESET or (
            error.code() == KafkaError._PARTITION_EOF
            and (record.offset() == OFFSET_INVALID or record.offset() >= left[place][1])
        ):
            # What was trimmed meanwhile says nothing any more.
            del left[place]

    def _consumer(self) -> Any:
        if self._client is None:
            # A few records are looked at, and then another place.
            self._client = new_consumer(
                self._settings,
                self._said,
                fetch_queue_backoff_ms=5,
                fetch_wait_max_ms=20,
                max_partition_fetch_bytes=65_536,
            )
        return self._client
