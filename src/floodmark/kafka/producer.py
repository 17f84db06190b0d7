"""Producers: one for transactions, and one for records that could not be decoded.

The Kafka client says of each error in a transaction whether to retry, abort, or close the producer.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, Final

import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, Producer
from numpy.typing import NDArray

from floodmark.kafka.bulk_producer import BulkClient
from floodmark.kafka.errors import LastClientError, new_client, translate_error
from floodmark.kafka.settings import MAX_RECORD_BYTES, KafkaSettings

DeliveryCallback = Callable[[KafkaError | None, Any], None]

_FENCED_CODES: Final = {
    KafkaError._FENCED,
    KafkaError.PRODUCER_FENCED,
    KafkaError.INVALID_PRODUCER_EPOCH,
    KafkaError.TRANSACTION_COORDINATOR_FENCED,
}
_QUEUE_FULL_SECONDS: Final = 0.05
_ABORT_SECONDS: Final = 15.0
_FENCE_SECONDS: Final = 30.0
_CONNECT_SECONDS: Final = 2.0

# The client would print errors to the terminal; they are raised as exceptions instead.
_SILENT_LOGGER: Final = logging.Logger("floodmark.kafka", logging.CRITICAL + 1)


class Fenced(Exception):
    """Another producer has taken over the transactional id: this one can write nothing more."""

    def __init__(self, doing: str, code: str) -> None:
        """Keep what the producer was doing, and Kafka's error code."""
        super().__init__(doing, code)
        self.doing = doing
        self.code = code


