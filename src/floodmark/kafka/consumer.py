"""Consumers of partitions: records of an offset range, and the newest committed record times.

Consumers are assigned their partitions: they join no consumer group and store no offsets in Kafka.
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
    client_error: LastClientError,
    *,
    committed: bool = True,
    defaults: Mapping[str, Any] | None = None,
    **own: Any,
) -> Consumer:
    """Return a consumer that reports the end of a partition and missing offsets as events.

    The settings override `defaults`, but not the `own` options, in which underscores stand for dots.
    """
    options = settings.client(
        # The client requires a group id, though the group is never joined.
        group_id="floodmark",
        enable_auto_commit=False,
        enable_auto_offset_store=False,
        enable_partition_eof=True,
        auto_offset_reset="error",
        isolation_level="read_committed" if committed else "read_uncommitted",
        **own,
    )
    return new_client(Consumer, {**(defaults or {}), **options, "error_cb": client_error}, settings)


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pause the garbage collector, which would scan each of 20,000 records dozens of times without effect.

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
    # Limit the client's memory; settings may override this.
    "queued.max.messages.kbytes": 65_536,
    "fetch.message.max.bytes": 4 * 2**20,
    # How long the broker waits for more at the end of a partition, blocking other requests.
    "fetch.wait.max.ms": 10,
    # How long the client pauses after reading ahead enough; its default is a second.
    "fetch.queue.backoff.ms": 5,
}

Records = list[Any]
"""Messages of the Kafka client, in offset order."""


class Fetcher:
    """Reads offset ranges of partitions. Each read uses its own consumer; idle consumers are pooled.

    By default only committed records are read. Thread-safe.
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
        """Yield the available records from `start` to before `end`.

        Waits for records below `wait_to`, which are known to exist, while an open transaction hides them.
        """
        if start >= end:
            return
        consumer = self._borrow_consumer()
        is_usable = False
        try:
            yield from self._read(consumer, TopicPartition(topic, partition, start), end, wait_to)
            is_usable = True
        except GeneratorExit:
            is_usable = True
            raise
        finally:
            self._return_consumer(consumer, is_usable=is_usable)

    def close(self) -> None:
        """Close the idle consumers."""
        with self._lock:
            idle, self._idle = self._idle, []
        for consumer in idle:
            consumer.client.close()

    def _read(
        self, consumer: "_PooledConsumer", partition: TopicPartition, end: int, wait_to: int
    ) -> Iterator[Records]:
        client = consumer.client
        client.assign([partition])
        deadline = time.monotonic() + self._patience
        position = int(partition.offset)
        while True:
            first = client.poll(_FETCH_POLL_SECONDS)
            # `consume` waits until it has all the records asked for, so ask for more only briefly.
            more = max(min(_MAX_RECORDS, end - position) - 1, 0)
            with collector_paused():
                records = [] if first is None else [first, *(client.consume(more, _MORE_SECONDS) if more else ())]
            if not records:
                if time.monotonic() > deadline:
                    error = KafkaError(KafkaError._TIMED_OUT)
                    raise translate_error(
                        error, _describe_reading(partition), self.settings, consumer.client_error.error
                    )
                continue
            deadline = time.monotonic() + self._patience
            last = records[-1]
            is_over = False
            # End-of-partition events may also come between records.
            if any(map(Message.error, records)):
                records, is_over = self._filter_records(client, records, partition, end, wait_to)
            elif last.offset() >= end:
                is_over = True
                records = [record for record in records if record.offset() < end]
            if records:
                position = partition.offset = records[-1].offset() + 1
                yield records
            if is_over or (last.error() is None and last.offset() == end - 1):
                return

    def _filter_records(
        self, client: Consumer, records: Records, partition: TopicPartition, end: int, wait_to: int
    ) -> tuple[Records, bool]:
        """Return the records without events, and whether the read is complete."""
        valid: Records = []
        for record in records:
            error = record.error()
            if error is None:
                if record.offset() >= end:
                    return valid, True
                valid.append(record)
            elif error.code() == KafkaError._PARTITION_EOF:
                reached = record.offset()
                if reached == OFFSET_INVALID or reached >= max(wait_to, 0):
                    return valid, True
            elif error.code() == KafkaError._AUTO_OFFSET_RESET:
                self._assign_again(client, partition)
                return [], False
            else:
                problem = translate_error(error, _describe_reading(partition), self.settings)
                # After a connection error the client reconnects by itself.
                if not isinstance(problem, KafkaAway):
                    raise problem
        return valid, False

    def _assign_again(self, client: Consumer, partition: TopicPartition) -> None:
        """Resume at the current position; a restarting broker briefly reports that the offset does not exist."""
        try:
            start, _ = client.get_watermark_offsets(partition, timeout=_REQUEST_SECONDS)
        except KafkaException as error:
            problem = translate_error(error.args[0], _describe_reading(partition), self.settings)
            if not isinstance(problem, KafkaAway):
                raise problem from error
        else:
            if start > partition.offset:
                raise topic_trimmed(partition.topic, partition.partition, partition.offset)
        time.sleep(_AGAIN_SECONDS)
        client.assign([partition])

    def _borrow_consumer(self) -> "_PooledConsumer":
        with self._lock:
            if self._idle:
                return self._idle.pop()
        return _PooledConsumer(self.settings, committed=self._committed)

    def _return_consumer(self, consumer: "_PooledConsumer", *, is_usable: bool) -> None:
        if is_usable:
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
    """A consumer, and the last error of its connections."""

    __slots__ = ("client", "client_error")

    def __init__(self, settings: KafkaSettings, *, committed: bool) -> None:
        self.client_error = LastClientError()
        self.client = new_consumer(settings, self.client_error, committed=committed, defaults=_FETCH_DEFAULTS)


