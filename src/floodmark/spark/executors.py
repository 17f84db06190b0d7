"""Whether Spark's executors can run Floodmark: a probe job before a query.

Executors are other processes, often on other machines, with a Python of their own. Without these checks a missing
package shows itself as a traceback in a task, after Spark has retried it, or as a data source that is not found.
"""

import json
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from weakref import WeakKeyDictionary

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from floodmark.errors import ExecutorUnfit, FloodmarkError
from floodmark.spark.given_settings import is_local
from floodmark.spark.sessions import spark_is_classic
from floodmark.spark.worker_checks import INSTALL_REMEDY, floodmark_version

SETTING: Final = "spark.floodmark.checkExecutors"
"""The Spark setting that switches the checks off: "false"."""

_ROWS: Final = 64
_SWITCH: Final = f"Set {SETTING}=false to skip this check."


@dataclass(frozen=True, slots=True)
class Needs:
    """What tasks of a query need besides the package: the home, and a Kafka cluster."""

    home: str | None = field(default=None, repr=False)
    servers: str | None = None
    client: tuple[tuple[str, str], ...] = field(default=(), repr=False)


def checks_executors(spark: SparkSession) -> bool:
    """Return whether the checks are switched on."""
    return str(spark.conf.get(SETTING, "true")).lower() != "false"


_passed: "WeakKeyDictionary[SparkSession, set[Needs]]" = WeakKeyDictionary()


def require_executors(spark: SparkSession, needs: Needs) -> None:
    """Run a small job that raises an error if executors lack the package, the home or Kafka; once for each session.

    Tasks of a local master run with this Python on this machine, so there is nothing to probe.

    Raises:
        ExecutorUnfit: The package is missing there, is of another version, or Python is another one.
        HomeOutOfReach: A task cannot open the home.
        KafkaAway: No broker answers to a task.
    """
    passed = _passed.setdefault(spark, set())
    if needs in passed or not checks_executors(spark) or _runs_in_this_process(spark):
        return
    probe = F.udf(probe_function(floodmark_version(), needs), "string", useArrow=False).asNondeterministic()
    try:
        reports = {row[0] for row in spark.range(_ROWS).select(probe("id")).collect()}
    except PySparkException as error:
        unfit = explain_failure(str(error))
        if unfit is None:
            warnings.warn(f"The executors could not be checked: {str(error).splitlines()[0]} {_SWITCH}", stacklevel=4)
            return
        raise unfit from None
    for report in sorted(reports):
        problem = error_of_report(json.loads(report), floodmark_version())
        if problem is not None:
            raise problem
    passed.add(needs)


def _runs_in_this_process(spark: SparkSession) -> bool:
    """Return whether workers are started on this machine, with this Python."""
    if not spark_is_classic(spark):
        return False
    context = spark.sparkContext
    return is_local(context.master or "") and context.pythonExec == sys.executable


def probe_function(expected: str, needs: Needs) -> Callable[[int], str]:
    """Return the function that a task of the probe runs; it returns its report as JSON.

    It is nested, refers to no module of Floodmark, and so is pickled as a whole: a worker without the package runs it.
    """
    home, servers, client = needs.home, needs.servers, dict(needs.client)
    reports: list[str] = []

    def probe(_: int) -> str:
        import json
        import platform
        import sys

        # Once for each task, not for each of its rows.
        if not reports:
            report: dict[str, Any] = {"host": platform.node(), "python": sys.executable}
            try:
                from floodmark.spark.worker_checks import examine_worker
            except ImportError as error:
                report["missing"] = str(error)
            else:
                report["problem"] = examine_worker(expected, home, servers, client)
            reports.append(json.dumps(report))
        return reports[0]

    return probe


def error_of_report(report: Mapping[str, Any], expected: str) -> FloodmarkError | None:
    """Return the error that a task of the probe has reported; None if it has found nothing.

    >>> report = {"host": "worker-7", "python": "/usr/bin/python3", "missing": "No module named 'floodmark'"}
    >>> print(error_of_report(report, "1.2.0").fact)
    Python at /usr/bin/python3 on worker-7 cannot import Floodmark: No module named 'floodmark'.
    >>> error_of_report({"host": "worker-7", "python": "/usr/bin/python3", "problem": None}, "1.2.0")
    """
    where = f"Python at {report['python']} on {report['host']}"
    problem = report.get("problem") or {}
    missing = report.get("missing") or problem.get("missing")
    if missing:
        return ExecutorUnfit(
            f"{where} cannot import Floodmark: {missing}.",
            rule="Executors need the package and what it depends on, as the driver has them.",
            remedy=f"{INSTALL_REMEDY.format(version=expected)} {_SWITCH}",
            host=report["host"],
            python=report["python"],
        )
    if not problem:
        return None
    kinds = {kind.code: kind for kind in _all_errors(FloodmarkError)}
    kind = kinds.get(problem["code"], ExecutorUnfit)
    fact = f"{where} reports: {problem['fact']}"
    remedy = f"{problem['remedy']} {_SWITCH}"
    return kind(fact, rule=problem["rule"], remedy=remedy, host=report["host"], python=report["python"])


def explain_failure(text: str) -> ExecutorUnfit | None:
    """Return the error for a probe that Spark could not run, if the reason is the Python of the executors.

    >>> print(explain_failure('Cannot run program "/opt/python": error=2, No such file or directory').fact)
    A worker could not be started: Cannot run program "/opt/python": error=2, No such file or directory
    >>> explain_failure("Job aborted: the disk is full")
    """
    for sign, rule, remedy in _FAILURES:
        line = next((line.strip() for line in text.splitlines() if sign in line), None)
        if line is not None:
            fact = f"A worker could not be started: {line[:300]}"
            return ExecutorUnfit(fact, rule=rule, remedy=f"{remedy} {_SWITCH}")
    return None


_SAME_PYTHON: Final = "Set spark.pyspark.python, or PYSPARK_PYTHON, to a path that has the driver's Python everywhere."
_FAILURES: Final = (
    (
        "PYTHON_VERSION_MISMATCH",
        f"Executors need the driver's minor version of Python, which is {sys.version_info[0]}.{sys.version_info[1]}.",
        _SAME_PYTHON,
    ),
    ("Cannot run program", "Spark starts workers with the Python at this path, on every machine.", _SAME_PYTHON),
    (
        "No module named",
        "Executors need the packages that the driver has.",
        INSTALL_REMEDY.format(version=floodmark_version()),
    ),
)


def _all_errors(kind: type[FloodmarkError]) -> Iterator[type[FloodmarkError]]:
    for one in kind.__subclasses__():
        yield one
        yield from _all_errors(one)
