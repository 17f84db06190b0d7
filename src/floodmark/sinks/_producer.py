"""The producer of a sink: rows with their timestamps in a transaction, and errors that name the sink."""

from collections.abc import Sequence

from confluent_kafka import KafkaError, KafkaException

from floodmark.errors import SinkFenced, SinkTimedOut
from floodmark.kafka import Fenced, KafkaSettings, TransactionalProducer
from floodmark.sinks._out_rows import TS_HEADER, OutRow


class SinkProducer(TransactionalProducer):
    """Writes the rows of a sink."""

    def __init__(
        self, settings: KafkaSettings, transactional_id: str, sink: str, *, timeout: float, linger: float
    ) -> None:
        """Fence, and wait until the outcome of every transaction before is known."""
        self._sink = sink
        options = {
            # As Kafka's other clients do it, and so that the same key goes to the same place today and tomorrow.
            "partitioner": "murmur2",
            "batch.num.messages": 50_000,
            "queue.buffering.max.messages": 500_000,
            "queue.buffering.max.kbytes": 128 * 1_024,
            "linger.ms": round(linger * 1_000),
        }
        super().__init__(settings, transactional_id, timeout=timeout, options=options)

    def send(self, topic: str, rows: Sequence[OutRow], *, stamp: bool = True) -> None:
        """Put rows into the transaction, with their timestamps unless told otherwise. It waits while the queue is full.

        A header takes longer than all the rest of a small row.
        """
        produce = self.client.produce
        last: int | None = None
        stamped: list[tuple[str, bytes | None]] = []
        for key, value, ts, partition, headers in rows:
            if stamp and ts != last:
                last, stamped = ts, [(TS_HEADER, str(ts).encode())]
            full = [*headers, *stamped] if headers else stamped or None
            try:
                produce(topic, value, key, -1 if partition is None else partition, headers=full)
            except BufferError:
                self.put(topic, value, key, -1 if partition is None else partition, full)
            except KafkaException as error:
                raise self.failure(error.args[0], f"writing to {topic}") from error
        self.poll(0, topic)

    def failure(self, error: KafkaError, doing: str) -> Exception:
        """Return the error for what went wrong."""
        problem = super().failure(error, doing)
        return fenced_off(self._sink, problem.doing, problem.code) if isinstance(problem, Fenced) else problem


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
