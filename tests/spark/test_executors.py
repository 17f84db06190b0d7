"""The probe of the executors is a real job, and runs once for a session and what a query needs."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from floodmark.control import Home
from floodmark.errors import HomeOutOfReach
from floodmark.spark import executors
from floodmark.spark.executors import SETTING, Needs, require_executors


@pytest.fixture(autouse=True)
def as_on_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the probe run, which a local session does not need."""
    monkeypatch.setattr(executors, "_runs_in_this_process", lambda spark: False)


def test_executors_that_have_everything_are_probed_once(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Home.open(tmp_path / "home") as home:
        needs = Needs(home=home.location)
    require_executors(spark, needs)
    monkeypatch.setattr(executors, "probe_function", None)
    require_executors(spark, needs)


def test_a_home_that_executors_cannot_see_is_refused_unless_the_check_is_off(
    spark: SparkSession, tmp_path: Path
) -> None:
    needs = Needs(home=str(tmp_path / "elsewhere"))
    with pytest.raises(HomeOutOfReach, match=r"reports: A task on .* cannot reach the home") as refused:
        require_executors(spark, needs)
    assert f"Set {SETTING}=false" in refused.value.remedy
    spark.conf.set(SETTING, "false")
    try:
        require_executors(spark, needs)
    finally:
        spark.conf.unset(SETTING)
