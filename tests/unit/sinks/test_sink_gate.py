"""The gate of a sink, row by row. Written before is the batch (Q, R]; timestamps 1, 2, 3 of ten rows each."""

from collections.abc import Mapping

import pytest

from floodmark.bindings import SourceOffset
from floodmark.bindings.offsets import BatchStop, compare_offsets
from floodmark.errors import (
    FloodmarkError,
    SinkBatchInvalid,
    SinkBatchMisaligned,
    SinkGap,
    SinkInputUnbound,
    SinkSourcesChanged,
    SinkStateUnknown,
)
from floodmark.sinks.gate import (
    Batch,
    Decision,
    Drop,
    SplitAt,
    Write,
    WriteFrom,
    advance_sources,
    decide_batch,
    required_stops,
)
from support.sinks.sink_places import START, Spot, at, batch, place, progress

Q: Spot = (1, 10)
R: Spot = (2, 20)
TO_R = BatchStop(place(s=R), in_one=True)
BOTH = SplitAt((BatchStop(place(s=Q), in_one=False), TO_R))

# (what happens, where the batch begins, where it ends, which query it is of, a query without state, one with state)
ROWS = [
    ("15-18: the transaction of 3 was not committed", R, (3, 30), "q1", Write(), Write()),
    ("19, 20: it was, and Spark runs the batch again", Q, R, "q1", Drop(), Drop()),
    ("an older checkpoint, cut at Q", START, Q, "q1", Drop(), Drop()),
    ("an older checkpoint, which ends before Q", START, (1, 5), "q1", Drop(), Drop()),
    ("an older checkpoint, which goes past Q", START, (2, 15), "q1", Drop(), BOTH),
    ("an older checkpoint, which goes to R and not by Q", START, R, "q1", Drop(), BOTH),
    ("an older checkpoint, which goes past R", (1, 5), (3, 30), "q1", WriteFrom(place(s=R)), BOTH),
    ("from Q past R", Q, (3, 30), "q1", WriteFrom(place(s=R)), SplitAt((TO_R,))),
    ("from Q to inside", Q, (2, 15), "q1", Drop(), SplitAt((TO_R,))),
    ("from inside to R", (2, 15), R, "q1", Drop(), SinkBatchMisaligned),
    ("from inside past R", (2, 15), (3, 30), "q1", WriteFrom(place(s=R)), SinkBatchMisaligned),
    ("a new query at the beginning", START, Q, "q2", Drop(), Drop()),
    ("a new query passes the last batch", Q, R, "q2", Drop(), Drop(adopt=True)),
    ("a new query that begins where the old one ended", R, (3, 30), "q2", Write(), SinkStateUnknown),
    ("a gap", (3, 30), (4, 40), "q1", SinkGap, SinkGap),
    ("a gap inside of a timestamp", (2, 21), (3, 30), "q1", SinkGap, SinkGap),
    ("time goes on without rows", R, (3, 20), "q1", Write(), Write()),
    ("nothing in the batch, at R", R, R, "q1", Drop(), SinkBatchInvalid),
    ("nothing in the batch, beyond R", (3, 30), (3, 30), "q1", SinkGap, SinkBatchInvalid),
    ("it goes back", (3, 30), R, "q1", SinkBatchInvalid, SinkBatchInvalid),
    ("later with fewer rows than were written", R, (3, 15), "q1", SinkBatchInvalid, SinkBatchInvalid),
]


@pytest.mark.parametrize("stateful", [False, True], ids=["stateless", "stateful"])
@pytest.mark.parametrize(
    ("starts", "ends", "query", "stateless_does", "stateful_does"),
    [row[1:] for row in ROWS],
    ids=[row[0] for row in ROWS],
)
def test_a_batch_of_one_source_is_judged_by_its_offsets(
    starts: Spot,
    ends: Spot,
    query: str,
    stateless_does: Decision | type[FloodmarkError],
    stateful_does: Decision | type[FloodmarkError],
    stateful: bool,
) -> None:
    expected = stateful_does if stateful else stateless_does
    known = progress(place(s=Q), place(s=R), stateful=stateful)
    given = batch(place(s=starts), place(s=ends), stateful=stateful, query_id=query)
    if isinstance(expected, type):
        with pytest.raises(expected):
            decide_batch(known, given)
    else:
        assert decide_batch(known, given) == expected


