"""Tasks of a sink of several groups that are killed."""

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from floodmark.kafka import KafkaSettings
from floodmark.sinks import (
    Batch,
    GroupedTarget,
    GroupLayout,
    GroupWriter,
)
from floodmark.testing import KafkaBroker
from support.sinks.group_process import OPTIONS, TWO, everything, numbered, rows_for, work, work_and_die
from support.sinks.sink_topics import Topics


@pytest.fixture
def topics(broker: KafkaBroker, topic_name: str) -> Topics:
    return Topics(broker.servers, topic_name)


@pytest.fixture
def opened(broker: KafkaBroker, topic_name: str) -> Iterator[Any]:
    made: list[GroupedTarget] = []

    def make(layout: GroupLayout = TWO) -> GroupedTarget:
        made.append(GroupedTarget(KafkaSettings.of(broker.url), topic_name, "K", layout, OPTIONS))
        return made[-1]

    yield make
    for target in made:
        target.close()


@pytest.mark.parametrize(
    "place_", ["sink: some rows sent", "sink: rows flushed", "sink: progress flushed", "sink: committed"]
)
def test_a_task_that_is_killed_leaves_all_of_its_rows_or_none(
    opened: Any, topics: Topics, tmp_path: Path, place_: str
) -> None:
    target, given = opened(), numbered(1)
    target.start(everything)
    one, other = target.writers(given)
    assert work_and_die(tmp_path, one, given, place_) == -signal.SIGKILL
    # A task that is run again by the same driver, and not after a new start.
    target.close_batch(given, [work(one, given), work(other, given)], watermarks={"at": 100})
    assert topics.numbers() == list(range(10))
    assert topics.progress()[-1].total == 10
    assert len(topics.rows(committed=False)) == (10 if place_ == "sink: committed" else 10 + _sent(one, given, place_))


def _sent(writer: GroupWriter, given: Batch, place_: str) -> int:
    pieces = rows_for(writer, given)
    return len(pieces[0]) if place_ == "sink: some rows sent" else sum(map(len, pieces))
