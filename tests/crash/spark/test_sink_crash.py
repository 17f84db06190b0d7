"""Drivers that are killed while queries write: whatever is killed where, each row and each window is written once."""

import signal
from pathlib import Path

import pytest

from floodmark.sinks.target import COMMITTED, FAILPOINTS, PROGRESS_FLUSHED, ROWS_FLUSHED, STARTED
from floodmark.testing import KafkaBroker
from support.spark.sink_rounds import Rounds
from support.spark.sink_shop import KINDS

KILLS = [(place, KINDS[number % len(KINDS)]) for number, place in enumerate(FAILPOINTS)]
SOME_KILLS = [(ROWS_FLUSHED, "windows"), (PROGRESS_FLUSHED, "chained"), (COMMITTED, "rows"), (STARTED, "joined")]


@pytest.mark.parametrize(
    "kills", [pytest.param(SOME_KILLS, id="some"), pytest.param(KILLS, id="all", marks=pytest.mark.full)]
)
def test_queries_whose_driver_is_killed_at_each_step_write_everything_once(
    tmp_path: Path, broker: KafkaBroker, topic_name: str, kills: list[tuple[str, str]]
) -> None:
    # Rows and windows are written by tasks, the others by the driver.
    rounds = Rounds(tmp_path, broker.servers, f"{topic_name}-")
    for number, (place, kind) in enumerate(kills):
        rounds.shop.trade(rows=16)
        if number == len(kills) // 2:
            rounds.forget(kind)
        if number == len(kills) // 2 + 1:
            rounds.go_back(kind)
        rounds.keep()
        beside = KINDS[(number + 1) % len(KINDS)]
        code = rounds.run(
            kill=(place, kind, 1), kinds=(kind, beside), max_rows=(None, 20, 50)[number % 3], parallel=True
        )
        # Where a task is killed, its query fails and the driver with it; some steps are not reached each time.
        assert code in (-signal.SIGKILL, 1, 0), rounds.said()
        assert rounds.too_many() == []
    assert rounds.run(parallel=True) == 0, rounds.said()
    assert rounds.problems() == []
    rounds.shop.close()
