"""Drivers that are killed while queries write: whatever is killed where, each row and each window is written once."""

import signal
from pathlib import Path

import pytest

from floodmark.sinks import FAILPOINTS
from floodmark.testing import KafkaBroker
from sink_rounds import Rounds
from sink_shop import KINDS

KILLS = [(place, KINDS[number % len(KINDS)]) for number, place in enumerate(FAILPOINTS)]


@pytest.mark.parametrize("parallel", [False, True], ids=["atomic", "parallel"])
def test_four_queries_whose_driver_is_killed_at_each_step_write_everything_once(
    tmp_path: Path, broker: KafkaBroker, topic_name: str, *, parallel: bool
) -> None:
    rounds = Rounds(tmp_path, broker.servers, f"{topic_name}-")
    # Every second step with tasks that write, the others with the driver.
    for number, (place, kind) in enumerate(KILLS[parallel::2]):
        rounds.shop.trade(rows=24)
        if number == 2:
            rounds.forget(kind)
        if number == 3:
            rounds.go_back("windows")
        rounds.keep()
        code = rounds.run(kill=(place, kind, 1), max_rows=(None, 11, 30)[number % 3], parallel=parallel)
        # In a task it is that which dies, and the query with it.
        assert code in (-signal.SIGKILL, 1, 0), rounds.said()
        assert rounds.too_many() == []
    assert rounds.run(parallel=parallel) == 0, rounds.said()
    assert rounds.problems() == []
    rounds.shop.close()
