"""Ranges of a partition, read from a real broker: exactly the records in them, however the client fetches."""

import pytest

from floodmark.kafka import Fetcher
from floodmark.testing import KafkaBroker
from support.kafka.topic_feed import TopicFeed


@pytest.mark.parametrize(("start", "end"), [(0, 1), (0, 9), (3, 7), (9, 10), (0, 10)])
def test_a_range_has_the_records_from_its_start_to_before_its_end(
    broker: KafkaBroker, topic_name: str, start: int, end: int
) -> None:
    feed = TopicFeed(broker.servers, topic_name, 1)
    feed.write(0, *map(str, range(10)))
    read = [record.offset() for records in Fetcher(feed.settings).read(feed.name, 0, start, end) for record in records]
    assert read == list(range(start, end))
