"""Floodmark's watermark on a foreign stream: what it waits for, what it leaves out, and what survives a restart."""

import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from floodmark.cli import main
from floodmark.control import Home, Queries, WatermarkSteps
from floodmark.errors import FloodmarkError, InvalidOption, UnknownColumn, UnsupportedFrame
from floodmark.spark import with_watermark
from support.spark.watermark_feed import BASE, Count, Orders
from support.waiting import wait_until


def test_a_lagging_origin_is_waited_for_and_loses_nothing(orders: Orders, counting: Count, home: Path) -> None:
    frame = with_watermark(orders.frame(), "t", per=["p"], operators="windows", home=home)
    query = counting(frame)
    orders.add((1, "a"), (2, "b"))
    orders.add((35, "a"))
    orders.add((5, "b"), (12, "b"))
    query.wait_for([(0, 3)])
    orders.add((13, "b"), (31, "b"))
    query.wait_for([(0, 3), (10, 2)])
    assert query.query is not None
    query.stop()
    with Home.open_existing(home) as kept:
        query_id = str(query.query.id)
        record = wait_until(lambda: Queries(kept).find(query_id), holds=lambda found: found.has_ended)
        assert record.state == "stopped"
        [(incarnation, _, column)] = record.incarnations
        step = WatermarkSteps(kept).newest(incarnation)
    assert column == "t"
    assert step is not None
    assert step.watermark == (BASE + 31) * 1_000_000


def test_without_origins_the_newest_row_counts_to_the_microsecond(orders: Orders, counting: Count, home: Path) -> None:
    query = counting(with_watermark(orders.frame(), "t", delay=timedelta(seconds=5), operators="windows", home=home))
    orders.add((1, "a"), (14, "a"))
    orders.add((2, "a"))
    orders.add((15, "b"))
    query.wait_for([(0, 2)])


def test_a_row_from_the_future_moves_nothing(orders: Orders, counting: Count, home: Path) -> None:
    query = counting(with_watermark(orders.frame(), "t", per=["p"], future="1 hour", operators="windows", home=home))
    orders.add((1, "a"), (4_000_000_000 - BASE, "a"))
    orders.add((2, "a"), (11, "a"))
    query.wait_for([(0, 2)])


def test_a_silent_origin_is_left_out_and_time_moves_on_without_a_row(
    orders: Orders, counting: Count, home: Path
) -> None:
    frame = with_watermark(
        orders.frame(), "t", per=["p"], idle="2 seconds", assume_caught_up=True, operators="windows", home=home
    )
    query = counting(frame)
    orders.add((1, "a"), (2, "b"))
    orders.add((35, "a"))
    query.wait_for([(0, 2)])


def test_an_origin_declared_up_front_is_waited_for_until_a_command_removes_it(
    orders: Orders, counting: Count, home: Path
) -> None:
    def frame() -> DataFrame:
        return with_watermark(orders.frame(), "t", per=["p"], origins=["a", "b"], operators="windows", home=home)

    first = counting(frame())
    assert first.query is not None
    orders.add((1, "a"))
    orders.add((31, "a"))
    first.query.processAllAvailable()
    query_id = str(first.query.id)
    with Home.open_existing(home) as kept:
        record = wait_until(lambda: Queries(kept).all(), holds=lambda found: bool(found) and found[0].batch_id >= 1)[0]
        [(incarnation, _, _)] = record.incarnations
        told = wait_until(lambda: WatermarkSteps(kept).observations(incarnation), holds=lambda found: len(found) > 1)
    assert first.windows() == []
    assert {observation.statistics["reports_latest"] for observation in told} == {False}, "files do not tell"
    assert first.query.lastProgress is not None
    assert first.query.lastProgress.eventTime == {"watermark": "1970-01-01T00:00:00.000Z"}, "and nothing else of 1970"
    assert main(["origins", query_id, "remove", "b", "--home", str(home)]) == 0
    first.wait_for([(0, 1)])
    shown = [progress.eventTime for progress in first.query.recentProgress if "min" in progress.eventTime]
    assert [set(times.values()) - {"1970-01-01T00:00:00.000Z"} for times in shown] == [{"2026-09-21T14:13:31.000Z"}]
    first.stop()
    orders.add((51, "a"))
    second = counting(frame())
    second.wait_for([(30, 1)])


