"""A broker that is killed while a sink writes."""

from functools import partial
from pathlib import Path

import pytest

from floodmark.bindings import Bindings
from floodmark.control import Home
from floodmark.errors import (
    FloodmarkError,
)
from floodmark.kafka import KafkaSettings
from floodmark.sinks import (
    Batch,
    KafkaTarget,
    Sink,
    TargetOptions,
)
from floodmark.testing import KafkaBroker
from support.kafka.kafka_homes import Hook
from support.sinks.sink_process import Job, bind, chain, given, run
from support.sinks.sink_topics import Topics


@pytest.mark.parametrize(
    ("where", "is_bulk"),
    [
        ("sink: some rows sent", False),
        pytest.param("sink: some rows sent", True, marks=pytest.mark.full),
        pytest.param("sink: progress flushed", False, marks=pytest.mark.full),
        ("sink: progress flushed", True),
    ],
)
def test_a_broker_that_is_killed_within_a_transaction_costs_an_error_and_no_row(
    tmp_path: Path, topic_name: str, where: str, is_bulk: bool
) -> None:
    """Scenario 26."""
    place_ = str(tmp_path / "home")
    with Home.open(place_) as home, KafkaBroker() as broker:
        bind(home)
        job = Job(broker.servers, place_, topic_name, until=2, timeout=4.0, is_bulk=is_bulk)
        run(job)
        hook = Hook()
        options = TargetOptions(partitions=2, timeout=4.0, stamp=not is_bulk, headers=not is_bulk)
        target = KafkaTarget(KafkaSettings.of(broker.url), topic_name, "K", options, failpoint=hook)
        sink = Sink(home, target)
        sink.start()
        places = chain(home)
        failed = 0
        hook.at(where, broker.kill)
        for number in (2, 3):
            now = Batch.of("q1", {"S": (places[number], places[number + 1])}, is_stateful=False)
            end = places[number + 1]
            for _ in range(5):
                try:
                    pieces = partial(given, places[number], end, is_bulk)
                    sink.write(now, lambda _, pieces=pieces: pieces(), watermarks=end.watermarks)  # type: ignore[misc]
                    break
                except FloodmarkError:
                    failed += 1
                    broker.start()
                    sink.start()
        topics = Topics(broker.servers, topic_name)
        topics.check(40)
        assert failed == 1
        assert Bindings(home).holds()[0].ts == (places[4].ts or 0) - 1
        sink.close()
