"""A producer that takes many records at a time, against a real broker, next to the client that takes one."""

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import KafkaException, Producer

from floodmark.errors import InvalidOption, KafkaAway, UnknownTopic
from floodmark.kafka import Fenced, Fetcher, KafkaCluster, KafkaSettings, TransactionalProducer
from floodmark.kafka import bulk_producer as _bulk_client
from floodmark.kafka.bulk_producer import BulkClient
from floodmark.testing import KafkaBroker

Found = list[tuple[bytes | None, bytes | None]]


class Topic:
    """A topic of three partitions, and what writes to it."""

    def __init__(self, broker: KafkaBroker, cluster: KafkaCluster, name: str) -> None:
        self.settings, self.name = KafkaSettings.of(broker.servers), name
        self._cluster = cluster
        cluster.create_topic(name, 3, {})

    def producer(self, *, bulk: bool = True, timeout: float = 10.0, **options: Any) -> TransactionalProducer:
        named = {option.replace("_", "."): value for option, value in options.items()}
        return TransactionalProducer(
            self.settings, f"id-{self.name}", timeout=timeout, options={"partitioner": "murmur2", **named}, bulk=bulk
        )

    def found(self) -> list[Found]:
        """Return what is in each partition."""
        fetcher, parts = Fetcher(self.settings), range(3)
        ends = self._cluster.ends(self.name, parts, committed=False)
        try:
            return [
                [
                    (record.key(), record.value())
                    for piece in fetcher.read(self.name, part, 0, ends[part], wait_to=ends[part])
                    for record in piece
                ]
                for part in parts
            ]
        finally:
            fetcher.close()


@pytest.fixture
def topic(broker: KafkaBroker, cluster: KafkaCluster, topic_name: str) -> Topic:
    return Topic(broker, cluster, topic_name)


def write(producer: TransactionalProducer, topic: Topic, keys: pa.Array, values: pa.Array, places: Any = None) -> None:
    producer.begin()
    producer.put_columns(topic.name, keys, values, places)
    producer.flush()
    producer.commit()


@pytest.mark.parametrize(
    "shaped",
    [
        lambda column: column,
        lambda column: column.cast(pa.large_binary()),
        lambda column: pa.concat_arrays([pa.array([b"before", None]), column, pa.array([b"after"])])[2:-1],
        lambda column: pa.concat_arrays([column, column])[len(column) :],
    ],
    ids=["whole", "large", "a slice", "behind others"],
)
def test_records_arrive_as_they_are(topic: Topic, shaped: Callable[[pa.Array], pa.Array]) -> None:
    keys: list[bytes | None] = [b"a", None, b"", b"b" * 300, b"\x00\xff", None]
    values: list[bytes | None] = [b"one", b"two", b"three", None, b"", b"\x00" * 5]
    given = [shaped(pa.array(column, pa.binary())) for column in (keys, values)]
    write(topic.producer(), topic, given[0], given[1], np.array([0, 1, 0, 0, 2, 1]))
    assert topic.found() == [[(keys[place], values[place]) for place in places] for places in ([0, 2, 3], [1, 5], [4])]


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
@pytest.mark.parametrize("value", [None, b""])
def test_a_column_that_has_nothing_but_null_or_nothing_is_told_apart(
    topic: Topic, kind: pa.DataType, value: bytes | None
) -> None:
    column = pa.array([value, value], kind)
    write(topic.producer(), topic, column, column, np.array([0, 0]))
    assert topic.found()[0] == [(value, value)] * 2


def test_a_key_goes_where_the_other_client_puts_it(topic: Topic, broker: KafkaBroker, cluster: KafkaCluster) -> None:
    keys = [b"key-%d" % number for number in range(500)]
    other = Topic(broker, cluster, f"{topic.name}-other")
    write(topic.producer(), topic, pa.array(keys), pa.array(keys))
    single = other.producer(bulk=False)
    single.begin()
    for key in keys:
        single.put(other.name, key, key, -1)
    single.commit()
    assert topic.found() == other.found()
    assert all(topic.found())


