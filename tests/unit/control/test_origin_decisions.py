"""Claims about decisions on origins of computed watermarks, one a test."""

import pytest

from floodmark.control import Home, OriginDecision, WatermarkSteps
from floodmark.errors import FloodmarkError, InvalidOption, UnknownIncarnation


@pytest.fixture
def steps(home: Home) -> WatermarkSteps:
    """Return steps with the incarnation "a", its fork "b" and the fork "c" of that, and another one, "other"."""
    steps = WatermarkSteps(home)
    for name in ("a", "other"):
        steps.create(name, {"delay": 5}, now=100)
        steps.add(name, 0, None, {}, now=101)
    steps.fork("a", 0, "b", now=102)
    steps.fork("b", 0, "c", now=103)
    return steps


def test_decisions_are_numbered_and_come_back_in_order(steps: WatermarkSteps) -> None:
    first = steps.decide("a", [("1f", "eu", "revive"), ("2e", "us", "idle")], "option", now=200)
    second = steps.decide("a", [("1f", "eu", "finish")], "command", now=300)
    assert first == (
        OriginDecision(1, "1f", "eu", "revive", "option", 200),
        OriginDecision(2, "2e", "us", "idle", "option", 200),
    )
    assert steps.decisions("a") == first + second
    assert steps.decisions("a", after=2) == second == (OriginDecision(3, "1f", "eu", "finish", "command", 300),)
    assert steps.decide("a", [], "option", now=400) == ()


def test_forks_share_their_decisions_and_others_do_not(steps: WatermarkSteps) -> None:
    steps.decide("b", [("1f", "eu", "idle")], "command", now=200)
    steps.decide("c", [("1f", "eu", "remove")], "command", now=300)
    assert [decision.number for decision in steps.decisions("a")] == [1, 2]
    assert steps.decisions("a") == steps.decisions("b") == steps.decisions("c")
    assert steps.decisions("other") == ()


def test_a_name_with_characters_that_no_database_stores_is_stored_without_them(steps: WatermarkSteps) -> None:
    [decision] = steps.decide("a", [("1f", "a\0b", "idle")], "command", now=200)
    assert steps.decisions("a") == (decision,)
    assert decision.name == "a\ufffdb"


@pytest.mark.parametrize(
    ("refusal", "incarnation", "origin", "action"),
    [
        (UnknownIncarnation, "gone", "1f", "idle"),
        (InvalidOption, "a", "1f", "forget"),
        (FloodmarkError, "a", "", "idle"),
    ],
)
def test_a_wrong_decision_is_refused_and_stores_nothing(
    steps: WatermarkSteps, refusal: type[FloodmarkError], incarnation: str, origin: str, action: str
) -> None:
    with pytest.raises(refusal):
        steps.decide(incarnation, [("2e", "us", "idle"), (origin, "eu", action)], "command", now=200)  # type: ignore[list-item]
    assert steps.decisions("a") == ()


def test_settings_change_with_a_restart(steps: WatermarkSteps) -> None:
    steps.change_settings("c", {"delay": 7})
    assert [steps.incarnation(name).settings["delay"] for name in ("a", "b", "c")] == [5, 5, 7]
