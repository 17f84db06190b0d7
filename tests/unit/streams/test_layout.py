"""The key space: routing, scaling, and which segment came out of which."""

import json
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from floodmark.errors import FloodmarkError, SnapshotInvalid
from floodmark.streams import Layout, Segment
from floodmark.streams.events import Events, Points, payload_batch
from floodmark.streams.layout.layout import key_point, key_points
from support.streams.played_stream import layout_of
from support.streams.scaled_layouts import SCALES, Scales, after


def route_points(layout: Layout, points: Points) -> list[int]:
    """Return the segments of a batch of events whose keys have these points."""
    batch = payload_batch([b""] * len(points), [None] * len(points))
    return [int(segment) for segment in Events(batch, points).segments(layout)]


@pytest.mark.parametrize(
    "bad", [(-1, 0, 0, 1), (0, 0, -0.1, 1), (0, 0, 0, 1.1), (0, 0, 2, 1), (0, 0, 1, 1), (0, -1, 0, 1)]
)
def test_a_segment_lies_in_the_key_space(bad: tuple[int, int, float, float]) -> None:
    with pytest.raises(FloodmarkError):
        Segment(*bad)


BAD_SCALES = {
    "overlap": ([0], [(0, 0.3), (0.2, 0.5)], "ranges-overlap"),
    "overlap with one that stays": ([0], [(0, 0.6)], "ranges-overlap"),
    "hole": ([0], [(0, 0.2), (0.3, 0.5)], "ranges-missing"),
    "short": ([0], [(0, 0.4)], "ranges-missing"),
    "nothing": ([0], [], "ranges-missing"),
    "elsewhere": ([0], [(0, 0.5), (0.5, 1)], "ranges-overlap"),
    "below": ([0], [(-0.1, 0.5)], "range-out-of-space"),
    "above": ([1], [(0.5, 1.1)], "range-out-of-space"),
    "empty": ([0], [(0, 0), (0, 0.5)], "range-out-of-space"),
    "not a number": ([0], [(0, float("nan"))], "range-out-of-space"),
    "unknown": ([7], [(0, 0.5)], "unknown-segment"),
    "negative": ([-1], [(0.5, 1)], "unknown-segment"),
    "twice": ([0, 0], [(0, 0.5)], "duplicate-name"),
    "none": ([], [(0, 0.5)], "invalid-value"),
}


@pytest.mark.parametrize(("sealed", "ranges", "code"), BAD_SCALES.values(), ids=BAD_SCALES)
def test_a_scale_must_keep_the_keys(sealed: list[int], ranges: list[tuple[float, float]], code: str) -> None:
    layout = Layout.create(2)
    with pytest.raises(FloodmarkError) as failure:
        layout.replace(sealed, ranges)
    assert failure.value.code == code


def test_a_sealed_segment_cannot_be_sealed_again() -> None:
    with pytest.raises(FloodmarkError) as failure:
        Layout.create(2).split(1).replace([1], [(0.5, 1)])
    assert failure.value.code == "segment-sealed"
    assert "0, 2, 3" in str(failure.value)


@pytest.mark.parametrize(
    ("numbers", "code"), [([0, 2], "ranges-missing"), ([0], "invalid-value"), ([0, 9], "unknown-segment")]
)
def test_a_merge_takes_neighbours(numbers: list[int], code: str) -> None:
    with pytest.raises(FloodmarkError) as failure:
        Layout.create(4).merge(numbers)
    assert failure.value.code == code


@pytest.mark.parametrize("count", [0, -1, 1.5, True, "2"])
def test_a_stream_has_segments(count: object) -> None:
    with pytest.raises(FloodmarkError):
        Layout.create(count)  # type: ignore[arg-type]
    with pytest.raises(FloodmarkError):
        Layout.create(2).split(0, 1)


def test_split_in_three_and_uneven_merge() -> None:
    layout = Layout.create(2).split(0, 3).merge([4, 1])
    assert str(layout) == "epoch 2: 2 [0, 0.166667), 3 [0.166667, 0.333333), 5 [0.333333, 1)"
    assert [segment.id for segment in layout.predecessors(5)] == [1, 4]
    assert [segment.id for segment in layout.successors(0)] == [2, 3, 4]
    assert [segment.id for segment in layout.segments_of(0)] == [0, 1]
    assert [segment.id for segment in layout.segments_of(1)] == [2, 3, 4, 1]
    assert (layout.is_sealed(0), layout.is_sealed(2), layout.successors(2)) == (True, False, ())


