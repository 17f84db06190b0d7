"""Producers: one for transactions, and one for records that could not be decoded.

Kafka's client says of each error in a transaction what is to be done: retry, abort, or close the producer.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping
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

# The client would tell it to the terminal, and what is told there nobody can catch.
_SILENT_LOGGER: Final = logging.Logger("floodmark.kafka", logging.CRITICAL + 1)


class Fenced(Exception):
    """Another producer has taken the id: nothing more is written here."""

    def __init__(self, doing: str, code: str) -> None:
        """Say what was to be done, and how Kafka calls it."""
        super().__init__(doing, code)
        self.doing = doing
        self.code = code


class TransactionalProducer:
    """Writes in transactions under one id. To make it fences whoever has it already: their rows are never seen."""

    def __init__(
        self,
        settings: KafkaSettings,
        transactional_id: str,
        *,
        timeout: float = 60.0,
        options: Mapping[str, Any] | None = None,
        bulk: bool = False,
    ) -> None:
        """Fence, and wait until the outcome of every transaction before is known. The timeout is in seconds.

        In bulk, if that is possible here, it takes many records at a time, and none with headers.
        """
        self._settings = settings
        self._timeout = timeout
        self._said = LastClientError()
        self._begun: float | None = None
        own = {
            "transactional.id": transactional_id,
            "transaction.timeout.ms": round(timeout * 1_000),
            "message.max.bytes": MAX_RECORD_BYTES,
            "error_cb": self._said,
            "logger": _SILENT_LOGGER,
        }
        given = {**settings.client(), **(options or {}), **own}
        kind: Callable[[dict[str, Any]], Producer | BulkClient]
        kind = BulkClient if bulk and BulkClient.fits(given) else Producer
        self._client = new_client(kind, given, settings)
        self._until_done("fencing those before", self._client.init_transactions, max(timeout, _FENCE_SECONDS))

    @property
    def client(self) -> Producer | BulkClient:
        """The client itself."""
        return self._client

    @property
    def seconds(self) -> float:
        """How long the transaction has been open."""
        return 0.0 if self._begun is None else time.monotonic() - self._begun

    @property
    def is_open(self) -> bool:
        """Whether a transaction is open."""
        return self._begun is not None

    def begin(self) -> None:
        """Begin a transaction."""
        self._until_done("beginning a transaction", lambda _: self._client.begin_transaction(), self._timeout)
        self._begun = time.monotonic()

    def put(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int,
        headers: Any = None,
        on_delivery: DeliveryCallback | None = None,
    ) -> None:
        """Put one record into the transaction. It waits while the queue is full."""
        give_up = time.monotonic() + self._timeout
        while True:
            try:
                self._client.produce(topic, value, key, partition, on_delivery, headers=headers)
                return
            except BufferError:
                self.poll(_QUEUE_FULL_SECONDS, topic)
                if time.monotonic() > give_up:
                    raise self.failure(KafkaError(KafkaError._TIMED_OUT), f"writing to {topic}") from None
            except KafkaException as error:
                raise self.failure(error.args[0], f"writing to {topic}") from error

    def put_columns(self, topic: str, keys: pa.Array, values: pa.Array, partitions: NDArray[Any] | None) -> None:
        """Put many records into the transaction, if they are taken in bulk. It waits while the queue is full."""
        client = self._client
        assert isinstance(client, BulkClient)
        give_up = time.monotonic() + self._timeout

        def wait() -> None:
            if time.monotonic() > give_up:
                raise self.failure(KafkaError(KafkaError._TIMED_OUT), f"writing to {topic}")
            self.poll(_QUEUE_FULL_SECONDS, topic)

        try:
            client.produce_columns(topic, keys, values, partitions, wait)
        except KafkaException as error:
            raise self.failure(error.args[0], f"writing to {topic}") from error

    def poll(self, seconds: float, topic: str) -> None:
        """Let the client say what has arrived."""
        try:
            self._client.poll(seconds)
        except KafkaException as error:
            raise self.failure(error.args[0], f"writing to {topic}") from error

    def flush(self) -> None:
        """Wait until all has arrived."""
        doing, give_up = "waiting for rows to arrive", time.monotonic() + max(self._timeout - self.seconds, 1.0)
        while self._left(doing):
            if time.monotonic() > give_up:
                raise self.failure(KafkaError(KafkaError._TIMED_OUT), doing)

    def commit(self) -> None:
        """Commit, or raise. An error that is not told to be asked again leaves it open whether it was committed."""
        self._until_done("committing", self._client.commit_transaction, self._timeout)
        self._begun = None

    def abort(self) -> None:
        """Abort, so that readers need not wait for Kafka to do it. Whoever is fenced has nothing to abort."""
        if self._begun is None:
            return
        self._begun = None
        self._until_done("aborting", self._client.abort_transaction, _ABORT_SECONDS)

    def failure(self, error: KafkaError, doing: str) -> Exception:
        """Return the error for what went wrong."""
        if error.code() == KafkaError._FATAL:
            error = self._cause(error)
        if error.code() in _FENCED_CODES:
            return Fenced(doing, error.name())
        return translate_error(error, doing, self._settings, self._said.error)

    def _left(self, doing: str) -> int:
        """Wait a moment, and return how many rows have not arrived."""
        try:
            return int(self._client.flush(0.5))
        except KafkaException as error:
            raise self.failure(error.args[0], doing) from error

    def _until_done(self, doing: str, action: Callable[[float], object], seconds: float) -> None:
        give_up = time.monotonic() + seconds
        while True:
            try:
                # Not less than a moment: an attempt that may not wait at all fails for that alone.
                action(max(give_up - time.monotonic(), 1.0))
                return
            except KafkaException as error:
                problem: KafkaError = error.args[0]
                if not problem.retriable() or time.monotonic() >= give_up:
                    raise self.failure(problem, doing) from error
                time.sleep(0.05)

    def _cause(self, error: KafkaError) -> KafkaError:
        """Return what has ended the client for good: to send then only says that it has ended, to abort says why."""
        try:
            self._client.abort_transaction(1.0)
        except KafkaException as told:
            return told.args[0]
        return error


_DEAD_LETTER_PATIENCE_SECONDS: Final = 60.0


class DeadLetters:
    """Sends records on. What `send` has returned from is in the topic; a task that runs again sends it again.

    A record keeps its key, value, time and headers, and gets the headers topic, partition, offset and reason.
    """

    def __init__(self, settings: KafkaSettings, topic: str, *, patience: float = _DEAD_LETTER_PATIENCE_SECONDS) -> None:
        """Send to this topic."""
        self._settings = settings
        self._topic = topic
        self._patience = patience
        self._said = LastClientError()
        own = {"acks": "all", "enable_idempotence": True, "message_timeout_ms": int(1000 * patience)}
        self._producer = new_client(Producer, {**settings.client(**own), "error_cb": self._said}, settings)

    def send(self, letters: Iterable[tuple[Any, str]]) -> None:
        """Send records, each with the reason why, and return when the brokers have them."""
        refused: list[KafkaError] = []

        def told(error: KafkaError | None, _: object) -> None:
            if error is not None:
                refused.append(error)

        for record, reason in letters:
            about = {
                "topic": record.topic(),
                "partition": str(record.partition()),
                "offset": str(record.offset()),
                "reason": reason,
            }
            headers = [*(record.headers() or ()), *((name, text.encode()) for name, text in about.items())]
            kind, millis = record.timestamp()
            self._produce(record, headers, millis if kind else 0, told)
        left = self._producer.flush(self._patience)
        if refused or left:
            error = refused[0] if refused else KafkaError(KafkaError._TIMED_OUT)
            raise translate_error(
                error, f"sending records to the topic {self._topic}", self._settings, self._said.error
            )

    def _produce(self, record: Any, headers: list[Any], millis: int, told: Any) -> None:
        while True:
            try:
                self._producer.produce(
                    self._topic, record.value(), record.key(), headers=headers, timestamp=millis, on_delivery=told
                )
            except BufferError:
                self._producer.poll(0.1)
            except KafkaException as error:
                doing = f"sending records to the topic {self._topic}"
                raise translate_error(error.args[0], doing, self._settings, self._said.error) from error
            else:
                self._producer.poll(0)
                return
