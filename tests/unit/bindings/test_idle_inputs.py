"""Inputs that are not active: up to which mark they let the others pass, and how a reader learns of the others."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from floodmark.bindings import SourceOffset
from floodmark.bindings.coordination import QueryInputs
from floodmark.bindings.offsets import Mark, QueryInput, change_state, raise_mark, released_mark, repeat_mark
from floodmark.control import Home
from floodmark.errors import SnapshotInvalid

AT = QueryInput
CASES = [
    ("the minimum of the active ones", 5, [AT(100), AT(40)], 40),
    ("an idle one does not hold it", 5, [AT(100), AT(40, is_left_out=True)], 100),
    ("an active one without a mark does", 5, [AT(100), AT(None)], None),
    ("an idle one without a mark does not", 5, [AT(100), AT(None, is_left_out=True)], 100),
    ("it never goes back", 50, [AT(40)], None),
    ("nor is it repeated", 40, [AT(40)], None),
    ("without a mark of its own", None, [AT(40)], 40),
    ("all are idle: the highest of all", 5, [AT(30, is_left_out=True), AT(70, is_left_out=True)], 70),
    ("all are idle, and it is the highest", 90, [AT(30, is_left_out=True)], None),
    ("no other has a mark", None, [AT(None, is_left_out=True)], None),
    ("there is no other", 5, [], None),
]


@pytest.mark.parametrize(("own", "others", "mark"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_up_to_where_an_input_lets_the_others_pass(own: int | None, others: list[QueryInput], mark: int | None) -> None:
    assert released_mark(own, others) == mark


def offset(step: int = 0, **fields: object) -> SourceOffset:
    return SourceOffset("q", 7, {0: 5}, {"t": 50}, step, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("step", range(4))
def test_an_empty_batch_follows_a_new_mark_and_no_other(step: int) -> None:
    assert repeat_mark(offset(step)).needs_empty_batch is offset(step).needs_empty_batch
    assert change_state(offset(step), "idle", None).needs_empty_batch is offset(step).needs_empty_batch
    released = change_state(offset(step), "idle", Mark("t", 70))
    assert released.needs_empty_batch
    assert released.step > step


def test_a_mark_never_goes_back() -> None:
    start = offset(mark=Mark("t", 70), state="idle")
    assert raise_mark(start, offset(), Mark("t", 60)).mark == Mark("t", 70)
    assert raise_mark(start, offset(), None).mark == Mark("t", 70)
    assert raise_mark(start, offset(mark=Mark("t", 90)), Mark("t", 80)).mark == Mark("t", 90), "that of a stop"
    assert raise_mark(offset(), offset(), None).mark is None


def test_offsets_of_earlier_versions_are_read() -> None:
    saved = {"incarnation": "q", "ts": 7, "cut": {"0": 5}, "watermarks": {"t": 50}, "step": 0}
    assert SourceOffset.load(saved) == offset()
    assert offset().save() == saved
    full = offset(mark=Mark("t", 70), state="timed out")
    assert SourceOffset.load(full.save()) == full


@pytest.mark.parametrize("change", [{"mark": ["t"]}, {"mark": 7}, {"state": "asleep"}])
def test_an_offset_that_is_not_one_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(SnapshotInvalid):
        SourceOffset.load(offset().save() | change)


@pytest.fixture
def inputs(tmp_path: Path) -> Iterator[QueryInputs]:
    with Home.open(tmp_path) as home:
        yield QueryInputs(home)


def test_a_reader_finds_the_other_inputs_of_its_query_only(inputs: QueryInputs) -> None:
    own = offset(state="idle")
    other = replace(offset(mark=Mark("u", 90)), incarnation="r")
    computed = {"frame": "f", "incarnation": "c", "seq": 3, "watermark": 80}
    foreign = replace(other, incarnation="x", mark=Mark("u", 10))
    inputs.record("query", [own.save(), other.save(), computed])
    inputs.record("another", [foreign.save()])
    assert inputs.others(own) == [AT(80), AT(90)] or inputs.others(own) == [AT(90), AT(80)]
    assert inputs.others(foreign) == []
    assert inputs.others(replace(own, step=2)) is None, "the batch that ended here is not recorded"
    assert inputs.others(replace(own, incarnation="y")) is None
    inputs.record("query", [replace(own, step=2).save(), replace(other, state="finished").save()])
    assert inputs.others(replace(own, step=2)) == [AT(90, is_left_out=True)]
