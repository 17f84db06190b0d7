"""Streams that Spark's own operators unite: each input says its mark in every run of the query."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import floodmark as fm
from floodmark.errors import InvalidOption
from floodmark.sinks.target import ROWS_FLUSHED
from support.spark.sink_feed import fail_at
from support.spark.stream_feed import BASE, SECOND, StreamFeed, after_base
from support.waiting import wait_until


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


@pytest.mark.long
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


def test_an_idle_input_lets_the_other_pass_and_its_late_rows_are_dropped_when_it_revives(
    pair: Pair, tmp_path: Path
) -> None:
    a, b = pair
    a.play([[1, 12, 42], 50, None])
    b.play([[3], 5, None])
    assert closed(a, united(pair, on_idle="release")) == []
    b.mark_idle()
    a.play([None])
    assert closed(a, united(pair, on_idle="release")) == [(0, 2), (10, 1), (40, 1)]
    # It starts again while it is idle, and goes on with the other.
    a.play([[55], 60, None])
    assert closed(a, united(pair, on_idle="release")) == [(50, 1)]
    # The row at 58 is behind the watermark.
    b.play([[58, 65], 59, None])
    assert closed(a, united(pair, on_idle="release")) == []
    a.play([80, None])
    b.play([70, None])
    assert closed(a, united(pair, on_idle="release")) == [(60, 1)]
    marks = [mark_of(tmp_path / "checkpoint", batch, 1) for batch in range(batches(tmp_path / "checkpoint"))]
    assert marks == sorted(marks)
    assert marks[-1] == 70


def test_an_idle_input_holds_unless_it_is_to_let_others_pass(pair: Pair) -> None:
    a, b = pair
    a.play([[1, 12], 50, None])
    b.play([[3], 5, None])
    b.mark_idle()
    a.play([None])
    assert closed(a, united(pair)) == []


@pytest.mark.long
def test_a_release_is_repeated_by_a_batch_that_runs_again(pair: Pair, tmp_path: Path) -> None:
    a, b = pair
    a.play([[1, 12, 42], 50, None])
    b.play([[3], 5, None])
    b.mark_idle()
    a.play([None])
    checkpoint = tmp_path / "checkpoint"
    assert closed(a, united(pair, on_idle="release")) == [(0, 2), (10, 1), (40, 1)]
    released = next(batch for batch in range(batches(checkpoint)) if mark_of(checkpoint, batch, 1) == 50)
    # As after a crash in the batch of the release; meanwhile b is active again, at 20.
    forget_after(checkpoint, released)
    b.play([[25], 20, None])
    assert closed(a, united(pair, on_idle="release")) == [(0, 2), (10, 1), (20, 1), (40, 1)], "up to 50, not 20"
    assert mark_of(checkpoint, released + 1, 1) == 50


def test_inputs_that_finish_or_are_silent_for_long_let_the_others_pass(pair: Pair, tmp_path: Path) -> None:
    a, b = pair
    a.play([[1, 12, 42], 50, None])
    b.play([[3], 10, None])
    first = a.read(operators="windows")
    at_end = b.read(operators="windows", on_idle="release", end=BASE + 10 * SECOND)
    count = F.window("t", "10 seconds")
    rows = first.unionByName(at_end).groupBy(count).count().select("window.start", "count")
    assert closed(a, rows) == [(0, 2), (10, 1), (40, 1)]

    quiet = b.read(operators="windows", on_idle="release", idle_after="1 second")
    rows = a.read(operators="windows").unionByName(quiet).groupBy(count).count().select("window.start", "count")
    query = rows.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "quiet")).start()
    try:
        wait_until(lambda: mark_of(tmp_path / "quiet", batches(tmp_path / "quiet") - 1, 1) == 50)
    finally:
        query.stop()


@pytest.mark.long
def test_a_sink_writes_the_windows_that_an_idle_input_lets_pass(
    pair: Pair, spark: SparkSession, tmp_path: Path
) -> None:
    a, b = pair
    a.play([[1, 12, 42], 50, None])
    b.play([[3], 5, None])
    b.mark_idle()
    a.play([None])
    write_windows(pair, tmp_path, on_idle="release")
    assert written(spark, tmp_path) == [(0, 2), (10, 1), (40, 1)]
    shutil.rmtree(tmp_path / "sink")
    a.play([[55], 60, None])
    write_windows(pair, tmp_path, on_idle="release")
    assert written(spark, tmp_path) == [(0, 2), (10, 1), (40, 1), (50, 1)]


def test_idle_after_without_release_is_refused(pair: Pair) -> None:
    with pytest.raises(InvalidOption, match="on_idle is 'hold'"):
        pair[0].read(idle_after="1 second")
    with pytest.raises(InvalidOption, match="'hold', 'release'"):
        pair[0].read(on_idle="skip")


def batches(checkpoint: Path) -> int:
    return len(list((checkpoint / "offsets").glob("[0-9]*")))


def mark_of(checkpoint: Path, batch: int, source: int) -> float:
    """Return the mark that a source has said in a batch, in seconds."""
    log = checkpoint / "offsets" / str(batch)
    if not log.exists():
        return -1
    mark = json.loads(log.read_text().split("\n")[2 + source]).get("mark")
    return -1 if mark is None else (mark[1] - BASE) / SECOND
