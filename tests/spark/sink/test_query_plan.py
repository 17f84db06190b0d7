"""Claims about reading the plan of a query: nothing is printed, and every thread reads the plan of its own query."""

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

import floodmark as fm
from floodmark.spark.sink.query import QueryPlan
from floodmark.streams import connect
from support.spark.spark_feed import Feed

THREADS = 4
ROUNDS = 8


def frames(spark: SparkSession, feed: Feed) -> list[tuple[DataFrame, QueryPlan]]:
    """Return frames with different plans: stateful or not, of one source, of another, of both."""
    rate = spark.readStream.format("rate").load()
    files = feed.frame()
    return [
        (rate.select("value"), QueryPlan((), ("rate",), is_stateful=False)),
        (files, QueryPlan((), ("FileSource",), is_stateful=False)),
        (rate.withWatermark("timestamp", "1 second").dropDuplicates(), QueryPlan((), ("rate",), is_stateful=True)),
        (files.select("t").union(rate.select("timestamp")), QueryPlan((), ("FileSource", "rate"), is_stateful=False)),
    ]


def test_plans_are_read_by_several_threads_without_touching_stdout(
    spark: SparkSession, feed: Feed, capsys: pytest.CaptureFixture[str]
) -> None:
    cases = frames(spark, feed)
    stdout, begin = sys.stdout, Barrier(THREADS + 1)

    def read(number: int) -> list[QueryPlan]:
        frame, _ = cases[number]
        begin.wait(60)
        return [QueryPlan.of(frame) for _ in range(ROUNDS)]

    with ThreadPoolExecutor(THREADS) as threads:
        found = [threads.submit(read, number) for number in range(THREADS)]
        begin.wait(60)
        lines = 0
        while not all(one.done() for one in found):
            print("a line of the program")
            lines += 1
    assert [one.result() for one in found] == [[plan] * ROUNDS for _, plan in cases]
    assert sys.stdout is stdout
    assert capsys.readouterr().out.splitlines() == ["a line of the program"] * lines


def test_a_plan_is_read_whole_and_the_settings_of_the_session_stay(spark: SparkSession, home: Path) -> None:
    with connect(home) as streams:
        streams.create_stream("orders", "id BIGINT, t TIMESTAMP", time_columns="t")
    shown = "spark.sql.debug.maxToStringFields"
    before = spark.conf.get(shown)
    spark.conf.set(shown, "1")
    try:
        plans = [QueryPlan.of(fm.read_stream(spark, "orders", home=home, max_rows=rows)) for rows in range(1, 4)]
        assert spark.conf.get(shown) == "1"
    finally:
        spark.conf.set(shown, str(before))
    assert [(len(plan.readers), plan.others) for plan in plans] == [(1, ())] * 3


def test_queries_started_by_several_threads_have_no_empty_batches_of_spark(
    spark: SparkSession, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with connect(home) as streams:
        streams.create_stream("orders", "id BIGINT, t TIMESTAMP", time_columns="t")
    setting = "spark.sql.streaming.noDataMicroBatches.enabled"
    before, begin, started = spark.conf.get(setting), Barrier(THREADS), []
    start = DataStreamWriter.start

    def observed(writer: DataStreamWriter, *arguments: Any, **options: Any) -> StreamingQuery:
        query = start(writer, *arguments, **options)
        started.append(spark.conf.get(setting))
        return query

    monkeypatch.setattr(DataStreamWriter, "start", observed)

    def write(number: int) -> StreamingQuery:
        rows, name = fm.read_stream(spark, "orders", home=home, source=f"source-{number}"), f"sink-{number}"
        begin.wait(60)
        checkpoint = tmp_path / f"{name}-checkpoint"
        return fm.write_stream(rows, to=f"file://{tmp_path / name}", name=name, home=home, checkpoint=checkpoint)

    with ThreadPoolExecutor(THREADS) as threads:
        for query in [threads.submit(write, number) for number in range(THREADS)]:
            query.result().stop()
    assert started == ["false"] * THREADS
    assert spark.conf.get(setting) == before


def test_a_window_has_state_and_a_filter_has_none(spark: SparkSession) -> None:
    rate = spark.readStream.format("rate").load().withWatermark("timestamp", "1 second")
    assert not QueryPlan.of(rate.where("value > 1")).is_stateful
    assert QueryPlan.of(rate.groupBy(F.window("timestamp", "10 seconds")).count()).is_stateful
