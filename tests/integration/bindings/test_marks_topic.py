"""The marks topic of a stream: the marks log for everybody who reads Kafka."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from floodmark.kafka import Fetcher, KafkaCluster, KafkaSettings, MarkRecord, marks_topic_of
from floodmark.streams import Controller, MarkEntry, Stream, StreamHome
from floodmark.streams.kafka.marks_topic import MarksPublisher
from floodmark.testing import KafkaBroker
from support.kafka.kafka_homes import CONSUMER, console, open_home, topic_of
from support.waiting import wait_until

BUCKETS = range(32)


@pytest.fixture
def home(broker: KafkaBroker, tmp_path: Path) -> Iterator[StreamHome]:
    with open_home(str(tmp_path / "home"), broker.servers) as home:
        # Unless a test says otherwise, nothing is published by the way.
        home.local.maintain_topics = lambda buckets: True  # type: ignore[method-assign]
        yield home


def noted(home: StreamHome, stream: Stream, *times: int) -> None:
    controller = Controller(home, name="c")
    with stream.writer("w") as writer:
        for time_ in times:
            writer.write({"t": time_}, key=str(time_))
            writer.note_time(time_)
            controller.step()
    controller.stop()


def records_of(broker: KafkaBroker, stream: Stream) -> list[MarkRecord]:
    settings = KafkaSettings.of(broker.url)
    topic = marks_topic_of(topic_of(stream))
    # The end of committed records comes a moment after the commit; a read up to this end waits for it.
    end = KafkaCluster(settings).ends(topic, [0], committed=False)[0]
    return [MarkRecord.load(one.value()) for some in Fetcher(settings).read(topic, 0, 0, end) for one in some]


def publisher_of(home: StreamHome) -> MarksPublisher:
    """Return a publisher as another process would have it."""
    return MarksPublisher(home.home, home.local.catalog, home.local._connections)


def same(record: MarkRecord, entry: MarkEntry) -> bool:
    of_record = (record.seq, record.kind, record.lower, record.upper, record.writers)
    return of_record == (entry.seq, entry.kind.value, entry.lower, entry.upper, entry.writers)


def test_each_entry_is_published_once_and_in_order(home: StreamHome, broker: KafkaBroker) -> None:
    stream = home.create_stream("s", segments=2, rate_floor="0 seconds")
    noted(home, stream, 10, 20, 30)
    home.local.marks_publisher.publish(BUCKETS)
    home.local.marks_publisher.publish(BUCKETS)
    records = records_of(broker, stream)
    entries = stream.marks()
    assert len(records) == len(entries) == 3
    assert all(same(record, entry) for record, entry in zip(records, entries, strict=True))
    assert [record.cut for record in records[:3]] == [entry.cut for entry in entries[:3]]


def test_who_takes_over_publishes_what_is_missing_and_the_old_one_is_fenced(
    home: StreamHome, broker: KafkaBroker
) -> None:
    """K7: else an entry would be there twice, or two publishers would mix."""
    stream = home.create_stream("s", rate_floor="0 seconds")
    older, newer = publisher_of(home), publisher_of(home)
    noted(home, stream, 10)
    older.publish(BUCKETS)
    noted(home, stream, 20)
    assert newer.publish(BUCKETS) > 0
    noted(home, stream, 30)
    assert older.publish(BUCKETS) == 0
    assert older.publish(BUCKETS) > 0, "it reads what is there, and goes on"
    numbers = [record.seq for record in records_of(broker, stream)]
    assert numbers == [entry.seq for entry in stream.marks()]


def test_a_cut_names_every_partition_that_lies_behind_it(home: StreamHome, broker: KafkaBroker) -> None:
    """Who reads Kafka does not know which segments came out of which."""
    stream = home.create_stream("s", rate_floor="0 seconds")
    with stream.writer("w") as writer:
        controller = Controller(home, name="c")
        writer.write(1, key="a")
        writer.note_time(10)
        stream.split(0)
        writer.write(2, key="a")
        writer.note_time(20)
        controller.step()
        controller.stop()
    home.local.marks_publisher.publish(BUCKETS)
    (record,) = [record for record in records_of(broker, stream) if record.kind == "watermark"]
    assert record.cut[0] == 1
    assert set(record.cut) == {0, 1, 2}


def test_a_controller_publishes_by_itself_and_kafkas_own_consumer_reads_it(
    home: StreamHome, broker: KafkaBroker
) -> None:
    del home.local.maintain_topics
    schema = "paid BIGINT, sent BIGINT"
    stream = home.create_stream("s", schema, time_columns=["paid", "sent"], rate_floor="0 seconds")
    with Controller(home), stream.writer("w") as writer:
        writer.note_time(10, "paid")
        writer.note_time(20, "sent")
        wait_until(lambda: len(records_of(broker, stream)) == 2)
    topic = marks_topic_of(topic_of(stream))
    options = ("--bootstrap-server", broker.servers, "--topic", topic, "--from-beginning", "--max-messages", "2")
    said = [json.loads(line) for line in console(CONSUMER, *options).splitlines()]
    assert sorted((one["key"], one["lower"], one["unit"]) for one in said) == [("paid", 10, "us"), ("sent", 20, "us")]


def test_streams_in_the_home_have_no_topic(home: StreamHome, tmp_path: Path) -> None:
    assert home.local.marks_publisher.publish(BUCKETS) == 0
