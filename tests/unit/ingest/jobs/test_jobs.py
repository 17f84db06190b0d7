"""Claims about jobs: what is refused as soon as it is said, and what a job can be compared and kept by."""

import pickle
from dataclasses import FrozenInstanceError, replace
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from floodmark.errors import DuplicateUnit, InvalidValue, JobInvalid, ZoneUnknown
from floodmark.ingest import Job, Limits, Range, Unit, UnitCoverage, UnitWatermark
from floodmark.ingest.job.options import Frozen
from floodmark.ingest.planning.coverage import coverage_before_edit, undo_edit
from support.ingest.ingest_jobs import LA, job_of


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"mode": "append", "grace_days": 1}, "reads 1 days again in each run, in the mode append"),
        ({"mode": "overwrite"}, "The mode of the target is 'overwrite'"),
        ({"grace_days": -1}, "The grace is -1 days"),
        ({"grace_days": 1.5}, "The grace is 1.5 days"),
        ({"grace_days": True}, "The grace is True days"),
        ({"abstinence_days": -1}, "The abstinence is -1 days"),
        ({"abstinence_days": 10**6}, "The abstinence is 1000000 days"),
        ({"settle": -1}, "The settle delay is -1"),
        ({"settle": 0.5}, "The settle delay is 0.5"),
        ({"cells": 0}, "The limit of cells is 0"),
        ({"attempts": 0}, "The limit of attempts is 0"),
        ({"cells": True}, "The limit of cells is True"),
    ],
)
def test_parts_that_do_not_fit_are_refused(changes: dict[str, Any], match: str) -> None:
    with pytest.raises(JobInvalid, match=match) as refused:
        job_of(**changes)
    assert refused.value.remedy


def test_a_job_needs_a_name_a_zone_and_a_target() -> None:
    job = job_of()
    with pytest.raises(InvalidValue):
        replace(job, name="")
    with pytest.raises(ZoneUnknown):
        replace(job, zone="Mars")
    with pytest.raises(JobInvalid, match="The mode of the target is None"):
        replace(job, target={})
    assert job_of(mode="append").target == {"mode": "append"}, "without a grace it may append"


def test_units_are_listed_once() -> None:
    with pytest.raises(DuplicateUnit, match=r'The unit \{"id":"a"\} is listed twice'):
        UnitWatermark.listed("id", ["a", "b", "a"])
    with pytest.raises(DuplicateUnit):
        UnitWatermark("pair", (Unit.of({"a": 1, "b": 2}), Unit.of({"b": 2, "a": 1})))
    with pytest.raises(JobInvalid, match="neither a list nor a secondary input"):
        UnitWatermark("id")
    assert UnitWatermark.listed("id", [1, "1", None, True]).units is not None, "these are four"


@pytest.mark.parametrize("value", [[1], {"a": 1}, float("nan"), float("inf"), b"a", object()])
def test_a_field_of_a_unit_is_a_plain_value(value: object) -> None:
    with pytest.raises(JobInvalid, match="A unit has 'id' ="):
        Unit.of({"id": value})


def test_units_to_be_read_make_no_plan_before_they_are() -> None:
    job = replace(job_of(), units=UnitWatermark("id", secondary={"path": "ids.csv"}))
    with pytest.raises(JobInvalid, match="are not read yet"):
        _ = job.listed_units
    assert job.with_units((Unit.of({"id": 7}),)).listed_units == (Unit.of({"id": 7}),)


def test_a_job_is_frozen_compared_by_what_it_says_and_can_be_pickled() -> None:
    target = {"mode": "merge", "keys": ["id"]}
    job = replace(job_of(units=["a"]), target=target)
    target["keys"].append("other")  # type: ignore[attr-defined]
    assert job.target["keys"] == ("id",)
    with pytest.raises(FrozenInstanceError):
        job.zone = "UTC"  # type: ignore[misc]
    again = pickle.loads(pickle.dumps(job))
    assert again == job
    assert hash(again) == hash(job)
    assert job != job_of(units=["b"])


def test_a_target_may_say_its_mode_in_its_own_way() -> None:
    class Table:
        mode = "append"

    with pytest.raises(JobInvalid, match="mode append"):
        Job("orders", LA, job_of(grace_days=2).time, target=Table())


