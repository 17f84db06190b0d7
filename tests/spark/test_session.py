"""The session's defaults reach Spark, and the user's settings win."""

import sys
import warnings

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from floodmark.errors import InvalidOption
from floodmark.spark import session
from floodmark.spark import sessions as _session
from support.spark.spark_feed import SHORT_LIVED


def test_the_defaults_are_in_force(spark: SparkSession) -> None:
    started_with = spark.sparkContext.getConf()
    assert started_with.get("spark.master") == "local[2]"
    assert "-Xss8m" in (started_with.get("spark.driver.extraJavaOptions") or "")
    assert started_with.get("spark.driver.host") == started_with.get("spark.driver.bindAddress") == "127.0.0.1"
    assert spark.sparkContext.uiWebUrl is None
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"
    assert str(spark.conf.get("spark.sql.streaming.stateStore.providerClass")).endswith("RocksDBStateStoreProvider")
    manager = str(spark.conf.get("spark.sql.streaming.checkpointFileManagerClass"))
    assert manager.endswith(".FileSystemBasedCheckpointFileManager")


def test_workers_run_this_interpreter(spark: SparkSession) -> None:
    interpreter = F.udf(lambda _: sys.executable, "string")
    assert spark.range(1).select(interpreter("id")).first()[0] == sys.executable  # type: ignore[index]


def test_a_second_call_takes_what_it_can_and_names_the_rest(spark: SparkSession) -> None:
    try:
        with pytest.warns(UserWarning, match=r"keeps its own spark\.master\."):
            same = session("another", cores=1, conf={**SHORT_LIVED, "spark.sql.shuffle.partitions": 3})
        assert same is spark
        assert spark.conf.get("spark.sql.shuffle.partitions") == "3"
    finally:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            session("floodmark-tests", conf=SHORT_LIVED)
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"


@pytest.mark.parametrize("cores", [0, -1, 1.5, True, "2"])
def test_cores_must_be_a_number_of_cores(cores: int) -> None:
    with pytest.raises(InvalidOption, match="cores is"):
        session(cores=cores)


@pytest.mark.parametrize(
    ("chosen", "stack", "log"),
    [("", True, True), ("-Xmx1g", True, True), ("-Xss4m", False, True), ("-Dlog4j2.configurationFile=x", True, False)],
)
def test_java_options_are_completed_never_replaced(chosen: str, stack: bool, log: bool) -> None:
    complete = _session._complete_java_options(chosen)
    assert complete.startswith(chosen)
    assert ("-Xss8m" in complete) is stack
    assert ("floodmark/spark/log4j2.properties" in complete) is log


@pytest.mark.parametrize(("cores", "partitions"), [(1, "2"), (2, "2"), (3, "3"), (64, "4")])
def test_shuffle_partitions_follow_the_cores_within_limits(cores: int, partitions: str) -> None:
    assert _session._defaults(cores)["spark.sql.shuffle.partitions"] == partitions
