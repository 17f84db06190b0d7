"""Streams that Spark's own operators unite: each input says its mark in every run of the query."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import floodmark as fm
from floodmark.sinks.target import ROWS_FLUSHED
from support.spark.sink_feed import fail_at
from support.spark.stream_feed import StreamFeed, after_base


@pytest.fixture
def pair(spark: SparkSession, tmp_path: Path) -> Iterator[tuple[StreamFeed, StreamFeed]]:
    a = StreamFeed(spark, tmp_path, segments=1, name="a")
    b = StreamFeed(spark, tmp_path, segments=1, name="b", beside=a)
    yield a, b
    b.close()
    a.close()


Pair = tuple[StreamFeed, StreamFeed]


def united(pair: Pair, **options: Any) -> DataFrame:
    """Return how many rows both streams have in each ten seconds."""
    rows = pair[0].read(operators="windows", **options).unionByName(pair[1].read(operators="windows", **options))
    return rows.groupBy(F.window("t", "10 seconds")).count().select("window.start", "count")


def closed(feed: StreamFeed, frame: DataFrame) -> list[tuple[int, int]]:
    """Run the query until it has read everything; return the windows that have closed in this run."""
    return sorted((after_base(start), rows) for start, rows in feed.collect(frame, "checkpoint"))


def test_a_quiet_input_does_not_hold_the_watermark_after_a_restart(pair: Pair) -> None:
    a, b = pair
    a.play([[1, 12, 42], 100, None])
    b.play([[3], 5, None])
    assert closed(a, united(pair)) == []
    b.play([50, None])
    assert closed(a, united(pair)) == [(0, 2), (10, 1), (40, 1)]


def test_a_batch_that_runs_again_is_followed_by_the_marks_of_all_inputs(pair: Pair, tmp_path: Path) -> None:
    a, b = pair
    a.play([[1, 12, 42], 100, None])
    b.play([[3], 5, None])
    assert closed(a, united(pair)) == []
    b.play([50, None])
    closed(a, united(pair))
    # As after a crash in the batch that has the mark of b; it has no mark of a.
    forget_after(tmp_path / "checkpoint", 1)
    offsets = tmp_path / "checkpoint" / "offsets"
    version, metadata, _, of_b = (offsets / "1").read_text().split("\n")
    of_a = (offsets / "0").read_text().split("\n")[2]
    (offsets / "1").write_text("\n".join([version, metadata, of_a, of_b]))
    (offsets / ".1.crc").unlink(missing_ok=True)
    assert closed(a, united(pair)) == [(0, 2), (10, 1), (40, 1)]


def test_a_run_with_nothing_new_says_the_marks_once_and_ends(pair: Pair, tmp_path: Path) -> None:
    a, b = pair
    a.play([[1, 12], 100, None])
    b.play([[3], 50, None])
    frame = united(pair)
    assert closed(a, frame) == [(0, 2), (10, 1)]
    batches = len(list((tmp_path / "checkpoint" / "commits").glob("[0-9]*")))
    for runs in (1, 2):
        assert closed(a, frame) == []
        assert len(list((tmp_path / "checkpoint" / "commits").glob("[0-9]*"))) == batches + runs


def write_windows(pair: Pair, tmp_path: Path, **options: Any) -> int:
    """Write the windows of both streams exactly once; return how many batches the run had."""
    rows = pair[0].read(operators="windows", **options).unionByName(pair[1].read(operators="windows", **options))
    query = fm.write_stream(
        fm.window(rows, "10 seconds").groupBy("window").count(),
        to=f"file://{tmp_path}/out",
        name="out",
        checkpoint=tmp_path / "sink",
        home=tmp_path / "home",
        trigger={"availableNow": True},
    )
    query.awaitTermination()
    return len(query.recentProgress)


def written(spark: SparkSession, tmp_path: Path) -> list[tuple[int, int]]:
    rows = fm.read_closed(spark, f"file://{tmp_path}/out").select("window.start", "count").collect()
    return sorted((after_base(start), count) for start, count in rows)


def forget_after(checkpoint: Path, batch: int) -> None:
    """Take a checkpoint back to the moment when a batch is logged, but not committed."""
    for folder, last in (("offsets", batch), ("commits", batch - 1)):
        for path in (checkpoint / folder).iterdir():
            number = path.name.strip(".").removesuffix(".crc")
            if number.isdecimal() and int(number) > last:
                path.unlink()


@pytest.mark.parametrize("batch", [pytest.param(batch, marks=pytest.mark.long) for batch in (1, 2, 4)] + [3])
def test_windows_of_two_streams_are_written_once_after_a_crash_in_any_batch(
    pair: Pair, spark: SparkSession, tmp_path: Path, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = pair
    a.play([[1, 12, 42], 100, None])
    b.play([[3], 5, None, [14], 15, None, [25], 30, None, [41], 55, None])
    with monkeypatch.context() as patched:
        fail_at(patched, ROWS_FLUSHED, batch)
        with pytest.raises(StreamingQueryException):
            write_windows(pair, tmp_path, max_rows=1)
    b.play([[58], 70, None])
    write_windows(pair, tmp_path, max_rows=1)
    assert written(spark, tmp_path) == [(0, 2), (10, 2), (20, 1), (40, 2), (50, 1)]


def test_a_sink_of_two_streams_writes_one_empty_batch_in_a_run_with_nothing_new(
    pair: Pair, spark: SparkSession, tmp_path: Path
) -> None:
    a, b = pair
    a.play([[1, 12, 42], 100, None])
    b.play([[3], 5, None])
    write_windows(pair, tmp_path)
    b.play([50, None])
    write_windows(pair, tmp_path)
    assert written(spark, tmp_path) == [(0, 2), (10, 1), (40, 1)]
    assert write_windows(pair, tmp_path) == 1