A, B = (1, 10), (5, 50)
# (what happens, starts of a and b, ends of a and b, without state, with state); written is ((1, 10), (5, 50)] to these:
A_R, B_R = (2, 20), (6, 60)
AFTER = WriteFrom(place(a=A_R, b=B_R))
TWO = SplitAt((BatchStop(place(a=A, b=B), in_one=False), BatchStop(place(a=A_R, b=B_R), in_one=True)))
SOURCES = [
    ("both at R", A_R, B_R, (3, 30), (7, 70), Write(), Write()),
    ("both at R, one goes on", A_R, B_R, A_R, (7, 70), Write(), Write()),
    ("the last batch again", A, B, A_R, B_R, Drop(), Drop()),
    ("one at R, the other behind it", A_R, B, (3, 30), B_R, AFTER, SinkBatchMisaligned),
    ("one at R, the other stays behind", A_R, B, A_R, B_R, Drop(), SinkBatchMisaligned),
    ("one passes Q before the other is there", START, START, A_R, (5, 45), Drop(), TWO),
    ("both at Q", START, START, A, B, Drop(), Drop()),
    ("one at Q, one before", START, START, A, (4, 40), Drop(), Drop()),
    ("one beyond R", A_R, (7, 70), (3, 30), (8, 80), SinkGap, SinkGap),
    ("one beyond R, the other behind", A, (7, 70), A_R, (8, 80), SinkGap, SinkGap),
]


@pytest.mark.parametrize("stateful", [False, True], ids=["stateless", "stateful"])
@pytest.mark.parametrize("row", SOURCES, ids=[row[0] for row in SOURCES])
def test_a_batch_of_two_sources_is_judged_by_all_of_them(row: tuple[object, ...], stateful: bool) -> None:
    _, a, b, a_end, b_end, *expectations = row
    expected = expectations[stateful]
    known = progress(place(a=A, b=B), place(a=A_R, b=B_R), stateful=stateful)
    given = batch(place(a=a, b=b), place(a=a_end, b=b_end), stateful=stateful)  # type: ignore[arg-type]
    if isinstance(expected, type):
        with pytest.raises(expected):
            decide_batch(known, given)
    else:
        assert decide_batch(known, given) == expected


@pytest.mark.parametrize(
    ("sources", "missing", "unknown"),
    [({"s": R, "new": START}, [], ["new"]), ({"other": START}, ["s"], ["other"])],
)
def test_other_sources_than_those_that_were_written_are_refused(
    sources: Mapping[str, Spot], missing: list[str], unknown: list[str]
) -> None:
    known = progress(place(s=Q), place(s=R), stateful=False)
    given = batch(place(**sources), place(**dict.fromkeys(sources, (9, 90))), stateful=False)
    with pytest.raises(SinkSourcesChanged) as caught:
        decide_batch(known, given)
    assert (caught.value.fields["missing"], caught.value.fields["unknown"]) == (missing, unknown)


def test_the_first_batch_of_a_sink_is_written_wherever_it_begins() -> None:
    for stateful in (False, True):
        assert decide_batch(None, batch(place(s=R), place(s=(3, 30)), stateful=stateful)) == Write()
    assert decide_batch(None, batch(place(s=R), place(s=R), stateful=False)) == Drop()


def test_input_without_bindings_is_refused_by_its_name() -> None:
    given = Batch("q1", place(s=Q), place(s=R), False, unbound=("rate",))
    with pytest.raises(SinkInputUnbound, match="rate"):
        decide_batch(None, given)
    with pytest.raises(SinkInputUnbound):
        decide_batch(None, batch({}, {}, stateful=False))


@pytest.mark.parametrize("stateful", [False, True])
def test_a_sink_written_without_state_is_not_gone_on_with_by_a_query_with_state_nor_the_other_way(
    stateful: bool,
) -> None:
    known = progress(place(s=Q), place(s=R), stateful=not stateful)
    with pytest.raises(SinkStateUnknown):
        decide_batch(known, batch(place(s=Q), place(s=R), stateful=stateful))


