"""What a sink reads in its progress topic, and what it makes of that when it starts."""

import json
from dataclasses import replace

import pytest

from floodmark.bindings import SourceOffset
from floodmark.errors import (
    FloodmarkError,
    InvalidValue,
    SinkBindingsMissing,
    SinkProgressInvalid,
    SinkProgressMissing,
    SinkTopicMissing,
    SinkVersionOld,
)
from floodmark.sinks import Begin, BeginElsewhere, GroupLayout, Progress, Resume, SinkMark, Start
from floodmark.sinks.progress import check_sink_name, first_needed_timestamp, newest_progress
from floodmark.sinks.startup import SourceBounds, StartupState, decide_start, topic_in_use
from support.sinks.sink_places import START, Spot, place, progress

KNOWN = progress(place(s=(1, 10)), place(s=(4, 20)), stateful=False)
HELD = SourceBounds(origin=0, since=0, upper=9)


def found(
    *,
    records: bool,
    known: Progress | None,
    bounds: SourceBounds | None = HELD,
    topic_id: str | None = "t1",
    version: int = 1,
) -> StartupState:
    return StartupState("K", version, "out", topic_id, records, known, {} if bounds is None else {"s": bounds})


S15: list[tuple[str, StartupState, Start | type[FloodmarkError]]] = [
    ("no topic, no progress", found(records=False, known=None, bounds=None, topic_id=None), Begin("out")),
    ("an empty topic, no progress", found(records=False, known=None), Begin("out")),
    ("records, progress and bindings", found(records=True, known=KNOWN), Resume(KNOWN)),
    ("30: records and progress, no bindings", found(records=True, known=KNOWN, bounds=None), SinkBindingsMissing),
    (
        "29: since beyond progress",
        found(records=True, known=KNOWN, bounds=SourceBounds(0, 10, 12)),
        SinkBindingsMissing,
    ),
    ("since at progress", found(records=True, known=KNOWN, bounds=SourceBounds(0, 4, 12)), SinkBindingsMissing),
    (
        "since at progress, and held",
        found(records=True, known=KNOWN, bounds=SourceBounds(0, 4, 12, True)),
        Resume(KNOWN),
    ),
    (
        "since beyond progress",
        found(records=True, known=KNOWN, bounds=SourceBounds(0, 5, 12, True)),
        SinkBindingsMissing,
    ),
    ("since where the hold is", found(records=True, known=KNOWN, bounds=SourceBounds(0, 3, 12)), Resume(KNOWN)),
    ("progress at the first timestamp", found(records=True, known=KNOWN, bounds=SourceBounds(4, 4, 12)), Resume(KNOWN)),
    ("bindings end before it", found(records=True, known=KNOWN, bounds=SourceBounds(0, 0, 4)), SinkBindingsMissing),
    ("31: records, no progress", found(records=True, known=None), SinkProgressMissing),
    ("31: progress, no topic", found(records=False, known=KNOWN, topic_id=None), SinkTopicMissing),
    ("progress, and a topic made anew", found(records=False, known=KNOWN, topic_id="t2"), SinkTopicMissing),
    ("progress, and a topic whose records are too old", found(records=False, known=KNOWN), Resume(KNOWN)),
    ("39: an older version", found(records=True, known=replace(KNOWN, version=2)), SinkVersionOld),
    ("a newer version", found(records=True, known=KNOWN, version=2), Resume(KNOWN)),
]


@pytest.mark.parametrize(("given", "expected"), [row[1:] for row in S15], ids=[row[0] for row in S15])
def test_a_sink_starts_by_what_it_finds(given: StartupState, expected: Start | type[FloodmarkError]) -> None:
    if isinstance(expected, type):
        with pytest.raises(expected):
            decide_start(given)
    else:
        assert decide_start(given) == expected


def test_a_refusal_names_both_numbers() -> None:
    with pytest.raises(SinkBindingsMissing, match="since is 10, but the sink needs timestamps from 4 on"):
        decide_start(found(records=True, known=KNOWN, bounds=SourceBounds(0, 10, 12)))
    with pytest.raises(SinkVersionOld, match="ours=1 theirs=2"):
        decide_start(found(records=True, known=replace(KNOWN, version=2)))
    with pytest.raises(SinkBindingsMissing, match=r"No persisted .* bindings for 's', refusing to append to 'out'"):
        decide_start(found(records=True, known=KNOWN, bounds=None))


def test_by_choice_a_sink_appends_to_what_it_does_not_know() -> None:
    assert decide_start(found(records=True, known=None), append=True) == Begin("out")


