"""One transactional producer. Kafka's client says of each error what is to be done: again, abort, or never again."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, Producer
from numpy.typing import NDArray

from floodmark.kafka._bulk_client import BulkClient
from floodmark.kafka._failures import LastError, failure, new_client
from floodmark.kafka._settings import MOST_BYTES, KafkaSettings

Headers = Sequence[tuple[str, bytes | None]]
Delivered = Callable[[KafkaError | None, Any], None]

_FENCED: Final = {
    KafkaError._FENCED,
    KafkaError.PRODUCER_FENCED,
    KafkaError.INVALID_PRODUCER_EPOCH,
    KafkaError.TRANSACTION_COORDINATOR_FENCED,
}
_FULL_SECONDS: Final = 0.05
_ABORT_SECONDS: Final = 15.0
_FENCE_SECONDS: Final = 30.0

# The client would tell it to the terminal, and what is told there nobody can catch.
_QUIET: Final = logging.Logger("floodmark.kafka", logging.CRITICAL + 1)


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
        self._said = LastError()
        self._begun: float | None = None
        own = {
            "transactional.id": transactional_id,
            "transaction.timeout.ms": round(timeout * 1_000),
            "message.max.bytes": MOST_BYTES,
            "error_cb": self._said,
            "logger": _QUIET,
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
        on_delivery: Delivered | None = None,
    ) -> None:
        """Put one record into the transaction. It waits while the queue is full."""
        give_up = time.monotonic() + self._timeout
        while True:
            try:
                self._client.produce(topic, value, key, partition, on_delivery, headers=headers)
                return
            except BufferError:
                self.poll(_FULL_SECONDS, topic)
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
            self.poll(_FULL_SECONDS, topic)

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
        if error.code() in _FENCED:
            return Fenced(doing, error.name())
        return failure(error, doing, self._settings, self._said.error)

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