@pytest.mark.parametrize("key", [7, None, 1.5, "\ud800"])
def test_a_key_is_text_or_bytes(key: object) -> None:
    for call in (Layout.create(2).route, lambda bad: key_points(["a", bad])):
        with pytest.raises(FloodmarkError) as failure:
            call(key)  # type: ignore[arg-type]
        assert failure.value.code == "key-out-of-space"


@given(SCALES, st.lists(st.text(st.characters(codec="utf-8")), max_size=20))
def test_a_batch_is_routed_like_its_single_keys(scales: Scales, keys: list[str]) -> None:
    layout = after(scales)
    assert route_points(layout, key_points(keys)) == [layout.route(key).id for key in keys]
    for key, point in zip(keys, key_points(keys).tolist(), strict=True):
        assert point == key_point(key)
        assert layout.route(key).low <= point < layout.route(key).high


def test_a_point_between_two_segments_belongs_to_the_upper_one() -> None:
    assert route_points(Layout.create(4), np.array([0.0, 0.25, 0.5, 0.75])) == [0, 1, 2, 3]


def test_keys_spread_evenly() -> None:
    routed = route_points(Layout.create(16), key_points([f"customer-{number}" for number in range(16_000)]))
    assert np.bincount(routed, minlength=16).min() > 900


@given(SCALES)
def test_in_every_epoch_each_point_has_one_segment_and_a_later_one_a_greater_id(
    scales: Scales,
) -> None:
    layout = after(scales)
    for epoch in range(layout.epoch + 1):
        segments = layout.segments_of(epoch)
        assert segments[0].low == 0
        assert segments[-1].high == 1
        assert all(one.high == other.low for one, other in pairwise(segments))
    assert [segment.epoch for segment in layout.segments] == sorted(segment.epoch for segment in layout.segments)
    assert [segment.id for segment in layout.segments] == list(range(len(layout.segments)))
    assert Layout.load(json.loads(json.dumps(layout.save()))) == layout


@given(SCALES)
def test_descent_follows_the_direct_steps_and_nothing_else(scales: Scales) -> None:
    layout = after(scales)
    reached: dict[int, set[int]] = {}
    for segment in reversed(layout.segments):
        direct = {other.id for other in layout.successors(segment.id)}
        assert direct == {other.id for other in layout.segments if segment in layout.predecessors(other.id)}
        reached[segment.id] = direct.union(*(reached[number] for number in direct))
    for segment in layout.segments:
        for other in layout.segments:
            assert layout.has_descendant(segment.id, [other.id]) == (other.id in reached[segment.id])
    for number in reached:
        assert layout.has_descendant(number, []) is False


def test_a_key_need_not_be_common_to_descend() -> None:
    layout = layout_of([{0: (0, 0.5), 1: (0.5, 1)}, {2: (0, 1)}, {3: (0, 0.5), 4: (0.5, 1)}])
    assert layout.has_descendant(0, [4])
    assert not layout.has_descendant(3, [4])


def test_to_be_merged_later_with_what_came_out_of_a_segment_is_not_to_come_out_of_it() -> None:
    quarters = {0: (0, 0.25), 1: (0.25, 0.5), 2: (0.5, 1)}
    once = {3: (0, 0.25), 4: (0.25, 0.5), 2: (0.5, 1)}
    layout = layout_of([quarters, once, {5: (0, 0.5), 2: (0.5, 1)}, {5: (0, 0.5), 6: (0.5, 1)}])
    assert not layout.has_descendant(0, [4, 6])
    assert layout.has_descendant(0, [4, 5, 6])


BROKEN = {
    "open ones overlap": [[0, 0, 1, None], [0, 0, 0.5, None]],
    "open ones leave a hole": [[0, 0, 0.5, None]],
    "sealed before its birth": [[0, 0, 1, 0], [1, 0, 1, None]],
    "sealed in an epoch to come": [[0, 0, 1, 5], [1, 0, 1, None]],
    "epochs out of order": [[1, 0, 1, None], [0, 0, 1, 1]],
    "nothing": [],
    "no row": [[0, 0, 1]],
    "no range": [[0, 0, 2, None]],
}


@pytest.mark.parametrize("rows", BROKEN.values(), ids=BROKEN)
def test_what_is_no_history_is_not_loaded(rows: list[list[float]]) -> None:
    with pytest.raises(SnapshotInvalid):
        Layout.load({"kind": "layout", "version": 1, "segments": rows})
