"""Whether a session is one that Floodmark can work with."""

import re
import warnings
from functools import cache
from typing import Final

from pyspark import __version__ as CLIENT
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from floodmark.errors import UnsupportedSpark

_OLDEST: Final = (4, 2)


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
    if numbers is None or (int(numbers[1]), int(numbers[2])) < _OLDEST:
        oldest = ".".join(map(str, _OLDEST))
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
        _warn_once()


@cache
def _warn_once() -> None:
    warnings.warn(
        "This session's driver has Java's usual stack size, on which Spark cannot compile large streaming plans: it "
        "logs a long trace, and may fail. Set spark.driver.extraJavaOptions=-Xss8m before it starts, or use "
        "floodmark.session().",
        stacklevel=5,
    )
