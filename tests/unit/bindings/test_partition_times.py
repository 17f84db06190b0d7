"""How far time has come over partitions: who holds it, who is idle, and what never happens whatever is told."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from floodmark.bindings import TimeRule
from floodmark.bindings.topics.partitions import PartitionProgress, coalesce_partitions
from floodmark.progress import Coalescer


def known(name: str, newest: int | None, *, end: int = 5, bound: int = 5, read_to: Any = None, moved: int = 0) -> Any:
    return PartitionProgress(name, newest, end, bound, read_to, moved)


A, B, EMPTY = known("a", 70), known("b", 40), known("c", None, end=0, bound=0)
QUIET = TimeRule(idle=100)

ROWS: list[tuple[str, list[PartitionProgress], int, TimeRule, int | None, tuple[str, ...]]] = [
    ("nobody says anything of no partition", [], 0, TimeRule(), None, ()),
    ("one alone is the watermark", [A], 0, TimeRule(), 70, ("a",)),
    ("the least of two holds", [A, B], 0, TimeRule(), 40, ("b",)),
    ("two at the same time hold together", [B, known("d", 40)], 0, TimeRule(), 40, ("b", "d")),
    ("the delay is taken off", [A, B], 0, TimeRule(delay=15), 25, ("b",)),
    ("one without a row holds everybody", [A, B, EMPTY], 0, TimeRule(), None, ("c",)),
    ("nobody is ever idle without a rule", [A, EMPTY], 10**15, TimeRule(), None, ("c",)),
    ("just before the time it is not idle", [known("a", 70, moved=99), B], 99, QUIET, 40, ("b",)),
    ("when the time has come it is idle", [known("a", 70, moved=99), B], 100, QUIET, 70, ("a",)),
    ("one without a row may be idle too", [known("a", 70, moved=99), EMPTY], 100, QUIET, 70, ("a",)),
    ("if all are idle the greatest counts", [A, B, EMPTY], 100, QUIET, 70, ()),
    ("if all are idle and none has a row there is none", [EMPTY], 100, QUIET, None, ()),
    ("what is not bound yet keeps it awake", [known("a", 70, moved=99), known("b", 40, end=6)], 500, QUIET, 40, ("b",)),
    (
        "what is not read yet keeps it awake",
        [known("a", 70, read_to=5, moved=99), known("b", 40, read_to=4)],
        150,
        QUIET,
        40,
        ("b",),
    ),
    (
        "what was read is caught up",
        [known("a", 70, read_to=5, moved=99), known("b", 40, read_to=5)],
        150,
        QUIET,
        70,
        ("a",),
    ),
    (
        "one that came back behind holds again",
        [known("a", 70, moved=500), known("b", 45, moved=510)],
        520,
        QUIET,
        45,
        ("b",),
    ),
]


@pytest.mark.parametrize(
    ("partitions", "now", "rule", "watermark", "holders"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS]
)
def test_the_watermark_is_the_least_of_those_that_are_not_idle(
    partitions: list[PartitionProgress], now: int, rule: TimeRule, watermark: int | None, holders: tuple[str, ...]
) -> None:
    found = coalesce_partitions(partitions, now, rule)
    assert (found.watermark, found.holders) == (watermark, holders)


def test_an_answer_says_who_holds_since_when_and_who_has_unread_rows() -> None:
    late = known("b", 40, read_to=4, moved=7)
    shown = str(coalesce_partitions([known("a", 70, read_to=5), late], 150, QUIET))
    assert shown.splitlines() == [
        "at 40, held by b",
        "  a: idle, at 70, last grew at 0",
        "  b: active, at 40, last grew at 7, has unread rows, holds",
    ]
    assert str(coalesce_partitions([EMPTY], 100, QUIET)).startswith("no watermark yet, all partitions are idle")


states = st.lists(
    st.builds(
        PartitionProgress,
        name=st.sampled_from("abcdef"),
        newest=st.none() | st.integers(0, 9),
        end=st.integers(0, 3),
        bound=st.integers(0, 3),
        read_to=st.none() | st.integers(0, 3),
        moved_at=st.integers(0, 9),
    ),
    unique_by=lambda one: one.name,
    max_size=5,
)


@given(states, st.integers(0, 20), st.none() | st.integers(1, 9))
def test_the_rules_are_those_of_the_coalescer(partitions: list[PartitionProgress], now: int, idle: int | None) -> None:
    rule = TimeRule(idle=idle)
    found = coalesce_partitions(partitions, now, rule)
    merged = Coalescer([one.name for one in partitions])
    for one in partitions:
        if one.newest is not None:
            merged.watermark(one.name, "timestamp", one.newest, now=0)
    for view in found.partitions:
        if view.is_idle:
            merged.idle(view.name, now=now)
    told = merged.explain().keys.get("timestamp")
    assert found.watermark == (None if told is None else told.watermark)


@given(states, st.integers(0, 20), st.data())
def test_a_later_time_of_a_partition_never_makes_the_watermark_earlier(
    partitions: list[PartitionProgress], now: int, data: Any
) -> None:
    from dataclasses import replace

    later = [replace(one, newest=max(one.newest or 0, data.draw(st.integers(0, 9)))) for one in partitions]
    before, after = (coalesce_partitions(each, now, QUIET).watermark for each in (partitions, later))
    assert before is None or (after is not None and after >= before)
