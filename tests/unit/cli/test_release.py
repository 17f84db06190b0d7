"""Claims about the sentence on what would let a watermark move."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from floodmark.control import QueryState
from floodmark.progress import WallClockLag
from support.cli.asking import (
    MINUTE,
    NOON,
    ORDERS,
    SECOND,
    Asked,
    all_finished,
    all_idle,
    asking,
    only_laggards,
    revived_behind,
    source_of,
)


@pytest.fixture
def asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Asked]:
    with asking(tmp_path, capsys) as asked:
        yield asked


RELEASES = {
    "one that is behind": (
        lambda: source_of({"p0": 9, "p1": 4}),
        "It moves when p1 sends a row later than 12:04:00, goes idle, or is removed.",
    ),
    "two that are behind": (
        lambda: source_of({"p0": 4, "p1": 4, "p2": 9}),
        "It moves when p0 and p1 each send a row later than 12:04:00, go idle, or are removed.",
    ),
    "one that never spoke": (
        lambda: source_of({"p0": 9, "p1": None}),
        "It moves when p1 sends its first accepted row, goes idle, or is removed.",
    ),
    "many that never spoke": (
        lambda: source_of({"p0": 9, "p1": None, "p2": None, "p3": None, "p4": None}),
        "It moves when p1, p2 and 2 others each send their first accepted row, go idle, or are removed.",
    ),
    "one that came back behind what has left": (
        lambda: revived_behind("hold"),
        "It moves when p0 sends a row later than 12:09:00, goes idle, or is removed.",
    ),
    "one that is left out, beside another": (
        lambda: revived_behind("exclude"),
        "It moves when p1 sends a row later than 12:09:00, goes idle, or is removed.",
    ),
    "only one that is left out": (only_laggards, "It moves when p0 has caught up with it."),
    "all idle": (
        all_idle,
        "It moves when an idle origin sends a row far enough ahead of the watermark, or a new origin appears.",
    ),
    "all finished": (all_finished, "It is final: every origin has finished."),
    "no origin": (lambda: source_of({}), "The watermark appears after the first row."),
    "a rule that remembers nothing": (
        lambda: source_of({"p0": 4}, WallClockLag(0)),
        "It moves when p0 advances in time, goes idle, or is removed.",
    ),
}


@pytest.mark.parametrize(("source", "sentence"), RELEASES.values(), ids=RELEASES)
def test_what_would_release_it(asked: Asked, source: Any, sentence: str) -> None:
    asked.keep(source())
    assert sentence in asked.text("orders").splitlines()[-2:]
    assert asked.column()["release"] == sentence


def test_the_time_to_pass_is_right() -> None:
    source = revived_behind("hold")
    before = source.current("order_time")
    source.event("p0", {"order_time": NOON + 9 * MINUTE}, now=NOON)
    assert source.current("order_time") == before
    source.event("p1", {"order_time": NOON + 30 * MINUTE}, now=NOON)
    source.event("p0", {"order_time": NOON + 9 * MINUTE + 1}, now=NOON)
    assert source.current("order_time") == NOON + 8 * MINUTE + 1


@pytest.mark.parametrize(
    ("settings", "way_out"),
    [
        ({"idle": None}, "sends a row later than 12:04:00, or is removed (no idle timeout is set)."),
        (
            {"idle": 90 * SECOND},
            "sends a row later than 12:04:00, is silent for 1 min 30 s with no unread rows, or is removed.",
        ),
        (
            {"idle": 90 * SECOND, "assume_caught_up": True},
            "sends a row later than 12:04:00, is silent for 1 min 30 s with no unread rows, or is removed.",
        ),
        ({}, "sends a row later than 12:04:00, goes idle, or is removed."),
    ],
)
def test_a_way_out_that_the_settings_rule_out_is_not_named(asked: Asked, settings: Any, way_out: str) -> None:
    asked.keep(source_of({"p0": 4}), settings=settings)
    assert asked.column()["release"] == f"It moves when p0 {way_out}"


def test_an_idle_timeout_that_can_never_fire_is_not_named_as_a_way_out(asked: Asked) -> None:
    asked.keep(source_of({"p0": 4}), settings={"idle": SECOND, "assume_caught_up": False})
    asked.steps.observe("a", 0, 0, {"newest": {}, "reports_latest": True}, now=NOON)
    assert "is silent for 1 s with no unread rows" in asked.column()["release"]
    asked.steps.observe("a", 0, 1, {"newest": {}, "reports_latest": False}, now=NOON)
    assert asked.column()["release"] == (
        "It moves when p0 sends a row later than 12:04:00, or is removed (idle='1 s' has no effect: a source does not "
        "report its latest offset, so unread rows cannot be excluded; assume_caught_up=True excludes them)."
    )


@pytest.mark.parametrize(("state", "is_so"), [("stopped", "is stopped"), ("failed", "has failed")])
def test_a_query_that_does_not_run_moves_nothing(asked: Asked, state: QueryState, is_so: str) -> None:
    asked.keep(source_of({"p0": 4}), settings={"idle": SECOND, "assume_caught_up": True})
    asked.queries.record(replace(ORDERS, state=state))
    assert asked.column()["release"] == (
        f"The query {is_so}. Once it runs again, it moves when p0 sends a row later than 12:04:00, is silent for 1 s "
        "with no unread rows, or is removed."
    )


def test_a_final_watermark_of_a_stopped_query_is_final(asked: Asked) -> None:
    asked.keep(all_finished())
    asked.queries.record(replace(ORDERS, state="stopped"))
    assert asked.column()["release"] == "The query is stopped. It is final: every origin has finished."


def test_the_command_that_stops_the_waiting_is_shown_ready_to_paste(asked: Asked) -> None:
    asked.keep(source_of({"p0": 9, "shop's, 3": None}))
    command = """floodmark origins orders idle 'shop'"'"'s, 3'"""
    assert asked.text("orders").splitlines()[-1].startswith(f"To stop waiting: {command} (or finish, remove;")