@pytest.mark.parametrize("bounds", [None, SourceBounds(0, 10, 12), SourceBounds(0, 0, 4)])
def test_by_choice_a_sink_that_cannot_know_what_it_wrote_begins_elsewhere_and_says_why(
    bounds: SourceBounds | None,
) -> None:
    start = decide_start(found(records=True, known=KNOWN, bounds=bounds), on_missing_bindings="nonce", nonce="ab12")
    assert isinstance(start, BeginElsewhere)
    assert (start.topic, start.reason.code) == ("out-K-ab12", "sink-bindings-missing")


def test_no_choice_helps_a_sink_whose_topic_is_gone_or_whose_version_is_old() -> None:
    newer = replace(KNOWN, version=2)
    for given in (found(records=False, known=KNOWN, topic_id=None), found(records=True, known=newer)):
        with pytest.raises((SinkTopicMissing, SinkVersionOld)):
            decide_start(given, append=True, on_missing_bindings="nonce", nonce="ab12")


def test_a_sink_goes_on_in_the_topic_of_its_progress_if_that_is_its_own() -> None:
    assert topic_in_use("out", "K", replace(KNOWN, topic="out-K-ab12")) == "out-K-ab12"
    assert topic_in_use("out", "K", KNOWN) == "out"
    with pytest.raises(SinkTopicMissing, match="'bills'"):
        topic_in_use("bills", "K", KNOWN)


@pytest.mark.parametrize(("stateful", "start", "expected"), [(False, (1, 10), 4), (True, (1, 10), 1), (True, START, 4)])
def test_a_query_with_state_needs_the_timestamps_from_where_its_last_batch_began(
    stateful: bool, start: Spot, expected: int
) -> None:
    assert first_needed_timestamp(progress(place(s=start), place(s=(4, 20)), stateful=stateful), "s") == expected


# The codec.

FULL = replace(
    KNOWN,
    ends={"s": SourceOffset("q", 4, {0: 20, 1: 3}, {"at": 50}, 1), "t": SourceOffset("r", None, {})},
    position={0: 7, 1: 9},
    marks={"at": SinkMark(50, 3)},
    layout=GroupLayout(4, 2),
)


def test_progress_comes_back_as_it_was() -> None:
    assert Progress.load(FULL.save()) == FULL
    assert json.loads(FULL.save())["ends"]["s"]["ts"] == 4


OTHER_FORM = FULL.save().replace(b'"form":1', b'"form":2')


@pytest.mark.parametrize("value", [b"", b"{}", b"[]", b"\xff", OTHER_FORM, FULL.save()[:-9]])
def test_progress_that_cannot_be_read_is_an_error(value: bytes) -> None:
    with pytest.raises(SinkProgressInvalid):
        newest_progress("K", [(b"K", value)])


def test_records_of_others_and_without_a_value_are_passed_over() -> None:
    later = replace(KNOWN, ends=place(s=(5, 30)), total=30)
    own = [(b"K", KNOWN.save()), (b"K", None), (b"K", later.save())]
    assert newest_progress("K", [(b"other", b"?"), (None, b"?"), *own, (b"K/1.0", b"?")]) == later
    assert newest_progress("K", [(b"other", b"?")]) is None


BACK = [
    replace(KNOWN, ends=place(s=(3, 20))),
    replace(KNOWN, ends=place(s=(4, 19))),
    replace(KNOWN, total=19),
    replace(KNOWN, version=0),
]


@pytest.mark.parametrize("found", BACK)
def test_progress_that_goes_back_is_an_error(found: Progress) -> None:
    with pytest.raises(SinkProgressInvalid, match="goes back"):
        newest_progress("K", [(b"K", KNOWN.save()), (b"K", found.save())])


def test_progress_may_stay_and_begin_anew_in_another_topic() -> None:
    adopted = replace(KNOWN, query_id="q2")
    assert newest_progress("K", [(b"K", KNOWN.save()), (b"K", adopted.save())]) == adopted
    anew = replace(KNOWN, topic="out-K-1", topic_id="t2", total=1, ends=place(s=(1, 1)))
    assert newest_progress("K", [(b"K", KNOWN.save()), (b"K", anew.save())]) == anew


@pytest.mark.parametrize("name", ["", "a/b", "a\n", 7, "x" * 201])
def test_a_sink_has_a_name_that_fits(name: object) -> None:
    with pytest.raises(InvalidValue):
        check_sink_name(name)
