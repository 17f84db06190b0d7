"""Claims about what is known of streaming queries, one a test."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from floodmark.control import Home, Queries, QueryRecord, QueryState
from floodmark.control.queries import merge_records
from floodmark.errors import FloodmarkError

FIRST = QueryRecord(
    query_id="6f1c0a",
    run_id="r1",
    name="orders",
    batch_id=5,
    incarnations=(("a", 4, "order_time"), ("b", 2, "ship_time")),
    spark_watermark=None,
    state="running",
    error=None,
    warnings=("statistics of batch 3 were lost",),
    started_at=100,
    updated_at=200,
)


@pytest.fixture
def queries(home: Home) -> Queries:
    return Queries(home)


def test_a_record_comes_back_as_it_was_told(queries: Queries) -> None:
    assert queries.record(FIRST) == FIRST
    assert queries.all() == (FIRST,)


def test_an_error_with_characters_that_no_database_keeps_is_recorded_without_them(queries: Queries) -> None:
    queries.record(replace(FIRST, state="failed", error="bad \0 byte, half \ud800 character"))
    assert queries.find("orders").error == "bad \ufffd byte, half \ufffd character"


def test_a_newer_batch_replaces_an_older_one(queries: Queries) -> None:
    newer = replace(FIRST, batch_id=6, spark_watermark=77, warnings=(), updated_at=210)
    queries.record(FIRST)
    assert queries.record(newer) == newer
    assert queries.all() == (newer,)


def test_an_older_batch_that_comes_late_changes_nothing_but_when_it_was_heard(queries: Queries) -> None:
    queries.record(FIRST)
    queries.record(replace(FIRST, batch_id=4, spark_watermark=77, incarnations=(), updated_at=190))
    assert queries.all() == (FIRST,)


def test_a_later_run_replaces_an_earlier_one_also_with_a_lower_batch(queries: Queries) -> None:
    rerun = replace(FIRST, run_id="r2", batch_id=0, started_at=300, updated_at=310)
    queries.record(replace(FIRST, state="failed", error="boom"))
    assert queries.record(rerun) == rerun


def test_an_event_of_an_earlier_run_changes_nothing(queries: Queries) -> None:
    rerun = replace(FIRST, run_id="r2", batch_id=0, started_at=300, updated_at=310)
    queries.record(rerun)
    queries.record(replace(FIRST, batch_id=9, state="stopped", updated_at=320))
    assert queries.all() == (rerun,)


def test_the_last_batch_told_after_the_end_does_not_bring_a_query_back(queries: Queries) -> None:
    queries.record(replace(FIRST, state="failed", error="boom", updated_at=220))
    kept = queries.record(replace(FIRST, batch_id=6, updated_at=210))
    assert (kept.batch_id, kept.state, kept.error, kept.updated_at) == (6, "failed", "boom", 220)


def test_an_end_that_does_not_know_the_last_batch_ends_the_query_all_the_same(queries: Queries) -> None:
    queries.record(FIRST)
    kept = queries.record(replace(FIRST, batch_id=-1, incarnations=(), state="stopped", updated_at=220))
    assert kept == replace(FIRST, state="stopped", updated_at=220)


@st.composite
def histories(draw: st.DrawFn) -> list[QueryRecord]:
    """Events of up to three runs, each with one end or none; a batch is the same however often it is told."""
    endings: list[QueryState] = [draw(st.sampled_from(["running", "stopped", "failed"])) for _ in range(3)]
    told = []
    for run, batch_id, at, is_end in draw(
        st.lists(st.tuples(st.integers(0, 2), st.integers(-1, 3), st.integers(0, 9), st.booleans()), min_size=1)
    ):
        state = endings[run] if is_end else "running"
        error = "boom" if state == "failed" else None
        told.append(
            QueryRecord("q", f"r{run}", None, batch_id, (), 10 * run + batch_id, state, error, (), run, 10 * run + at)
        )
    return told


@given(histories(), st.randoms(use_true_random=False))
def test_what_holds_does_not_depend_on_the_order_of_arrival(told: list[QueryRecord], random: Any) -> None:
    def all_merged(records: list[QueryRecord]) -> QueryRecord:
        known = records[0]
        for record in records[1:]:
            known = merge_records(known, record)
        return known

    shuffled = list(told)
    random.shuffle(shuffled)
    assert all_merged(told) == all_merged(shuffled)


def test_a_query_is_found_by_id_by_name_and_by_the_beginning_of_its_id(queries: Queries) -> None:
    nameless = replace(FIRST, query_id="6f77", name=None)
    queries.record(FIRST)
    queries.record(nameless)
    assert [queries.find(text) for text in ("6f1c0a", "orders", "6f1")] == [FIRST] * 3
    assert queries.find("6f77") == nameless


def test_an_id_goes_before_a_name_and_a_name_before_a_beginning(queries: Queries) -> None:
    called_so, begins_so = replace(FIRST, query_id="x", name="6f1c0a"), replace(FIRST, query_id="y", name="6f1")
    for record in (FIRST, called_so, begins_so):
        queries.record(record)
    assert queries.find("6f1c0a") == FIRST
    assert queries.find("6f1") == begins_so


def test_of_several_queries_of_one_name_the_newest_is_found_and_the_others_by_id(queries: Queries) -> None:
    newest = replace(FIRST, query_id="77", started_at=150, updated_at=160)
    for record in (newest, FIRST, replace(FIRST, query_id="6f00", started_at=50)):
        queries.record(record)
    assert queries.find("orders") == newest, "not the one that was heard last"
    assert [queries.find(text).query_id for text in ("6f1", "6f00")] == ["6f1c0a", "6f00"]


def test_a_beginning_that_several_ids_have_is_refused_with_all_of_them_newest_first(queries: Queries) -> None:
    queries.record(FIRST)
    queries.record(replace(FIRST, query_id="6f77", updated_at=300))
    with pytest.raises(FloodmarkError, match="2 queries match '6f': 6f77") as refusal:
        queries.find("6f")
    assert refusal.value.code == "ambiguous-query"
    assert refusal.value.fields["candidates"] == ["6f77", "6f1c0a"]


@pytest.mark.parametrize(
    ("asked", "said"), [("ordrs", "Did you mean 'orders'"), ("6f1c0b", "'6f1c0a'"), ("", "orders"), ("%", "orders")]
)
def test_what_is_not_known_is_refused_with_what_is(queries: Queries, asked: str, said: str) -> None:
    queries.record(FIRST)
    with pytest.raises(FloodmarkError, match=said) as refusal:
        queries.find(asked)
    assert refusal.value.code == "unknown-query"


REFUSED = {
    "unknown state": ({"state": "asleep"}, "invalid-option"),
    "empty id": ({"query_id": ""}, "invalid-value"),
    "no run": ({"run_id": None}, "invalid-value"),
    "batch below -1": ({"batch_id": -2}, "number-out-of-range"),
    "time as float": ({"updated_at": 1.5}, "not-int64"),
    "watermark as text": ({"spark_watermark": "10"}, "not-int64"),
}


@pytest.mark.parametrize(("change", "code"), REFUSED.values(), ids=REFUSED)
def test_a_record_that_cannot_be_right_is_refused(change: dict[str, Any], code: str) -> None:
    with pytest.raises(FloodmarkError) as refusal:
        replace(FIRST, **change)
    assert refusal.value.code == code