def test_what_each_origin_said_survives_a_restart(
    spark: SparkSession, orders: Orders, counting: Count, home: Path
) -> None:
    def frame() -> DataFrame:
        return with_watermark(orders.frame(), "t", per=["p"], operators="windows", home=home)

    first = counting(frame())
    orders.add((1, "a"), (2, "b"))
    orders.add((35, "a"))
    orders.add((12, "b"))
    first.wait_for([(0, 2)])
    first.stop()
    second = counting(frame())
    orders.add((40, "b"))
    second.wait_for([(10, 1)])
    orders.add((51, "a"))
    second.wait_for([(10, 1), (30, 1)])


def test_a_quiet_frame_does_not_hold_the_watermark_after_a_restart(
    spark: SparkSession, tmp_path: Path, counting: Count, home: Path
) -> None:
    feeds = [Orders(spark, tmp_path / name) for name in ("quiet", "busy")]
    quiet, busy = (with_watermark(feed.frame(), "t", operators="windows", home=home) for feed in feeds)
    feeds[0].add((1, "a"), (100, "a"))
    feeds[1].add((5, "b"))
    # The same DataFrame in both runs: a new one would have another id, and say its watermark for that reason.
    query = counting(quiet.unionByName(busy), availableNow=True)
    assert query.query is not None
    assert query.query.awaitTermination(60)
    feeds[1].add((50, "b"))
    query.start(availableNow=True)
    assert query.query.awaitTermination(60)
    assert query.windows() == [(0, 2)]


def test_available_now_ends_when_nothing_follows_from_the_last_rows(
    orders: Orders, counting: Count, home: Path
) -> None:
    for rows in ([(1, "a"), (2, "b")], [(15, "a")], [(16, "b")], [(31, "a"), (32, "b")]):
        orders.add(*rows)
    query = counting(with_watermark(orders.frame(), "t", per=["p"], operators="windows", home=home), availableNow=True)
    assert query.query is not None
    assert query.query.awaitTermination(60)
    assert query.windows() == [(0, 2), (10, 2)]


def test_two_streams_with_their_own_watermarks_join(
    spark: SparkSession, tmp_path: Path, counting: Count, home: Path
) -> None:
    left, right = Orders(spark, tmp_path / "left"), Orders(spark, tmp_path / "right")
    sides = [
        with_watermark(one.frame(), "t", per=["p"], home=home).select(
            F.col("t").alias(name), F.col("p").alias(f"{name}_p")
        )
        for one, name in ((left, "ordered"), (right, "paid"))
    ]
    condition = F.expr("ordered_p = paid_p and paid >= ordered and paid <= ordered + interval 5 seconds")
    joined = sides[0].join(sides[1], condition, "left_outer")
    seen: list[tuple[int, int | None]] = []

    def take(batch: DataFrame, number: int) -> None:
        for row in batch.select(F.unix_seconds("ordered"), F.unix_seconds("paid")).collect():
            seen.append((row[0] - BASE, None if row[1] is None else row[1] - BASE))

    query = joined.writeStream.foreachBatch(take).option("checkpointLocation", str(tmp_path / "join")).start()
    try:
        left.add((1, "x"), (2, "y"))
        right.add((3, "x"))
        left.add((100, "x"), (101, "y"))
        right.add((102, "x"), (103, "y"))
        deadline = time.monotonic() + 40
        while len(seen) < 4 and time.monotonic() < deadline:
            time.sleep(0.2)
        query.processAllAvailable()
    finally:
        query.stop()
    assert sorted(seen) == [(1, 3), (2, None), (100, 102), (101, 103)]


