"""The window scenarios of parallel progress on Spark's own windows: they close at W >= end, once."""

from collections.abc import Callable

import pytest
from pyspark.sql import functions as F

from floodmark.spark import follow_marks
from support.spark.spark_feed import Feed, Line, Running, mark, row, seconds

Steps = list[tuple[list[Line], list[tuple[float, int]]]]

# (size, slide), then for each micro-batch its rows and marks, and the windows that are new: (start, count).
SCENARIOS: dict[str, tuple[int, int, Steps]] = {
    "W1": (100, 100, [([row(50)], []), ([mark(99)], []), ([mark(100)], [(0.0, 1)]), ([mark(500)], [])]),
    "W3": (
        10,
        5,
        [
            ([row(1), row(8), row(14), row(9)], []),
            ([mark(10)], [(-5.0, 1), (0.0, 3)]),
            ([mark(15)], [(5.0, 3)]),
            ([mark(20)], [(10.0, 1)]),
        ],
    ),
    # The model system emitted a window a second time for a row that came after it.
    "W8": (100, 100, [([row(50), mark(100)], [(0.0, 1)]), ([row(20)], []), ([mark(300)], [])]),
    "W9": (
        10,
        5,
        [([row(1), row(6), row(23)], []), ([mark(40)], [(-5.0, 1), (0.0, 2), (5.0, 1), (15.0, 1), (20.0, 1)])],
    ),
}


@pytest.mark.parametrize(("size", "slide", "steps"), SCENARIOS.values(), ids=SCENARIOS)
def test_window_scenario(feed: Feed, run: Callable[..., Running], size: int, slide: int, steps: Steps) -> None:
    frame = follow_marks(feed.frame(), "t", "mark", operators="windows")
    windows = frame.groupBy(F.window("t", f"{size} seconds", f"{slide} seconds")).count()
    query = run(windows.select(seconds("window.start"), "count"), feed)
    closed: list[tuple[float, int]] = []
    for lines, new in steps:
        closed += new
        assert sorted(query.step(*lines), key=repr) == sorted(closed, key=repr)
