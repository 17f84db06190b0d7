"""The session's defaults reach Spark, and the user's settings win."""

import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pyspark
import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from floodmark.errors import InvalidOption
from floodmark.spark import session
from floodmark.spark import sessions as _session
from support.spark.spark_feed import SHORT_LIVED, SMALL_BATCHES


def test_the_defaults_are_in_force(spark: SparkSession) -> None:
    # The session of the tests was started with settings for small batches.
    small = {key: spark.conf.get(key) for key in SMALL_BATCHES}
    assert session(conf=SHORT_LIVED) is spark
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
    for key, value in small.items():
        spark.conf.set(key, str(value))


def test_workers_run_this_interpreter(spark: SparkSession) -> None:
    interpreter = F.udf(lambda _: sys.executable, "string")
    assert spark.range(1).select(interpreter("id")).first()[0] == sys.executable  # type: ignore[index]


@pytest.mark.skipif("SPARK_HOME" in os.environ, reason="Spark starts from the home that the user has set")
def test_workers_import_the_installed_pyspark_and_not_its_zip(spark: SparkSession) -> None:
    location = F.udf(lambda _: [__import__("pyspark").__file__, os.environ["SPARK_HOME"]], "array<string>")
    imported, home = spark.range(1).select(location("id")).first()[0]  # type: ignore[index]
    assert imported == pyspark.__file__
    assert Path(home).name.startswith("spark-home-")
    assert "SPARK_HOME" not in os.environ


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an installed pyspark with only the parts that a Spark home is made of; its cache is in tmp_path too."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    package = tmp_path / "pyspark"
    for name in ("bin/spark-submit", "jars/spark.jar", "python/lib/py4j-src.zip", "python/lib/pyspark.zip", "util.py"):
        path = package / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return package


def test_a_linked_home_has_everything_but_the_zip_of_pyspark(package: Path, tmp_path: Path) -> None:
    home = _session._linked_spark_home(package)
    assert home is not None
    assert home.parent == tmp_path / "cache" / "floodmark"
    assert sorted(path.name for path in home.iterdir()) == ["bin", "conf", "jars", "python", "util.py"]
    assert [path.name for path in (home / "python" / "lib").iterdir()] == ["py4j-src.zip"]
    assert (home / "bin" / "spark-submit").read_text() == "bin/spark-submit"
    (package / "conf").mkdir()
    (package / "conf" / "spark-defaults.conf").touch()
    assert (home / "conf" / "spark-defaults.conf").is_file()
    assert [path.name for path in home.parent.iterdir()] == [home.name]


def test_a_linked_home_is_made_once_for_an_installation(package: Path) -> None:
    home = _session._linked_spark_home(package)
    assert home is not None
    made = home.stat().st_mtime_ns
    assert _session._linked_spark_home(package) == home
    assert home.stat().st_mtime_ns == made
    (package / "sbin").mkdir()
    assert _session._linked_spark_home(package) not in (None, home)


def test_a_home_that_was_tampered_with_is_not_used(package: Path) -> None:
    home = _session._linked_spark_home(package)
    assert home is not None
    (home / "bin").unlink()
    (home / "bin").symlink_to("/elsewhere")
    assert _session._linked_spark_home(package) is None


def test_where_no_links_can_be_made_pyspark_chooses_the_home(package: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").touch()
    assert _session._linked_spark_home(package) is None


def test_two_processes_may_make_the_same_home(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rename = Path.rename

    def rename_second(self: Path, target: Path) -> Path:
        monkeypatch.setattr(Path, "rename", rename)
        assert _session._linked_spark_home(package) == target
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", rename_second)
    home = _session._linked_spark_home(package)
    assert home is not None
    assert [path.name for path in home.parent.iterdir()] == [home.name]


def set_variable(name: str) -> Callable[[pytest.MonkeyPatch, dict[str, str]], None]:
    return lambda patch, settings: patch.setenv(name, "1")


@pytest.mark.parametrize(
    "change",
    [
        set_variable("SPARK_HOME"),
        set_variable("SPARK_REMOTE"),
        set_variable("PYSPARK_GATEWAY_PORT"),
        lambda patch, settings: patch.setattr(SparkContext, "_gateway", object()),
        lambda patch, settings: settings.update({"spark.master": "spark://127.0.0.1:7077"}),
        lambda patch, settings: settings.update({"spark.master": "yarn"}),
        lambda patch, settings: settings.update({"spark.pyspark.python": "/usr/bin/env"}),
        lambda patch, settings: patch.setattr(_session, "_site_directories", set),
    ],
    ids=["home", "remote", "gateway", "running", "standalone", "yarn", "interpreter", "not-installed"],
)
def test_the_users_home_other_masters_and_other_interpreters_keep_the_zip(
    package: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[pytest.MonkeyPatch, dict[str, str]], None]
) -> None:
    for name in ("SPARK_HOME", "SPARK_REMOTE", "PYSPARK_GATEWAY_PORT", "PYSPARK_PYTHON"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(SparkContext, "_gateway", None)
    settings = _session._local_defaults(2)
    assert _session._choose_spark_home(settings) is not None
    change(monkeypatch, settings)
    assert _session._choose_spark_home(settings) is None


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
    assert _session._local_defaults(cores)["spark.sql.shuffle.partitions"] == partitions
