"""A producer without transactions: what it sends arrives once and in order, unless it ends before."""

import time
from collections.abc import Iterable, Sequence
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Producer

from floodmark.kafka import KafkaSettings
from floodmark.kafka._failures import LastError, failure, new_client
from floodmark.kafka._settings import MOST_BYTES
from floodmark.sinks._out_rows import TS_HEADER, OutRow

TASK_HEADER: Final = "floodmark.task"
"""The header that has the name of the task which has sent a row."""
INDEX_HEADER: Final = "floodmark.index"
"""The header that has the number of a row in its task, in decimal digits."""

_SECONDS: Final = 60.0
_POLL_SECONDS: Final = 0.05


class PlainProducer:
    """Sends records. One that does not arrive is an error, at the latest when it is waited for."""

    def __init__(self, settings: KafkaSettings, *, linger: float = 0.01, seconds: float = _SECONDS) -> None:
        """Send to the cluster of these settings, and wait for it so long at most."""
        self._settings = settings
        self._seconds = seconds
        self._said = LastError()
        self._problem: KafkaError | None = None
        own = {
            "enable.idempotence": True,
            "acks": "all",
            "partitioner": "murmur2",
            "linger.ms": round(linger * 1_000),
            "delivery.timeout.ms": round(seconds * 1_000),
            "message.max.bytes": MOST_BYTES,
            "batch.num.messages": 50_000,
            "queue.buffering.max.messages": 500_000,
            "queue.buffering.max.kbytes": 128 * 1_024,
            "error_cb": self._said,
        }
        self._client = new_client(Producer, {**settings.client(), **own}, settings)

    def put(self, topic: str, value: bytes, key: bytes, partition: int) -> int:
        """Send one record, wait until it has arrived, and return its offset."""
        offsets: list[int] = []

        def arrived(error: KafkaError | None, record: Any) -> None:
            if error is None:
                offsets.append(record.offset())
            else:
                self._problem = error

        self._produce(topic, value, key, partition, None, arrived)
        self.flush(topic)
        return offsets[0]

    def send(self, topic: str, task: str, rows: Iterable[Sequence[OutRow]]) -> int:
        """Send the rows of a task, wait until all have arrived, and return how many they were."""
        number, name = 0, task.encode()
        for piece in rows:
            for key, value, ts, partition, headers in piece:
                own = [(TS_HEADER, b"%d" % ts), (TASK_HEADER, name), (INDEX_HEADER, b"%d" % number)]
                full = own if not headers else [*headers, *own]
                self._produce(topic, value, key, -1 if partition is None else partition, full, self._arrived)
                number += 1
            self._client.poll(0)
            self._check(topic)
        self.flush(topic)
        return number

    def flush(self, topic: str) -> None:
        """Wait until all has arrived."""
        give_up = time.monotonic() + self._seconds
        while self._client.flush(0.5):
            self._check(topic)
            if time.monotonic() > give_up:
                self._problem = KafkaError(KafkaError._TIMED_OUT)
        self._check(topic)

    def _produce(
        self, topic: str, value: bytes | None, key: bytes | None, partition: int, headers: Any, arrived: Any
    ) -> None:
        give_up = time.monotonic() + self._seconds
        while True:
            try:
                self._client.produce(topic, value, key, partition, arrived, headers=headers)
                return
            except BufferError:
                self._client.poll(_POLL_SECONDS)
                if time.monotonic() > give_up:
                    self._problem = KafkaError(KafkaError._TIMED_OUT)
            except KafkaException as error:
                self._problem = error.args[0]
            self._check(topic)

    def _arrived(self, error: KafkaError | None, _: Any) -> None:
        if error is not None:
            self._problem = error

    def _check(self, topic: str) -> None:
        if self._problem is not None:
            raise failure(self._problem, f"writing to {topic}", self._settings, self._said.error)