def test_what_is_kept_of_a_job_says_all_that_decides_about_its_plans() -> None:
    assert job_of(grid="daily", grace_days=2).described() == {
        "zone": LA, "from": "2020-01-01", "to": "P0D", "grid": "daily", "partial": True, "grace_days": 2,
        "abstinence_days": 0, "settle": 0, "mode": "replace", "cells": 10_000, "attempts": 5, "compat": False,
    }  # fmt: skip
    assert Limits(cells=None, attempts=None).cells is None


def test_a_mapping_that_is_frozen_is_equal_to_what_it_was_made_of() -> None:
    assert Frozen({"a": {"b": [1, 2]}}) == {"a": {"b": (1, 2)}}
    assert hash(Frozen({"a": 1, "b": 2})) == hash(Frozen({"b": 2, "a": 1}))


def test_what_succeeds_ends_its_failure_and_only_its_own() -> None:
    known = UnitCoverage().failed(Range(0, 30), at=1, error="no").succeeded(Range(10, 20), at=2)
    assert [(one.range, one.attempts) for one in known.failures] == [(Range(0, 10), 1), (Range(20, 30), 1)]
    known = known.failed(Range(5, 25), at=3)
    assert [(one.range, one.attempts) for one in known.failures] == [
        (Range(0, 5), 1), (Range(5, 25), 2), (Range(25, 30), 1)
    ]  # fmt: skip
    assert known.with_attempts_reset(Range(0, 6)).failures[0].attempts == 0
    assert known.with_attempts_reset(Range(0, 6)).failures[2].attempts == 1


def test_what_a_person_says_was_read_leaves_the_frontier_of_backfills_alone() -> None:
    known = UnitCoverage(covered=[Range(0, 5)], backfilled=[Range(8, 9)], wanted=[Range(6, 7)])
    edited = known.edited(Range(5, 10), is_covered=True)
    assert (edited.covered, edited.backfilled, list(edited.wanted)) == (
        [Range(0, 8), Range(9, 10)], [Range(8, 9)], []
    )  # fmt: skip
    before = coverage_before_edit(known, Range(5, 10))
    assert undo_edit(edited, Range(5, 10), before, is_covered=True) == replace(known, failures=())


def test_neighbours_that_fail_alike_stay_apart() -> None:
    known = UnitCoverage()
    for hour in (3, 1, 2, 0):
        known = known.failed(Range(hour, hour + 1), at=5, error="no")
    assert [one.range for one in known.failures] == [Range(hour, hour + 1) for hour in range(4)]
    retried = known.with_attempts_reset(Range(1, 2))
    assert [one.attempts for one in retried.failures] == [1, 0, 1, 1]


def test_the_undo_of_an_edit_keeps_failures_outside_its_range() -> None:
    """A run tried the edited hour and a failed one beside it as one range, and failed."""
    known = UnitCoverage(covered=[Range(0, 5)]).failed(Range(5, 10), at=1, error="no")
    edited = known.edited(Range(0, 5), is_covered=False)
    tried = edited.failed(Range(0, 10), at=2, error="no")
    before = coverage_before_edit(known, Range(0, 5))
    undone = undo_edit(tried, Range(0, 5), before, is_covered=False)
    assert [(one.range, one.attempts) for one in undone.failures] == [(Range(5, 10), 2)]


ranges = st.tuples(st.integers(0, 20), st.integers(1, 8)).map(lambda pair: Range(pair[0], sum(pair)))


@given(
    done=st.lists(st.tuples(ranges, st.sampled_from(["done", "failed", "wanted"]), st.integers(0, 3)), max_size=8),
    edit=ranges,
    is_covered=st.booleans(),
)
def test_an_undo_restores_everything(done: list[tuple[Range, str, int]], edit: Range, is_covered: bool) -> None:
    known = UnitCoverage()
    for range_, kind, moment in done:
        if kind == "done":
            known = known.succeeded(range_, moment, zone=ZoneInfo("UTC"), abstinence_days=1, grace_days=1)
        else:
            known = known.failed(range_, moment, "no") if kind == "failed" else known.with_backfill(range_)
    edited = known.edited(edit, is_covered=is_covered)
    undone = undo_edit(edited, edit, coverage_before_edit(known, edit), is_covered=is_covered)
    for name in ("covered", "backfilled", "wanted", "failures", "fresh"):
        assert list(getattr(undone, name)) == list(getattr(known, name)), name
