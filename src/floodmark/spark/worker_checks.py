"""The checks of a worker process, before it reads its first row. Tasks import this module: keep it light."""

import platform
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from importlib.metadata import version
from typing import Any, Final

from floodmark.control import Home
from floodmark.errors import ExecutorUnfit, FloodmarkError, HomeMissing, HomeOutOfReach

_KAFKA_SECONDS: Final = 5.0
INSTALL_REMEDY: Final = (
    'Install the same version there (pip install "floodmark=={version}"), or set spark.pyspark.python to the Python of '
    "an environment that has it on every machine."
)
"""What to do if executors lack the package; it has a place for the version."""


@cache
def floodmark_version() -> str:
    """Return the version of the installed package."""
    return version("floodmark")


def examine_worker(
    expected: str, home: str | None, servers: str | None, client: Mapping[str, str]
) -> dict[str, Any] | None:
    """Return, in a worker process, the error for the first thing that is missing there; None if all is well."""
    try:
        check_version_of_worker(expected)
        # What the readers import, and what that needs.
        import_module("floodmark.spark.source.stream_reader")

        if home is not None:
            with home_in_task("Tasks of the query read or write the home."), Home.open_existing(home):
                pass
        if servers is not None:
            from floodmark.kafka import KafkaCluster, KafkaSettings

            KafkaCluster(KafkaSettings.of(servers, client), patience=0, timeout=_KAFKA_SECONDS).cluster_id()
    except FloodmarkError as error:
        return {"code": error.code, "fact": error.fact, "rule": error.rule, "remedy": error.remedy}
    except ImportError as error:
        return {"missing": str(error)}
    return None


def check_version_of_worker(expected: str) -> None:
    """Raise ExecutorUnfit if this process has another version of the package than the driver."""
    if floodmark_version() != expected:
        raise ExecutorUnfit(
            f"A worker on {platform.node()} has Floodmark {floodmark_version()}, the driver has {expected}.",
            rule="Driver and executors exchange objects of the package, so they need the same version.",
            remedy=INSTALL_REMEDY.format(version=expected),
            host=platform.node(),
            python=sys.executable,
        )


@contextmanager
def home_in_task(rule: str, remedy: str = "") -> Iterator[None]:
    """Turn a missing home into HomeOutOfReach inside the block, which a task runs; say why the task needs the home."""
    try:
        yield
    except HomeMissing as error:
        shown = error.fields.get("path", "")
        raise HomeOutOfReach(
            f"A task on {platform.node()} cannot reach the home {shown}.",
            rule=f"{rule} A directory is visible only on its own machine.",
            remedy=remedy or "Keep the home in PostgreSQL and the events in Kafka, or run Spark on one machine.",
            path=shown,
        ) from error
