"""Claims about the sentence on what would let a watermark move."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from floodmark.progress import WallClockLag
from support.cli.asking import (
    MINUTE,
    NOON,
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
    assert asked.text("orders").splitlines()[-1] == sentence
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
        ({}, "sends a row later than 12:04:00, goes idle, or is removed."),
    ],
)
def test_a_way_out_that_the_settings_rule_out_is_not_named(asked: Asked, settings: Any, way_out: str) -> None:
    asked.keep(source_of({"p0": 4}), settings=settings)
    assert asked.column()["release"] == f"It moves when p0 {way_out}"
