"""One Spark for all tests of a run, and streams that are fed line by line."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from floodmark.spark import session
from support.examples import is_full
from support.spark.spark_feed import SHORT_LIVED, SMALL_BATCHES, Feed, Running
from support.spark.warm_workers import warm_workers
from support.spark.watermark_feed import Count, Counting, Orders


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    with warm_workers() as environment:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in environment.items():
                patch.setenv(name, value)
            started = session("floodmark-tests", conf=SHORT_LIVED | ({} if is_full() else SMALL_BATCHES))
        yield started
        started.stop()


@pytest.fixture
def feed(spark: SparkSession, tmp_path: Path) -> Feed:
    return Feed(spark, tmp_path / "feed")


@pytest.fixture
def run(spark: SparkSession) -> Iterator[Callable[..., Running]]:
    """Start streaming queries, and stop them after the test."""
    started: list[Running] = []

    def start(frame: DataFrame, feed: Feed | None = None) -> Running:
        started.append(Running(spark, frame, feed))
        return started[-1]

    yield start
    for running in started:
        running.stop()


@pytest.fixture
def orders(spark: SparkSession, tmp_path: Path) -> Orders:
    return Orders(spark, tmp_path / "orders")


@pytest.fixture
def counting(tmp_path: Path) -> Iterator[Count]:
    started: list[Counting] = []

    def start(frame: DataFrame, checkpoint: str = "checkpoint", **trigger: Any) -> Counting:
        started.append(Counting(frame, tmp_path / checkpoint).start(**trigger))
        return started[-1]

    yield start
    for one in started:
        one.stop()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"
