"""Claims about the steps of computed watermarks, one a test."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floodmark.control import Home, Incarnation, Observation, WatermarkStep, WatermarkSteps
from floodmark.errors import FloodmarkError
from floodmark.progress import BoundedDisorder, OriginWatermarks, Watermark
from support.examples import examples


@pytest.fixture
def steps(home: Home) -> WatermarkSteps:
    """Return steps with the incarnation "a", which has the steps 0, 1 and 2 and an observation at each."""
    steps = WatermarkSteps(home)
    steps.create("a", {"delay": 5}, now=100)
    for seq, watermark in enumerate((None, 10, 20)):
        steps.add("a", seq, watermark, {"at step": seq}, now=101 + seq)
        steps.observe("a", seq, 7 + seq, {"rows": seq}, now=201 + seq)
    return steps


def test_a_new_incarnation_has_settings_and_no_step(home: Home) -> None:
    steps = WatermarkSteps(home)
    steps.create("new", {"delay": 5}, now=100)
    assert steps.incarnation("new") == Incarnation("new", {"delay": 5}, None, None, 100)
    assert (steps.newest("new"), steps.get("new", 0), steps.observations("new")) == (None, None, ())


def test_an_id_is_used_once(steps: WatermarkSteps) -> None:
    with pytest.raises(FloodmarkError, match="already exists") as refusal:
        steps.create("a", {"delay": 6}, now=300)
    assert refusal.value.code == "conflict"
    assert steps.incarnation("a").settings == {"delay": 5}


def test_steps_come_back_as_they_were_added(steps: WatermarkSteps) -> None:
    assert steps.get("a", 0) == WatermarkStep("a", 0, None, {"at step": 0}, 101)
    assert steps.get("a", 2) == steps.newest("a") == WatermarkStep("a", 2, 20, {"at step": 2}, 103)


@pytest.mark.parametrize("seq", [0, 1, 2, 4, 100])
def test_only_the_next_step_can_be_added(steps: WatermarkSteps, seq: int) -> None:
    before = steps.get("a", seq)
    with pytest.raises(FloodmarkError) as refusal:
        steps.add("a", seq, 99, {}, now=300)
    assert refusal.value.code == "conflict"
    assert refusal.value.fields == {"incarnation": "a", "seq": seq, "newest": 2}
    assert steps.get("a", seq) == before
    steps.add("a", 3, 99, {}, now=300)


def test_an_origin_goes_on_from_a_step_as_if_it_had_never_stopped(steps: WatermarkSteps) -> None:
    rules = {"t": BoundedDisorder(3)}
    source = OriginWatermarks(rules, origins=["p0", 1], now=0)
    source.event("p0", {"t": 2**62}, now=1)
    steps.add("a", 3, None, source.snapshot(), now=300)
    newest = steps.newest("a")
    assert newest is not None
    assert newest.snapshot == source.snapshot()
    restored = OriginWatermarks.restore(newest.snapshot, rules, now=400)
    assert restored.event(1, {"t": 50}, now=401) == (Watermark("t", 47),)


def test_an_observation_told_again_replaces_the_first(steps: WatermarkSteps) -> None:
    steps.observe("a", 1, 8, {"rows": 5}, now=300)
    steps.observe("a", 1, 8, {"rows": 6}, now=301)
    assert steps.observations("a", 1) == (Observation("a", 1, 8, {"rows": 6}, 301),)


def test_the_observations_of_a_step_are_in_the_order_of_their_batches(steps: WatermarkSteps) -> None:
    for batch_id in (12, 9, 10):
        steps.observe("a", 2, batch_id, {}, now=300)
    assert [one.batch_id for one in steps.observations("a", 2)] == [9, 10, 12]
    assert [(one.seq, one.batch_id) for one in steps.observations("a")] == [(0, 7), (1, 8), (2, 9), (2, 10), (2, 12)]


def test_observations_can_be_asked_for_after_a_batch(steps: WatermarkSteps) -> None:
    assert [one.batch_id for one in steps.observations("a", after_batch=7)] == [8, 9]
    assert steps.observations("a", 1, after_batch=8) == ()


def test_a_fork_has_what_was_there_up_to_its_step_and_remembers_its_parent(steps: WatermarkSteps) -> None:
    steps.fork("a", 1, "b", now=300)
    assert steps.incarnation("b") == Incarnation("b", {"delay": 5}, "a", 1, 300)
    assert steps.newest("b") == WatermarkStep("b", 1, 10, {"at step": 1}, 102)
    assert steps.observations("b") == (
        Observation("b", 0, 7, {"rows": 0}, 201),
        Observation("b", 1, 8, {"rows": 1}, 202),
    )


def test_a_fork_and_its_parent_do_not_see_each_other(steps: WatermarkSteps) -> None:
    steps.fork("a", 1, "b", now=300)
    steps.add("b", 2, 15, {"of": "b"}, now=301)
    steps.observe("b", 1, 8, {"rows": 99}, now=302)
    steps.prune("b", 2)
    assert steps.get("a", 2) == WatermarkStep("a", 2, 20, {"at step": 2}, 103)
    assert [one.statistics for one in steps.observations("a")] == [{"rows": 0}, {"rows": 1}, {"rows": 2}]
    steps.add("a", 3, 30, {"of": "a"}, now=303)
    newest = steps.newest("b")
    assert newest is not None
    assert newest.seq == 2


def test_a_fork_before_the_first_step_has_only_the_settings(steps: WatermarkSteps) -> None:
    steps.fork("a", -1, "b", now=300)
    assert (steps.incarnation("b").settings, steps.newest("b"), steps.observations("b")) == ({"delay": 5}, None, ())


def test_a_fork_at_a_step_that_is_not_kept_is_refused(steps: WatermarkSteps) -> None:
    steps.prune("a", 1)
    for seq in (0, 3):
        with pytest.raises(FloodmarkError) as refusal:
            steps.fork("a", seq, "b", now=300)
        assert refusal.value.code == "unknown-step"
    assert code_of(lambda: steps.incarnation("b")) == "unknown-incarnation"


def test_a_fork_onto_a_known_id_changes_nothing(steps: WatermarkSteps) -> None:
    steps.create("b", {"delay": 1}, now=300)
    with pytest.raises(FloodmarkError) as refusal:
        steps.fork("a", 1, "b", now=301)
    assert refusal.value.code == "conflict"
    assert steps.newest("b") is None


def test_what_is_pruned_is_gone_and_the_rest_stays(steps: WatermarkSteps) -> None:
    steps.fork("a", 2, "b", now=300)
    assert steps.prune("a", 2) == 2
    assert steps.prune("a", 2) == 0
    assert (steps.get("a", 1), steps.observations("a", 1)) == (None, ())
    assert [one.seq for one in steps.observations("a")] == [2]
    assert steps.get("b", 0) is not None


def test_the_newest_step_is_never_pruned(steps: WatermarkSteps) -> None:
    assert steps.prune("a", 1000) == 2
    steps.add("a", 3, 30, {}, now=300)
    assert steps.observations("a", 2) != ()


def code_of(action: Any) -> str:
    with pytest.raises(FloodmarkError) as refusal:
        action()
    return refusal.value.code


def test_every_way_in_refuses_an_incarnation_that_is_not_known(home: Home) -> None:
    steps = WatermarkSteps(home)
    for action in (
        lambda: steps.incarnation("x"),
        lambda: steps.add("x", 0, None, {}, now=0),
        lambda: steps.get("x", 0),
        lambda: steps.newest("x"),
        lambda: steps.observe("x", 0, 0, {}, now=0),
        lambda: steps.observations("x", 0),
        lambda: steps.fork("x", 0, "y", now=0),
        lambda: steps.prune("x", 0),
    ):
        assert code_of(action) == "unknown-incarnation"


REFUSED = {
    "empty id": (lambda steps: steps.create("", {}, now=0), "invalid-value"),
    "number as id": (lambda steps: steps.create(5, {}, now=0), "invalid-value"),
    "empty id of a fork": (lambda steps: steps.fork("a", 1, "", now=0), "invalid-value"),
    "set as settings": (lambda steps: steps.create("b", {"per": {1}}, now=0), "not-json"),
    "NaN in a snapshot": (lambda steps: steps.add("a", 3, 1, {"x": float("nan")}, now=0), "not-json"),
    "half a character": (lambda steps: steps.observe("a", 2, 1, {"x": "\ud800"}, now=0), "not-json"),
    "negative seq": (lambda steps: steps.add("a", -1, 1, {}, now=0), "number-out-of-range"),
    "negative batch": (lambda steps: steps.observe("a", 0, -1, {}, now=0), "number-out-of-range"),
    "fork before -1": (lambda steps: steps.fork("a", -2, "b", now=0), "number-out-of-range"),
    "time as float": (lambda steps: steps.create("b", {}, now=1.5), "not-int64"),
    "watermark as text": (lambda steps: steps.add("a", 3, "10", {}, now=0), "not-int64"),
    "watermark of MAX": (lambda steps: steps.add("a", 3, 2**63 - 1, {}, now=0), "reserved-time"),
}


@pytest.mark.parametrize(("action", "code"), REFUSED.values(), ids=REFUSED)
def test_bad_input_is_refused_and_changes_nothing(steps: WatermarkSteps, action: Any, code: str) -> None:
    before = (steps.newest("a"), steps.observations("a"))
    assert code_of(lambda: action(steps)) == code
    assert (steps.newest("a"), steps.observations("a")) == before
    assert code_of(lambda: steps.incarnation("b")) == "unknown-incarnation"


def test_numbers_of_numpy_are_kept_as_numbers(steps: WatermarkSteps) -> None:
    steps.add("a", np.int64(3), np.int64(-(2**63)), {}, now=np.int64(300))  # type: ignore[arg-type]
    assert steps.newest("a") == WatermarkStep("a", 3, -(2**63), {}, 300)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda values: st.lists(values) | st.dictionaries(st.text(), values),
    max_leaves=10,
)


@pytest.fixture(scope="module")
def shared_steps(new_place: Callable[[], str]) -> Iterator[WatermarkSteps]:
    with Home.open(new_place()) as home:
        steps = WatermarkSteps(home)
        steps.create("a", {}, now=0)
        yield steps


@settings(max_examples=examples(50))
@given(json_values)
def test_what_is_kept_comes_back_equal(shared_steps: WatermarkSteps, value: Any) -> None:
    shared_steps.observe("a", 0, 0, value, now=0)
    assert shared_steps.observations("a")[0].statistics == value
