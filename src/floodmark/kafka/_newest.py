"""The greatest time of the records of partitions that are committed, without reading them all."""

import time
from collections.abc import Mapping
from typing import Any, Final

from confluent_kafka import OFFSET_INVALID, KafkaError, TopicPartition

from floodmark.kafka._consumer import new_consumer
from floodmark.kafka._failures import LastError, failure
from floodmark.kafka._settings import KafkaSettings

Place = tuple[str, int]
"""A topic and a partition."""

_TAIL: Final = 100
_PATIENCE_SECONDS: Final = 20.0
_POLL_SECONDS: Final = 0.2


class NewestTimes:
    """Says of what a broker tells whether it is committed, and looks at the last records where it is not.

    A broker that is asked for the record with the greatest timestamp says nothing while that one belongs to a
    transaction that is open, and counts those of transactions that were aborted.
    """

    def __init__(self, settings: KafkaSettings, *, patience: float = _PATIENCE_SECONDS) -> None:
        """Read from the cluster of these settings; one thread at a time."""
        self._settings = settings
        self._patience = patience
        self._client: Any = None
        self._said = LastError()

    def confirmed(
        self,
        told: Mapping[Place, tuple[int, int]],
        ranges: Mapping[Place, tuple[int, int]],
        latest: int | None = None,
    ) -> dict[Place, int]:
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
            place: (max(start, end - _TAIL), end)
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

    def _read(self, ranges: Mapping[Place, tuple[int, int]]) -> dict[Place, list[int]]:
        """Return the times of the committed records in these ranges."""
        found: dict[Place, list[int]] = {place: [] for place in ranges}
        left = dict(ranges)
        if not left:
            return found
        client = self._consumer()
        client.assign([TopicPartition(*place, start) for place, (start, _) in left.items()])
        try:
            give_up = time.monotonic() + self._patience
            while left:
                # To wait for many would be to wait for the whole time.
                first = client.poll(_POLL_SECONDS)
                for record in [] if first is None else [first, *client.consume(1_000, 0)]:
                    self._take(record, left, found)
                if left and time.monotonic() > give_up:
                    doing = f"looking for the newest records of {next(iter(left))[0]}"
                    raise failure(KafkaError(KafkaError._TIMED_OUT), doing, self._settings, self._said.error)
        finally:
            client.unassign()
        return found

    def _take(self, record: Any, left: dict[Place, tuple[int, int]], found: dict[Place, list[int]]) -> None:
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
