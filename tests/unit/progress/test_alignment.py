"""How far ahead of the slowest an input may read."""

import pytest

from floodmark.errors import FloodmarkError
from floodmark.progress import Alignment


def test_f18_the_slowest_plus_the_drift_is_allowed() -> None:
    group = Alignment(1000)
    assert group.report("s0", 42) == 1042
    assert group.report("s1", 44) == 1042
    assert group.report("s0", 5000) == 1044
    assert group.idle("s0") == 1044
    assert group.idle("s1") is None
    assert group.report("s0", 42) == 1042


def test_f18_groups_know_nothing_of_each_other() -> None:
    one, other = Alignment(1000), Alignment(1000)
    assert (one.report("s0", 42), other.report("s1", 44)) == (1042, 1044)
    assert (one.report("s0", 5000), other.allowed) == (6000, 1044)


def test_f19_a_partition_is_held_while_it_is_above_what_is_allowed() -> None:
    group = Alignment(1)
    group.report("other", 3)
    group.report("source", 5, partition=1)
    assert (group.allowed, group.is_held("source", partition=1)) == (4, True)
    group.report("other", 4)
    assert (group.allowed, group.is_held("source", partition=1)) == (5, False)
    group.report("source", 11, partition=1)
    group.report("source", 3, partition=2)
    group.report("source", 12, partition=3)
    assert group.held() == (("source", 1), ("source", 3))
    assert not group.is_held("source", partition=2)
    assert not group.is_held("source")
    assert group.slowest() == (("source", 2),)


def test_f21_the_minimum_of_those_that_report_may_fall() -> None:
    group = Alignment(0)
    group.report("k0", 10)
    group.report("k1", 12)
    assert group.report("k2", 13) == 10
    assert group.report("k1", 9) == 9
    assert group.idle("k1") == 10
    assert group.report("k1", 8) == 8
    assert group.report("k1", 20) == 10
    assert group.report("k0", 23) == 13
    assert group.report("k2", 22) == 20


def test_who_has_finished_holds_nobody_back() -> None:
    group = Alignment(10)
    group.report("s0", 1)
    group.report("s1", 500)
    assert group.is_held("s1")
    assert group.remove("s0") == 510
    assert not group.is_held("s1")
    assert group.remove("s1") is None


def test_an_idle_input_is_not_held() -> None:
    group = Alignment(10)
    group.report("s0", 1)
    group.report("s1", 500)
    group.idle("s1")
    assert not group.is_held("s1")


def test_what_is_allowed_stays_within_64_bits() -> None:
    assert Alignment(2**62).report("s0", 2**63 - 2) == 2**63 - 1


@pytest.mark.parametrize(
    "action",
    [
        lambda: Alignment(-1),
        lambda: Alignment(1).report("s0", 2**63 - 1),
        lambda: Alignment(1).report("s0", "x"),  # type: ignore[arg-type]
        lambda: Alignment(1).idle("s0"),
        lambda: Alignment(1).remove("s0"),
        lambda: Alignment(1).is_held("s0"),
    ],
)
def test_bad_input_is_refused(action: object) -> None:
    with pytest.raises(FloodmarkError):
        action()  # type: ignore[operator]