def topic_trimmed(topic: str, partition: int, offset: int) -> TopicTrimmed:
    """Return the error for records that the topic has already deleted."""
    return TopicTrimmed(
        f"The topic {topic!r} has no record {offset} in partition {partition} any more.",
        rule="Bound records are read again after a restart, so Kafka must keep them until then.",
        remedy="Raise the topic's retention.ms. A query with a new checkpoint starts at the earliest record left.",
        topic=topic,
        partition=partition,
        offset=offset,
    )


def _describe_reading(partition: TopicPartition) -> str:
    return f"reading the topic {partition.topic}, partition {partition.partition}"


PartitionKey = tuple[str, int]
"""A topic and a partition."""

_TAIL_RECORDS: Final = 100
_NEWEST_PATIENCE_SECONDS: Final = 20.0
_NEWEST_POLL_SECONDS: Final = 0.2


class NewestTimes:
    """Finds the newest times of committed records.

    Asked for the record with the greatest timestamp, a broker returns none while that record is in an open transaction,
    and counts aborted ones. So the record is read to check it; if it is not committed, the last records are read.
    """

    def __init__(self, settings: KafkaSettings, *, patience: float = _NEWEST_PATIENCE_SECONDS) -> None:
        """Read from the cluster of these settings. Not thread-safe."""
        self._settings = settings
        self._patience = patience
        self._client: Any = None
        self._client_error = LastClientError()

    def committed_times(
        self,
        candidates: Mapping[PartitionKey, tuple[int, int]],
        ranges: Mapping[PartitionKey, tuple[int, int]],
        latest: int | None = None,
    ) -> dict[PartitionKey, int]:
        """Return the greatest known time of committed records of each partition, in milliseconds.

        `candidates` are the (offset, time) that the broker named; `ranges` the (start, end) of each partition. Times
        after `latest` do not count. Partitions without a known time are left out.
        """
        offsets = {
            partition: offset
            for partition, (offset, time) in candidates.items()
            if offset < ranges[partition][1] and (latest is None or time <= latest)
        }
        confirmed = self._read({partition: (offset, offset + 1) for partition, offset in offsets.items()})
        newest = {partition: candidates[partition][1] for partition, times in confirmed.items() if times}
        tails = {
            partition: (max(start, end - _TAIL_RECORDS), end)
            for partition, (start, end) in ranges.items()
            if partition not in newest and end > start
        }
        for partition, times in self._read(tails).items():
            counted = [time for time in times if latest is None or time <= latest]
            if counted:
                newest[partition] = max(counted)
        return newest

    def close(self) -> None:
        """Close the consumer."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def _read(self, ranges: Mapping[PartitionKey, tuple[int, int]]) -> dict[PartitionKey, list[int]]:
        """Return the times of the committed records in these ranges."""
        times: dict[PartitionKey, list[int]] = {partition: [] for partition in ranges}
        unread = dict(ranges)
        if not unread:
            return times
        client = self._consumer()
        client.assign([TopicPartition(*partition, start) for partition, (start, _) in unread.items()])
        try:
            deadline = time.monotonic() + self._patience
            while unread:
                # `consume` would wait for all 1,000 records, so wait with `poll`.
                first = client.poll(_NEWEST_POLL_SECONDS)
                for record in [] if first is None else [first, *client.consume(1_000, 0)]:
                    self._add_record(record, unread, times)
                if unread and time.monotonic() > deadline:
                    doing = f"reading the newest records of {next(iter(unread))[0]}"
                    error = KafkaError(KafkaError._TIMED_OUT)
                    raise translate_error(error, doing, self._settings, self._client_error.error)
        finally:
            client.unassign()
        return times

    def _add_record(
        self, record: Any, unread: dict[PartitionKey, tuple[int, int]], times: dict[PartitionKey, list[int]]
    ) -> None:
        partition, error = (record.topic(), record.partition()), record.error()
        if partition not in unread:
            return
        if error is None:
            if record.offset() < unread[partition][1]:
                times[partition].append(record.timestamp()[1])
            if record.offset() >= unread[partition][1] - 1:
                del unread[partition]
        elif error.code() == KafkaError._AUTO_OFFSET_RESET or (
            error.code() == KafkaError._PARTITION_EOF
            and (record.offset() == OFFSET_INVALID or record.offset() >= unread[partition][1])
        ):
            # At the end, or the records were deleted meanwhile.
            del unread[partition]

    def _consumer(self) -> Any:
        if self._client is None:
            # Fetch little: only a few records of each partition are read.
            self._client = new_consumer(
                self._settings,
                self._client_error,
                fetch_queue_backoff_ms=5,
                fetch_wait_max_ms=20,
                max_partition_fetch_bytes=65_536,
            )
        return self._client