def test_while_the_queue_is_full_it_waits_and_the_order_stays(topic: Topic) -> None:
    producer = topic.producer(queue_buffering_max_messages=10, linger_ms=0)
    numbers = [b"%d" % number for number in range(1_000)]
    write(producer, topic, pa.array([None] * 1_000, pa.binary()), pa.array(numbers), np.arange(1_000) % 3)
    assert topic.found() == [[(None, number) for number in numbers[part::3]] for part in range(3)]


def test_a_queue_that_stays_full_is_given_up_after_the_timeout(topic: Topic) -> None:
    producer = topic.producer(timeout=2.0, queue_buffering_max_messages=10, linger_ms=1_500)
    producer.begin()
    column = pa.array([b"x"] * 1_000)
    with pytest.raises(KafkaAway, match="writing to"):
        producer.put_columns(topic.name, column, column, None)


def test_one_record_is_taken_too_also_in_a_topic_that_was_never_heard_of(topic: Topic, cluster: KafkaCluster) -> None:
    producer = topic.producer()
    cluster.create_topic(f"{topic.name}.progress", 1, {})
    producer.begin()
    producer.put_columns(topic.name, pa.array([b"k"]), pa.array([b"v"]), np.array([2]))
    producer.put(f"{topic.name}.progress", b"done", b"sink", 0)
    producer.flush()
    producer.commit()
    assert topic.found()[2] == [(b"k", b"v")]
    assert cluster.ends(f"{topic.name}.progress", [0], committed=False) == {0: 2}


def test_what_is_aborted_is_not_seen(topic: Topic) -> None:
    producer = topic.producer()
    producer.begin()
    producer.put_columns(topic.name, pa.array([b"k"]), pa.array([b"never"]), np.array([0]))
    producer.flush()
    producer.abort()
    write(producer, topic, pa.array([b"k"]), pa.array([b"seen"]), np.array([0]))
    assert topic.found()[0] == [(b"k", b"seen")]


def test_the_older_of_two_is_fenced_and_tells_nobody_else(topic: Topic, capfd: pytest.CaptureFixture[str]) -> None:
    older = topic.producer()
    older.begin()
    topic.producer()

    def go_on() -> None:
        older.put_columns(topic.name, pa.array([b"k"]), pa.array([b"v"]), np.array([0]))
        older.flush()
        older.commit()

    with pytest.raises(Fenced):
        go_on()
    assert capfd.readouterr() == ("", "")


def test_a_partition_that_is_not_there_is_refused(topic: Topic) -> None:
    producer = topic.producer()
    write(producer, topic, pa.array([b"k"]), pa.array([b"v"]), np.array([0]))
    producer.begin()
    with pytest.raises(UnknownTopic):
        producer.put_columns(topic.name, pa.array([b"k"]), pa.array([b"v"]), np.array([7]))


@pytest.mark.parametrize("options", [{"no_such_option": 1}, {"acks": "some"}, {"compression_type": "wood"}])
def test_an_option_that_is_none_is_refused(topic: Topic, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption, match="does not accept its options"):
        topic.producer(**options)


def test_who_is_let_go_leaves_no_thread(topic: Topic) -> None:
    def threads() -> int:
        return sum(1 for _ in Path("/proc/self/task").iterdir())

    before = threads()
    producers = [topic.producer() for _ in range(3)]
    assert threads() > before
    del producers
    gc.collect()
    assert threads() <= before


def test_a_producer_that_is_not_in_bulk_is_the_usual_client(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(topic.producer().client, BulkClient)
    assert isinstance(topic.producer(bulk=False).client, Producer)
    assert not BulkClient.is_supported({"sasl.mechanism": "OAUTHBEARER"})
    monkeypatch.setattr(_bulk_client, "library", lambda: None)
    assert isinstance(topic.producer().client, Producer)


def test_what_it_cannot_do_it_says(topic: Topic) -> None:
    client = topic.producer().client
    assert isinstance(client, BulkClient)
    with pytest.raises(KafkaException):
        client.produce_columns(topic.name, pa.array([b"k"]), pa.array([b"v"]), None, lambda: None)
