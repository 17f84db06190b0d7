"""A broker that is killed while its topics are bound."""

from pathlib import Path

import pytest

from floodmark.bindings import BoundTopics
from floodmark.control import Home
from floodmark.errors import (
    KafkaAway,
)
from floodmark.kafka import KafkaCluster
from floodmark.testing import KafkaBroker
from support.kafka.topic_feed import TopicFeed


@pytest.mark.usefixtures("short_requests")
def test_a_broker_that_is_killed_while_we_bind_loses_nothing(tmp_path: Path, topic_name: str) -> None:
    with KafkaBroker() as own, Home.open(tmp_path / "home") as home:
        feed = TopicFeed(own.servers, topic_name)
        bound = BoundTopics(home, feed.cluster, [topic_name], tick="100 milliseconds")
        feed.write(0, *["a"] * 50)
        before = bound.tick(at_once=True)
        own.kill()
        impatient = KafkaCluster(feed.settings, patience=0.3)
        with pytest.raises(KafkaAway):
            BoundTopics(home, impatient, [topic_name])
        own.start()
        feed.write(0, *["b"] * 10)
        after = bound.tick(at_once=True)
        assert (before.ends[0], after.ends[0]) == (50, 60)
        assert set(before.pairs()) <= set(after.pairs())