class TransactionalProducer:
    """Writes in transactions under one transactional id. Creating it fences earlier producers with the same id."""

    def __init__(
        self,
        settings: KafkaSettings,
        transactional_id: str,
        *,
        timeout: float = 60.0,
        options: Mapping[str, Any] | None = None,
        bulk: bool = False,
    ) -> None:
        """Fence earlier producers and wait for their transactions to end. The timeout is in seconds.

        With `bulk`, if this client supports it, records are written in bulk and cannot have headers.
        """
        self._settings = settings
        self._timeout = timeout
        self._client_error = LastClientError()
        self._begun_at: float | None = None
        own = {
            "transactional.id": transactional_id,
            "transaction.timeout.ms": round(timeout * 1_000),
            "message.max.bytes": MAX_RECORD_BYTES,
            "error_cb": self._client_error,
            "logger": _SILENT_LOGGER,
        }
        client_options = {**settings.client(), **(options or {}), **own}
        kind: Callable[[dict[str, Any]], Producer | BulkClient]
        kind = BulkClient if bulk and BulkClient.is_supported(client_options) else Producer
        self._client = new_client(kind, client_options, settings)
        self._connect()
        self._retry("fencing earlier producers", self._client.init_transactions, max(timeout, _FENCE_SECONDS))

    def _connect(self) -> None:
        """Connect to a broker of the cluster before the client looks for its transaction coordinator.

        The client drops its bootstrap connection once that has named the brokers. If it had just asked that connection
        for the coordinator, it would wait half a second and ask again. The second request needs a lasting connection.
        """
        with suppress(KafkaException):  # If no broker answers, init_transactions says so.
            for _ in range(2):
                self._client.list_topics("__transaction_state", _CONNECT_SECONDS)

    @property
    def client(self) -> Producer | BulkClient:
        """The underlying client."""
        return self._client

    @property
    def seconds(self) -> float:
        """Seconds since the transaction began; 0 without one."""
        return 0.0 if self._begun_at is None else time.monotonic() - self._begun_at

    @property
    def is_open(self) -> bool:
        """Whether a transaction is open."""
        return self._begun_at is not None

    def begin(self) -> None:
        """Begin a transaction."""
        self._retry("beginning a transaction", lambda _: self._client.begin_transaction(), self._timeout)
        self._begun_at = time.monotonic()

    def put(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int,
        headers: Any = None,
        on_delivery: DeliveryCallback | None = None,
    ) -> None:
        """Add one record to the transaction. Blocks while the queue is full."""
        deadline = time.monotonic() + self._timeout
        while True:
            try:
                self._client.produce(topic, value, key, partition, on_delivery, headers=headers)
                return
            except BufferError:
                self.poll(_QUEUE_FULL_SECONDS, topic)
                if time.monotonic() > deadline:
                    raise self.failure(KafkaError(KafkaError._TIMED_OUT), f"writing to {topic}") from None
            except KafkaException as error:
                raise self.failure(error.args[0], f"writing to {topic}") from error

    def put_columns(self, topic: str, keys: pa.Array, values: pa.Array, partitions: NDArray[Any] | None) -> None:
        """Add many records to the transaction; requires bulk mode. Blocks while the queue is full."""
        client = self._client
        assert isinstance(client, BulkClient)
        deadline = time.monotonic() + self._timeout

        def wait() -> None:
            if time.monotonic() > deadline:
                raise self.failure(KafkaError(KafkaError._TIMED_OUT), f"writing to {topic}")
            self.poll(_QUEUE_FULL_SECONDS, topic)

        try:
            client.produce_columns(topic, keys, values, partitions, wait)
        except KafkaException as error:
            raise self.failure(error.args[0], f"writing to {topic}") from error

    def poll(self, seconds: float, topic: str) -> None:
        """Serve the client's delivery callbacks."""
        try:
            self._client.poll(seconds)
        except KafkaException as error:
            raise self.failure(error.args[0], f"writing to {topic}") from error

    def flush(self) -> None:
        """Wait until all records are delivered."""
        doing, deadline = "waiting for deliveries", time.monotonic() + max(self._timeout - self.seconds, 1.0)
        while self._undelivered(doing):
            if time.monotonic() > deadline:
                raise self.failure(KafkaError(KafkaError._TIMED_OUT), doing)

    def commit(self) -> None:
        """Commit, or raise an error. After a non-retriable error the outcome of the commit is unknown."""
        self._retry("committing", self._client.commit_transaction, self._timeout)
        self._begun_at = None

    def abort(self) -> None:
        """Abort, so that readers need not wait for the transaction timeout. A fenced producer has nothing to abort."""
        if self._begun_at is None:
            return
        self._begun_at = None
        self._retry("aborting", self._client.abort_transaction, _ABORT_SECONDS)

    def failure(self, error: KafkaError, doing: str) -> Exception:
        """Return the error for a Kafka error; Fenced if another producer has taken over."""
        if error.code() == KafkaError._FATAL:
            error = self._cause(error)
        if error.code() in _FENCED_CODES:
            return Fenced(doing, error.name())
        return translate_error(error, doing, self._settings, self._client_error.error)

    def _undelivered(self, doing: str) -> int:
        """Wait briefly for deliveries, and return the number of records not delivered yet."""
        try:
            return int(self._client.flush(0.5))
        except KafkaException as error:
            raise self.failure(error.args[0], doing) from error

    def _retry(self, doing: str, action: Callable[[float], object], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while True:
            try:
                # Allow at least a second: without any time to wait every attempt fails.
                action(max(deadline - time.monotonic(), 1.0))
                return
            except KafkaException as error:
                problem: KafkaError = error.args[0]
                if not problem.retriable() or time.monotonic() >= deadline:
                    raise self.failure(problem, doing) from error
                time.sleep(0.05)

    def _cause(self, error: KafkaError) -> KafkaError:
        """Return the cause of a fatal error: sending only says that the client has failed, aborting says why."""
        try:
            self._client.abort_transaction(1.0)
        except KafkaException as cause:
            return cause.args[0]
        return error


_DEAD_LETTER_PATIENCE_SECONDS: Final = 60.0


class DeadLetters:
    """Sends undecodable records to a dead-letter topic. `send` waits for delivery; a retried task sends them again.

    A record keeps its key, value, time and headers, and gets the headers topic, partition, offset and reason.
    """

    def __init__(self, settings: KafkaSettings, topic: str, *, patience: float = _DEAD_LETTER_PATIENCE_SECONDS) -> None:
        """Send to this topic."""
        self._settings = settings
        self._topic = topic
        self._patience = patience
        self._client_error = LastClientError()
        own = {"acks": "all", "enable_idempotence": True, "message_timeout_ms": int(1000 * patience)}
        self._producer = new_client(Producer, {**settings.client(**own), "error_cb": self._client_error}, settings)

    def send(self, letters: Iterable[tuple[Any, str]]) -> None:
        """Send records, each with the reason for it, and wait for their delivery."""
        failures: list[KafkaError] = []

        def on_delivery(error: KafkaError | None, _: object) -> None:
            if error is not None:
                failures.append(error)

        for record, reason in letters:
            origin = {
                "topic": record.topic(),
                "partition": str(record.partition()),
                "offset": str(record.offset()),
                "reason": reason,
            }
            headers = [*(record.headers() or ()), *((name, text.encode()) for name, text in origin.items())]
            kind, millis = record.timestamp()
            self._produce(record, headers, millis if kind else 0, on_delivery)
        undelivered = self._producer.flush(self._patience)
        if failures or undelivered:
            error = failures[0] if failures else KafkaError(KafkaError._TIMED_OUT)
            raise translate_error(
                error, f"sending records to the topic {self._topic}", self._settings, self._client_error.error
            )

    def _produce(self, record: Any, headers: list[Any], millis: int, on_delivery: Any) -> None:
        while True:
            try:
                self._producer.produce(
                    self._topic,
                    record.value(),
                    record.key(),
                    headers=headers,
                    timestamp=millis,
                    on_delivery=on_delivery,
                )
            except BufferError:
                self._producer.poll(0.1)
            except KafkaException as error:
                doing = f"sending records to the topic {self._topic}"
                raise translate_error(error.args[0], doing, self._settings, self._client_error.error) from error
            else:
                self._producer.poll(0)
                return
