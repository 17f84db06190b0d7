"""Which partition and group a row goes to, and when that may change."""

from dataclasses import replace

import pytest

from floodmark.errors import InvalidOption, SinkGroupsUnequal, SinkLayoutChanged
from floodmark.sinks import GroupLayout, Progress, group_of, partition_of
from floodmark.sinks.kafka.rows import _murmur2
from floodmark.sinks.progress import check_layout, group_name
from floodmark.sinks.startup import GroupStart, decide_group_start
from support.sinks.sink_places import Spot, place, progress

# As Kafka's own tests have it, signed there.
HASHES = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.parametrize(("key", "expected"), HASHES.items())
def test_keys_are_hashed_as_kafka_does(key: bytes, expected: int) -> None:
    assert _murmur2(key) == expected % 2**32


def test_rows_without_a_key_go_to_one_partition() -> None:
    assert {partition_of(None, 7), partition_of(b"", 7)} == {partition_of(None, 7)}


def test_every_partition_has_one_group_and_every_group_a_partition() -> None:
    layout = GroupLayout(partitions=7, groups=3)
    assert {group_of(partition, layout) for partition in range(7)} == {0, 1, 2}
    for bad in (GroupLayout(2, 3), GroupLayout(2, 0)):
        with pytest.raises(InvalidOption):
            check_layout(bad)


TWO = GroupLayout(4, 2)
FOUR = GroupLayout(4, 4)


def closed(*, stateful: bool = False, ends: Spot = (2, 20), total: int = 20) -> Progress:
    return replace(progress(place(s=(1, 10)), place(s=ends), stateful=stateful, total=total), layout=TWO)


def group(ends: Spot, *, stateful: bool = False, query_id: str = "q1") -> Progress:
    made = progress(place(s=(2, 20)), place(s=ends), stateful=stateful, query_id=query_id)
    return replace(made, sink="K/1.0", layout=TWO)


def test_groups_that_all_equal_what_is_closed_may_get_another_layout() -> None:
    for groups in ({}, {0: group((2, 20)), 1: group((2, 20))}):
        assert decide_group_start(closed(), groups, requested=TWO) == GroupStart(TWO, None, ())
        start = decide_group_start(closed(), groups, requested=FOUR)
        assert start == GroupStart(FOUR._replace(version=2), None, ())
        assert start.is_change(closed())
    assert group_name("K", FOUR._replace(version=2), 0) != group_name("K", TWO, 0)


def test_what_all_groups_have_written_is_closed_first() -> None:
    ahead = group((3, 30))
    start = decide_group_start(closed(), {0: ahead, 1: replace(ahead, sink="K/1.1")}, requested=FOUR)
    assert (start.close_first, start.layout) == (ahead, FOUR._replace(version=2))


def test_unequal_groups_keep_their_layout() -> None:
    groups = {0: group((3, 30)), 1: group((2, 20))}
    assert decide_group_start(closed(), groups, requested=TWO).layout == TWO
    with pytest.raises(SinkLayoutChanged, match=r"Groups \[0\]"):
        decide_group_start(closed(), groups, requested=FOUR)


def test_unequal_groups_of_a_query_with_state_are_gone_on_with_by_the_same_query_and_in_the_same_batch() -> None:
    known, groups = closed(stateful=True), {0: group((3, 30), stateful=True)}
    start = decide_group_start(known, groups, requested=TWO, query_id="q1")
    assert [(stop.position["s"].ts, stop.in_one) for stop in start.stops] == [(2, False), (3, True)]
    with pytest.raises(SinkGroupsUnequal, match="'q2' is not the one"):
        decide_group_start(known, groups, requested=TWO, query_id="q2")
    stateless = decide_group_start(closed(), {0: group((3, 30))}, requested=TWO, query_id="q2")
    assert [(stop.position["s"].ts, stop.in_one) for stop in stateless.stops] == [(2, False), (3, False)]


@pytest.mark.parametrize(
    "groups",
    [{0: group((1, 10), stateful=True)}, {0: group((3, 30), stateful=True), 1: group((4, 40), stateful=True)}],
    ids=["a group behind what is closed", "groups in two batches"],
)
def test_groups_that_contradict_what_is_closed_are_refused(groups: dict[int, Progress]) -> None:
    with pytest.raises(SinkGroupsUnequal):
        decide_group_start(closed(stateful=True), groups, requested=TWO)


def test_groups_of_rows_without_state_may_be_anywhere_beyond_what_is_closed() -> None:
    assert decide_group_start(closed(), {0: group((3, 30)), 1: group((4, 40))}, requested=TWO).close_first is None
    with pytest.raises(SinkGroupsUnequal):
        decide_group_start(closed(), {0: group((1, 10))}, requested=TWO)


def test_a_sink_that_was_written_as_one_is_not_written_in_groups() -> None:
    with pytest.raises(SinkLayoutChanged):
        decide_group_start(replace(closed(), layout=None), {}, requested=TWO)
