"""The producer of a sink: rows with their timestamps in a transaction, and errors that name the sink."""

from collections.abc import Sequence

from confluent_kafka import KafkaError, KafkaException

from floodmark.kafka import Fenced, KafkaSettings, TransactionalProducer
from floodmark.kafka._bulk_client import BulkClient
from floodmark.sinks._out_rows import TS_HEADER, OutRow, OutRows, RowColumns
from floodmark.sinks._sink_errors import fenced_off


class SinkProducer(TransactionalProducer):
    """Writes the rows of a sink."""

    def __init__(
        self,
        settings: KafkaSettings,
        transactional_id: str,
        sink: str,
        *,
        timeout: float,
        linger: float,
        bulk: bool = False,
    ) -> None:
        """Fence, and wait until the outcome of every transaction before is known. In bulk rows have no headers."""
        self._sink = sink
        options = {
            # As Kafka's other clients do it, and so that the same key goes to the same place today and tomorrow.
            "partitioner": "murmur2",
            "batch.num.messages": 50_000,
            "queue.buffering.max.messages": 500_000,
            "queue.buffering.max.kbytes": 128 * 1_024,
            "linger.ms": round(linger * 1_000),
        }
        super().__init__(settings, transactional_id, timeout=timeout, options=options, bulk=bulk)

    def send(self, topic: str, rows: OutRows, *, stamp: bool = True) -> None:
        """Put rows into the transaction, with their timestamps unless told otherwise. It waits while the queue is full.

        A header takes longer than all the rest of a small row.
        """
        if not isinstance(rows, RowColumns):
            self._send_rows(topic, rows, stamp=stamp)
        elif isinstance(self.client, BulkClient):
            self._send_columns(topic, rows)
        else:
            self._send_rows(topic, rows.rows(), stamp=stamp)
        self.poll(0, topic)

    def _send_columns(self, topic: str, columns: RowColumns) -> None:
        assert columns.headers is None, "there are none in bulk"
        partitions = columns.partitions
        places = None if partitions is None else partitions.fill_null(-1).to_numpy()
        self.put_columns(topic, columns.keys, columns.values, places)

    def _send_rows(self, topic: str, rows: Sequence[OutRow], *, stamp: bool) -> None:
        produce = self.client.produce
        last: int | None = None
        stamped: list[tuple[str, bytes | None]] = []
        for key, value, ts, partition, headers in rows:
            if stamp and ts != last:
                last, stamped = ts, [(TS_HEADER, str(ts).encode())]
            full = [*headers, *stamped] if headers else stamped or None
            try:
                # What is not given takes no time: a third of it all, for small rows.
                if full is not None:
                    produce(topic, value, key, -1 if partition is None else partition, headers=full)
                elif partition is None:
                    produce(topic, value, key)
                else:
                    produce(topic, value, key, partition)
            except BufferError:
                self.put(topic, value, key, -1 if partition is None else partition, full)
            except KafkaException as error:
                raise self.failure(error.args[0], f"writing to {topic}") from error

    def failure(self, error: KafkaError, doing: str) -> Exception:
        """Return the error for what went wrong."""
        problem = super().failure(error, doing)
        if not isinstance(problem, Fenced):
            return problem
        return fenced_off(self._sink, problem.doing, kafka_code=problem.code)


def transactional_id(progress_topic: str, sink: str) -> str:
    """Return the id under which a sink writes: no two sinks share it, and all processes of one do.

    >>> transactional_id("orders.progress", "out")
    'floodmark.sink.orders.progress.out'
    """
    return f"floodmark.sink.{progress_topic}.{sink}"