REFUSED: dict[str, tuple[type[FloodmarkError], dict[str, Any], str]] = {
    "unknown column": (UnknownColumn, {"column": "T"}, "Did you mean 't'"),
    "not a timestamp": (UnsupportedFrame, {"column": "p"}, "type string"),
    "unknown origin column": (UnknownColumn, {"per": ["partition"]}, "no column 'partition'"),
    "origin columns as text": (InvalidOption, {"per": "p"}, "list of column names"),
    "negative delay": (InvalidOption, {"delay": "-1 seconds"}, "delay is '-1 seconds'"),
    "delay without a unit": (InvalidOption, {"delay": "10"}, "number and a unit"),
    "misspelled unit": (InvalidOption, {"delay": "10 secnds"}, "Did you mean 'second'"),
    "delay as number": (InvalidOption, {"delay": 10}, "timedelta"),
    "idle of nothing": (InvalidOption, {"idle": "0 seconds"}, "idle is"),
    "unknown operators": (InvalidOption, {"operators": "window"}, "Did you mean 'windows'"),
    "unknown treatment of late rows": (InvalidOption, {"late": "counted"}, "Did you mean 'count'"),
    "unknown option": (InvalidOption, {"dely": "1 second"}, "There is no option 'dely'.*Did you mean 'delay'"),
    "origin that cannot be compared": (UnsupportedFrame, {"per": ["m"]}, "map<string,string>"),
    "origins as text": (InvalidOption, {"per": ["p"], "origins": "a"}, "origins has 'a'.*list of origins"),
    "origins without columns": (InvalidOption, {"origins": ["a"]}, "there are none"),
    "origin of two columns": (InvalidOption, {"per": ["p"], "origins": [("a", "b")]}, "An origin is the value of 'p'"),
    "origin that is a mapping": (InvalidOption, {"per": ["p"], "origins": [{"p": 1}]}, "An origin is the value of 'p'"),
    "origin of no text": (InvalidOption, {"per": ["p"], "origins": [1.5]}, r"origins has 1\.5"),
    "unknown origin state": (
        InvalidOption,
        {"per": ["p"], "origins": {"a": "finish"}},
        "Did you mean 'finished'",
    ),
    "unknown policy for revived origins": (InvalidOption, {"revived": "excluded"}, "Did you mean 'exclude'"),
    "removal of nothing": (InvalidOption, {"remove_idle": "0 seconds"}, "remove_idle is"),
    "directory for no late rows": (InvalidOption, {"late_path": "late"}, "late_path is given, and late is 'drop'"),
    "late rows in an object store": (
        InvalidOption,
        {"column": "t", "late": "copy", "late_path": "s3://bucket/late", "drop": "_watermark"},
        "not to a URL",
    ),
    "name that late rows need": (UnsupportedFrame, {"late": "route"}, "has a column '_watermark'"),
}


@pytest.mark.parametrize(("kind", "change", "says"), REFUSED.values(), ids=REFUSED)
def test_bad_input_is_refused_and_leaves_nothing_behind(
    orders: Orders, home: Path, kind: type[FloodmarkError], change: dict[str, Any], says: str
) -> None:
    options: dict[str, Any] = {"column": "t", "home": home, **change}
    frame = orders.frame().withColumns({"m": F.create_map("p", "p"), "_watermark": F.lit(1)})
    with pytest.raises(kind, match=says):
        with_watermark(frame.drop(options.pop("drop", "")), **options)
    assert not home.exists()


def test_a_batch_frame_and_a_second_watermark_are_refused(spark: SparkSession, orders: Orders, home: Path) -> None:
    with pytest.raises(UnsupportedFrame, match="not a streaming one"):
        with_watermark(spark.createDataFrame([], "t timestamp"), "t", home=home)
    with pytest.raises(UnsupportedFrame, match="has a watermark already"):
        with_watermark(with_watermark(orders.frame(), "t", home=home), "t", home=home)
