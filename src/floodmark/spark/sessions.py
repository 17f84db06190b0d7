"""A local Spark session with the settings that small streaming queries need, and which Spark is supported."""

import os
import re
import sys
import warnings
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final

from pyspark import __version__ as CLIENT
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from floodmark.errors import InvalidOption, UnsupportedSpark

__all__ = ["session"]

Setting = str | int | float | bool

_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_WORKER_PYTHON = "spark.pyspark.python"
# Spark's code generator matches whole plans with a recursive regular expression: the usual 1 MB stack is too small.
_STACK_SIZE = "-Xss8m"
# A log level set on a running session comes too late for what Spark says while it starts.
_QUIET_LOG = f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties').as_uri()}"
_SHUFFLE_PARTITIONS_AT_LEAST, _SHUFFLE_PARTITIONS_AT_MOST = 2, 4


def session(name: str = "floodmark", *, cores: int = 2, conf: Mapping[str, Setting] | None = None) -> SparkSession:
    """Start (or get) a Spark session on this machine, set up for streaming with small batches.

    `conf` holds further Spark settings and wins over the defaults:

    ```python
    from floodmark.spark import session

    spark = session("orders", cores=4, conf={"spark.sql.session.timeZone": "Europe/Lisbon"})
    ```

    The defaults: the workers run this Python interpreter, 2 to 4 shuffle partitions, the RocksDB state store, a
    checkpoint manager that renames local files directly, the UTC time zone, the loopback interface only, no
    web UI, and in the driver's Java options a stack of 8 MB and a log of errors only, unless you set those there.

    The interpreter is named in the environment as `PYSPARK_PYTHON`, because PySpark takes it from there; one that
    is there already stays, unless you set `spark.pyspark.python`. One process has one JVM: where a session runs
    already, it is returned with those settings that can still be changed, and a warning names those that cannot.
    """
    if isinstance(cores, bool) or not isinstance(cores, int) or cores < 1:
        raise InvalidOption(
            f"cores is {cores!r}.",
            rule="A local session needs a whole number of cores, 1 or more.",
            remedy="Pass cores=2, or leave it out.",
            option="cores",
            value=cores,
        )
    settings = _defaults(cores) | {key: _setting_text(value) for key, value in (conf or {}).items()}
    settings[_JAVA_OPTIONS] = _complete_java_options(settings.get(_JAVA_OPTIONS, ""))
    os.environ["PYSPARK_PYTHON"] = settings[_WORKER_PYTHON]

    builder = SparkSession.builder.appName(name)
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    _warn_of_settings_not_taken(spark, settings)
    return spark


def _defaults(cores: int) -> dict[str, str]:
    streaming = "org.apache.spark.sql.execution.streaming"
    partitions = min(max(cores, _SHUFFLE_PARTITIONS_AT_LEAST), _SHUFFLE_PARTITIONS_AT_MOST)
    return {
        "spark.master": f"local[{cores}]",
        _WORKER_PYTHON: os.environ.get("PYSPARK_PYTHON", sys.executable),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(partitions),
        # By default 10,000: so many tasks only to look at so many files.
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": str(2 * cores),
        "spark.sql.streaming.checkpointFileManagerClass": (
            f"{streaming}.checkpointing.FileSystemBasedCheckpointFileManager"
        ),
        "spark.sql.streaming.stateStore.providerClass": f"{streaming}.state.RocksDBStateStoreProvider",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }


def _setting_text(value: Setting) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _complete_java_options(chosen: str) -> str:
    options = [chosen] if chosen else []
    if "-Xss" not in chosen:
        options.append(_STACK_SIZE)
    if "log4j2.configurationFile" not in chosen:
        options.append(_QUIET_LOG)
    return " ".join(options)


def _warn_of_settings_not_taken(spark: SparkSession, settings: dict[str, str]) -> None:
    # The session's own view would show what was asked for, also for what only a new JVM could follow.
    started_with = spark.sparkContext.getConf()
    ignored = []
    for key, value in sorted(settings.items()):
        actual = spark.conf.get(key, None) if key.startswith("spark.sql.") else started_with.get(key)
        # Spark puts options of its own in front of the driver's Java options.
        taken = (actual or "").endswith(value) if key == _JAVA_OPTIONS else actual == value
        if not taken:
            ignored.append(key)
    if ignored:
        warnings.warn(
            f"A Spark session was running already; it keeps its own {', '.join(ignored)}. "
            "Stop it first (spark.stop()), or start it with these settings.",
            stacklevel=3,
        )


_OLDEST_SPARK: Final = (4, 2)


def require_supported(spark: SparkSession) -> None:
    """Refuse a Spark that lacks what Floodmark needs, here or on the other side of Connect; advise on the rest once."""
    check_version(CLIENT, "PySpark")
    check_version(spark.version, "Spark")
    _advise_on_stack(spark)


def check_version(version: str, what: str) -> None:
    """Refuse a version that is too old.

    >>> check_version("4.3.0", "Spark")
    >>> check_version("3.5.1", "Spark")
    Traceback (most recent call last):
    floodmark.errors.UnsupportedSpark: This is Spark 3.5.1. ... [unsupported-spark]
    """
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers is None or (int(numbers[1]), int(numbers[2])) < _OLDEST_SPARK:
        oldest = ".".join(map(str, _OLDEST_SPARK))
        raise UnsupportedSpark(
            f"This is {what} {version}.",
            rule=f"Floodmark needs {oldest} or newer: older ones cannot hold a source back, nor count by origin.",
            remedy=f"Install pyspark>={oldest}, and the same on the cluster.",
            what=what,
            version=version,
            oldest=oldest,
        )


def _advise_on_stack(spark: SparkSession) -> None:
    try:
        options = spark.conf.get("spark.driver.extraJavaOptions", "") or ""
    except PySparkException:
        return
    if "-Xss" not in options:
        _warn_of_stack_once()


@cache
def _warn_of_stack_once() -> None:
    warnings.warn(
        "This session's driver has Java's usual stack size, on which Spark cannot compile large streaming plans: it "
        "logs a long trace, and may fail. Set spark.driver.extraJavaOptions=-Xss8m before it starts, or use "
        "floodmark.session().",
        stacklevel=5,
    )
