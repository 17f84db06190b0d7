"""One transactional producer. Kafka's client says of each error what is to be done: again, abort, or never again."""

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Producer

from floodmark.errors import SinkFenced, SinkTimedOut
from floodmark.kafka import KafkaSettings
from floodmark.kafka._failures import LastError, failure, option_refused

TS_HEADER: Final = "floodmark.ts"
"""The header that has the timestamp of a row, in decimal digits."""

Headers = Sequence[tuple[str, bytes | None]]
OutRow = tuple[bytes | None, bytes | None, int, int | None, Headers | None]
"""A row to be written: key, value, timestamp, partition (None: by the key), headers."""

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
_QUIET: Final = logging.Logger("floodmark.sinks", logging.CRITICAL + 1)


class TransactionalProducer:
    """Writes in transactions under one id. To make it fences whoever has it already: their rows are never seen."""

    def __init__(
        self, settings: KafkaSettings, transactional_id: str, sink: str, *, timeout: float, linger: float
    ) -> None:
        """Fence, and wait until the outcome of every transaction before is known."""
        self._settings = settings
        self._sink = sink
        self._timeout = timeout
        self._said = LastError()
        self._begun: float | None = None
        own = {
            "transactional.id": transactional_id,
            "transaction.timeout.ms": round(timeout * 1_000),
            # As Kafka's other clients do it, and so that the same key goes to the same place today and tomorrow.
            "partitioner": "murmur2",
            "message.max.bytes": 16 * 2**20,
            "batch.num.messages": 50_000,
            "queue.buffering.max.messages": 500_000,
            "queue.buffering.max.kbytes": 128 * 1_024,
            "linger.ms": round(linger * 1_000),
            "error_cb": self._said,
        }
        try:
            self._client = Producer({**settings.client(), **own}, logger=_QUIET)
        except KafkaException as error:
            raise option_refused(error, settings) from error
        self._until_done("fencing those before", self._client.init_transactions, max(timeout, _FENCE_SECONDS))

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

    def send(self, topic: str, rows: Sequence[OutRow]) -> int:
        """Put rows into the transaction, and return their bytes. It waits while the queue is full."""
        produce, size = self._client.produce, 0
        last: int | None = None
        stamp: list[tuple[str, bytes | None]] = []
        for key, value, ts, partition, headers in rows:
            if ts != last:
                last, stamp = ts, [(TS_HEADER, str(ts).encode())]
            full = stamp if not headers else [*headers, *stamp]
            size += len(key or b"") + len(value or b"")
            try:
                produce(topic, value, key, -1 if partition is None else partition, headers=full)
            except BufferError:
                self._insist(topic, value, key, -1 if partition is None else partition, full)
            except KafkaException as error:
                raise self._failure(error.args[0], f"writing to {topic}") from error
        self._poll(0, topic)
        return size

    def send_record(self, topic: str, key: bytes, value: bytes) -> None:
        """Put one record of our own into partition 0 of a topic."""
        self._insist(topic, value, key, 0, None)

    def flush(self) -> None:
        """Wait until all has arrived."""
        doing, give_up = "waiting for rows to arrive", time.monotonic() + max(self._timeout - self.seconds, 1.0)
        while self._left(doing):
            if time.monotonic() > give_up:
                raise self._failure(KafkaError(KafkaError._TIMED_OUT), doing)

    def _left(self, doing: str) -> int:
        """Wait a moment, and return how many rows have not arrived."""
        try:
            return int(self._client.flush(0.5))
        except KafkaException as error:
            raise self._failure(error.args[0], doing) from error

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

    def _insist(self, topic: str, value: bytes | None, key: bytes | None, partition: int, headers: Any) -> None:
        give_up = time.monotonic() + self._timeout
        while True:
            try:
                self._client.produce(topic, value, key, partition, headers=headers)
                return
            except BufferError:
                self._poll(_FULL_SECONDS, topic)
                if time.monotonic() > give_up:
                    raise self._failure(KafkaError(KafkaError._TIMED_OUT), f"writing to {topic}") from None
            except KafkaException as error:
                raise self._failure(error.args[0], f"writing to {topic}") from error

    def _poll(self, seconds: float, topic: str) -> None:
        try:
            self._client.poll(seconds)
        except KafkaException as error:
            raise self._failure(error.args[0], f"writing to {topic}") from error

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
                    raise self._failure(problem, doing) from error
                time.sleep(0.05)

    def _failure(self, error: KafkaError, doing: str) -> Exception:
        if error.code() == KafkaError._FATAL:
            error = self._cause(error)
        if error.code() in _FENCED:
            return fenced_off(self._sink, doing, error.name())
        return failure(error, doing, self._settings, self._said.error)

    def _cause(self, error: KafkaError) -> KafkaError:
        """Return what has ended the client for good: to send then only says that it has ended, to abort says why."""
        try:
            self._client.abort_transaction(1.0)
        except KafkaException as told:
            return told.args[0]
        return error


def transactional_id(progress_topic: str, sink: str) -> str:
    """Return the id under which a sink writes: no two sinks share it, and all processes of one do.

    >>> transactional_id("orders.progress", "out")
    'floodmark.sink.orders.progress.out'
    """
    return f"floodmark.sink.{progress_topic}.{sink}"


def fenced_off(sink: str, doing: str, kafka_code: str | None = None) -> SinkFenced:
    """Return the error for a process whose place another one has taken."""
    return SinkFenced(
        f"The sink {sink!r} was fenced off while {doing}: another process writes for it now.",
        rule="One process writes for a sink; whoever started last.",
        remedy="Stop the other one and start this one again, or let it be.",
        sink=sink,
        kafka_code=kafka_code,
    )


def timed_out(
    sink: str, rows: int, seconds: float, timeout: float, maximum: float | None, *, again: bool
) -> SinkTimedOut:
    """Return the error for a transaction that took too long."""
    return SinkTimedOut(
        f"A transaction of the sink {sink!r} had {rows} rows after {seconds:.1f} s, and its timeout is {timeout:g} s; "
        f"the brokers allow {'?' if maximum is None else f'{maximum:g}'} s.",
        rule="Kafka gives up a transaction that takes longer: nothing of it is seen.",
        remedy="Raise the sink's timeout, or make batches smaller"
        + ("." if again else "; it was tried twice, and is not tried again."),
        sink=sink,
        rows=rows,
        seconds=seconds,
        timeout=timeout,
        maximum=maximum,
        again=again,
    )