def test_offsets_that_no_two_readers_can_both_pass_are_refused() -> None:
    known = progress({"s": SourceOffset("q", 1, {})}, {"s": SourceOffset("q", 2, {0: 5, 1: 3})}, stateful=False)
    astray = Batch("q1", {"s": SourceOffset("q", 2, {0: 7, 1: 1})}, {"s": SourceOffset("q", 3, {0: 9, 1: 9})}, False)
    with pytest.raises(SinkBatchInvalid, match="neither before nor after"):
        decide_batch(known, astray)


@pytest.mark.parametrize("stateful", [False, True], ids=["stateless", "stateful"])
@pytest.mark.parametrize("written", [False, True], ids=["nothing is written", "something is written"])
@pytest.mark.parametrize("begins", [START, R, (3, 30)], ids=["at the beginning", "at R", "behind R"])
def test_the_first_batch_of_a_query_may_be_empty(begins: Spot, written: bool, stateful: bool) -> None:
    known = progress(place(s=Q), place(s=R), stateful=stateful) if written else None
    given = batch(place(s=begins), place(s=begins), stateful=stateful, query_id="q2", is_first=True)
    assert decide_batch(known, given) == Drop()


def test_an_empty_step_lies_behind_the_place_at_which_it_is_taken() -> None:
    assert compare_offsets(at(2, 20), at(2, 20, step=1)) == -1
    known = progress(place(s=Q), place(s=R), stateful=True)
    given = batch(place(s=R), {"s": at(2, 20, step=1)}, stateful=True)
    assert decide_batch(known, given) == Write()
    assert decide_batch(advance_sources(known, given, Write()), given) == Drop()


def test_where_nothing_was_written_any_query_may_begin_and_batches_end_there_once() -> None:
    """A sink of several groups is recorded as begun before its first rows."""
    begun = progress(place(s=Q), place(s=Q), stateful=True)
    assert decide_batch(begun, batch(place(s=Q), place(s=R), stateful=True, query_id="q2")) == Write()
    assert required_stops(begun, None, is_stateful=True) == (BatchStop(place(s=Q), in_one=False),)
    with pytest.raises(SinkGap):
        decide_batch(begun, batch(place(s=R), place(s=(3, 30)), stateful=True))


CUTS = [
    ("from the beginning", None, [1, 2]),
    ("before Q", (1, 5), [1, 2]),
    ("at Q", Q, [2]),
    ("inside", (2, 15), [2]),
    ("at R", R, []),
    ("behind R", (3, 30), []),
]


@pytest.mark.parametrize(("starts", "expected"), [row[1:] for row in CUTS], ids=[row[0] for row in CUTS])
def test_batches_end_at_r_and_those_of_a_query_with_state_at_q_too(starts: Spot | None, expected: list[int]) -> None:
    known = progress(place(s=Q), place(s=R), stateful=True)
    given = None if starts is None else place(s=starts)
    assert [one.position["s"].ts for one in required_stops(known, given, is_stateful=True)] == expected
    stateless = [(one.position["s"].ts, one.in_one) for one in required_stops(known, given, is_stateful=False)]
    assert stateless == ([(2, False)] if expected else [])


def test_a_written_batch_becomes_the_last_and_a_query_that_built_its_state_the_writer() -> None:
    known = progress(place(s=Q), place(s=R), stateful=True)
    adopted = advance_sources(known, batch(place(s=Q), place(s=R), stateful=True, query_id="q2"), Drop(adopt=True))
    assert (adopted.query_id, adopted.starts, adopted.ends) == ("q2", known.starts, known.ends)
    given = batch(place(s=R), place(s=(3, 30)), stateful=True, query_id="q2")
    assert decide_batch(adopted, given) == Write()
    written = advance_sources(adopted, given, Write())
    assert (written.starts, written.ends, written.query_id) == (place(s=R), place(s=(3, 30)), "q2")


def test_what_was_written_of_one_source_stays_written_when_another_goes_on() -> None:
    known = progress(place(a=A, b=B), place(a=A_R, b=B_R), stateful=False)
    given = batch(place(a=A, b=B), place(a=(1, 15), b=(7, 70)), stateful=False)
    decision = decide_batch(known, given)
    assert decision == AFTER
    written = advance_sources(known, given, decision)
    assert (written.starts, written.ends) == (place(a=A_R, b=B_R), place(a=A_R, b=(7, 70)))
