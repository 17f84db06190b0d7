"""Layouts that were scaled at random, on a coarse grid so that ranges meet."""

from itertools import pairwise

from hypothesis import strategies as st

from floodmark.streams import Layout

Scales = list[tuple[int, int, list[int]]]
SCALES = st.lists(
    st.tuples(st.integers(0, 3), st.integers(1, 3), st.lists(st.integers(1, 15), max_size=3, unique=True)), max_size=6
)


def scaled(layout: Layout, start: int, width: int, points: list[int]) -> Layout:
    """Replace some segments that lie side by side by the ranges between the points that fall into them."""
    going = layout.current[start % len(layout.current) :][:width]
    low, high = going[0].low, going[-1].high
    ends = [low, *sorted(point / 16 for point in points if low < point / 16 < high), high]
    return layout.replace([segment.id for segment in going], list(pairwise(ends)))


def after(scales: Scales, segments: int = 2) -> Layout:
    layout = Layout.create(segments)
    for scale in scales:
        layout = scaled(layout, *scale)
    return layout
