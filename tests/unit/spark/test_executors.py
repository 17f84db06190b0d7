"""What the probe of the executors finds, and what it says."""

import json
import pickle
import sys
from pathlib import Path

import pytest
from pyspark import cloudpickle

from floodmark.control import Home
from floodmark.errors import ExecutorUnfit, HomeOutOfReach, KafkaAway
from floodmark.spark import worker_checks
from floodmark.spark.executors import SETTING, Needs, error_of_report, explain_failure, probe_function
from floodmark.spark.source.stream_reader import StreamReader
from floodmark.spark.source.stream_settings import StreamReadSettings
from floodmark.spark.watermark import mark_source
from floodmark.spark.worker_checks import examine_worker, floodmark_version


def pickled_probe(expected: str, needs: Needs) -> bytes:
    pickled: bytes = cloudpickle.dumps(probe_function(expected, needs))  # type: ignore[no-untyped-call]
    return pickled


def report(needs: Needs, expected: str | None = None) -> dict[str, object]:
    """Return what a worker reports that has got the function as Spark sends it."""
    probe = pickle.loads(pickled_probe(expected or floodmark_version(), needs))
    found: dict[str, object] = json.loads(probe(0))
    return found


def test_the_function_of_the_probe_needs_no_package_to_be_unpickled() -> None:
    pickled = pickled_probe("1.0", Needs("home", "one:9092", (("sasl.password", "x"),)))
    assert b"floodmark.spark.executors\n" not in pickled
    before = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "floodmark"}
    try:
        for name in before:
            sys.modules[name] = None  # type: ignore[assignment]
        found = json.loads(pickle.loads(pickled)(0))
    finally:
        sys.modules.update(before)
    error = error_of_report(found, "1.0")
    assert isinstance(error, ExecutorUnfit)
    assert "cannot import Floodmark" in error.fact
    assert 'pip install "floodmark==1.0"' in error.remedy
    assert SETTING in error.remedy
    assert error.fields["python"] == sys.executable


def test_a_worker_that_has_everything_reports_nothing(tmp_path: Path) -> None:
    with Home.open(tmp_path / "home") as home:
        found = report(Needs(home=home.location))
    assert found["problem"] is None
    assert error_of_report(found, floodmark_version()) is None


def test_a_task_looks_once_for_all_of_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def examine(*_: object) -> None:
        calls.append("examined")

    monkeypatch.setattr(worker_checks, "examine_worker", examine)
    probe = pickle.loads(pickled_probe("1.0", Needs()))
    assert len({probe(row) for row in range(64)}) == len(calls) == 1


def test_another_version_is_named_with_both_versions() -> None:
    error = error_of_report(report(Needs(), expected="0.0.1"), "0.0.1")
    assert isinstance(error, ExecutorUnfit)
    assert f"has Floodmark {floodmark_version()}, the driver has 0.0.1" in error.fact


def test_a_home_that_a_worker_cannot_see_is_out_of_reach(tmp_path: Path) -> None:
    error = error_of_report(report(Needs(home=str(tmp_path / "elsewhere"))), "")
    assert isinstance(error, HomeOutOfReach)
    assert str(tmp_path / "elsewhere") in error.fact
    assert "PostgreSQL" in error.remedy


def test_a_broker_that_a_worker_cannot_reach_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_checks, "_KAFKA_SECONDS", 0.2)
    problem = examine_worker(floodmark_version(), None, "127.0.0.1:1", {})
    error = error_of_report({"host": "w", "python": "p", "problem": problem}, "")
    assert isinstance(error, KafkaAway)
    assert error.fact.startswith("Python at p on w reports: Kafka at 127.0.0.1:1 failed")


def test_a_missing_dependency_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def import_module(name: str) -> None:
        raise ModuleNotFoundError("No module named 'sqlalchemy'")

    monkeypatch.setattr(worker_checks, "import_module", import_module)
    problem = examine_worker(floodmark_version(), None, None, {})
    error = error_of_report({"host": "w", "python": "p", "problem": problem}, "1.0")
    assert isinstance(error, ExecutorUnfit)
    assert error.fact == "Python at p on w cannot import Floodmark: No module named 'sqlalchemy'."


@pytest.mark.parametrize(
    ("text", "part"),
    [
        (
            "[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.12 than that in driver: 3.11, PySpark "
            "cannot run with different minor versions.",
            "3.12",
        ),
        ('java.io.IOException: Cannot run program "/opt/none": error=2, No such file or directory', "/opt/none"),
        ("Traceback:\n  ModuleNotFoundError: No module named 'pyspark'\n", "'pyspark'"),
    ],
)
def test_what_spark_says_of_another_python_gets_a_remedy(text: str, part: str) -> None:
    error = explain_failure(f"Job aborted due to stage failure\n{text}\n\tat java.lang.Thread")
    assert error is not None
    assert part in error.fact
    assert "\tat" not in str(error)


def test_another_failure_of_the_probe_is_not_explained_by_python() -> None:
    assert explain_failure("Job aborted: No space left on device") is None


def test_a_reader_of_another_version_is_refused_before_its_first_row(monkeypatch: pytest.MonkeyPatch) -> None:
    checked = pickle.dumps(StreamReader(StreamReadSettings("orders"), "home"))
    unchecked = pickle.dumps(StreamReader(StreamReadSettings("orders", check_workers=False), "home"))
    pickle.loads(checked)
    monkeypatch.setattr(worker_checks, "floodmark_version", lambda: "0.0.1")
    with pytest.raises(ExecutorUnfit, match=r"has Floodmark 0\.0\.1"):
        pickle.loads(checked)
    pickle.loads(unchecked)


def test_the_watermark_of_a_batch_cannot_be_read_where_the_home_is_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(mark_source, "current_batch", lambda: ("query", "run", 0))
    reader = mark_source.BatchWatermarkReader(str(tmp_path / "elsewhere"), "frame", "t")
    with pytest.raises(HomeOutOfReach, match="cannot reach the home"):
        next(reader.read(None))  # type: ignore[arg-type]
