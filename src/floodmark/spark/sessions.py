"""A local Spark session with settings for small streaming queries, and the check of which Spark is supported."""

import hashlib
import os
import re
import shutil
import site
import sys
import sysconfig
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Final

import pyspark
from pyspark import SparkConf, SparkContext
from pyspark import __version__ as CLIENT
from pyspark.errors import PySparkException
from pyspark.find_spark_home import _find_spark_home
from pyspark.sql import SparkSession

from floodmark.errors import InvalidOption, UnsupportedSpark
from floodmark.spark.given_settings import (
    APP_NAME,
    BIND_ADDRESS,
    DRIVER_HOST,
    JAVA_OPTIONS,
    MASTER,
    REMOTE,
    WORKER_PYTHON,
    choose_settings,
    is_local,
    read_given_settings,
)

Setting = str | int | float | bool

# Spark's code generator matches whole plans with a recursive regular expression: the usual 1 MB stack is too small.
_STACK_SIZE = "-Xss8m"
# A file, because setLogLevel on a running session is too late for the messages that Spark logs while it starts.
_QUIET_LOG = f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties').as_uri()}"
_STREAMING: Final = "org.apache.spark.sql.execution.streaming"
_SHUFFLE_PARTITIONS_AT_LEAST, _SHUFFLE_PARTITIONS_AT_MOST = 2, 4


def session(
    name: str | None = None, *, cores: int | None = None, conf: Mapping[str, Setting] | None = None
) -> SparkSession:
    """Start (or get) a Spark session, set up for streaming with small batches; by default on this machine.

    ```python
    from floodmark.spark import session

    spark = session("orders", cores=4, conf={"spark.sql.session.timeZone": "Europe/Lisbon"})
    ```

    The defaults: time zone UTC, the RocksDB state store, and in the driver's Java options an 8 MB stack and a log of
    errors only. On this machine also: workers run this Python interpreter, 2 to 4 shuffle partitions, a checkpoint
    manager that renames local files directly, the loopback interface only, and no web UI. `PYSPARK_PYTHON` is then set
    to the workers' interpreter unless it is set already. If no `SPARK_HOME` is set, Spark starts from a directory of
    links in the user's cache: its workers then import the installed, compiled pyspark, and not `pyspark.zip`.

    A setting that is given outside of the program wins over these defaults: by spark-submit or PYSPARK_SUBMIT_ARGS, in
    spark-defaults.conf, or by MASTER, SPARK_REMOTE, SPARK_LOCAL_IP, SPARK_LOCAL_HOSTNAME or PYSPARK_PYTHON.

    A process has one JVM. If a session is running already, it is returned with the settings that can still be changed,
    and a warning names the others.

    Args:
        name: The application name that Spark shows; "floodmark" if none is given elsewhere.
        cores: How many tasks run at the same time on this machine; 2 by default. A master that is given elsewhere wins.
        conf: Further Spark settings; they win over all others.

    Returns:
        The session. Stop it with `spark.stop()`.

    Raises:
        InvalidOption: `cores` is not a whole number of 1 or more.
    """
    if cores is not None and (isinstance(cores, bool) or not isinstance(cores, int) or cores < 1):
        raise InvalidOption(
            f"cores is {cores!r}.",
            rule="A local session needs a whole number of cores, 1 or more.",
            remedy="Pass cores=2, or leave it out.",
            option="cores",
            value=cores,
        )
    given = _given_settings()
    chosen = {key: _setting_text(value) for key, value in (conf or {}).items()}
    if name is not None or APP_NAME not in given:
        chosen[APP_NAME] = name or "floodmark"
    _warn_of_unused_cores(cores, given, chosen)
    settings = choose_settings(_defaults(), _local_defaults(cores or _CORES), given, chosen)
    known = {**given, **settings}
    # The Java options of a JVM that runs already cannot be changed.
    if REMOTE not in known and (JAVA_OPTIONS in chosen or not _is_jvm_running()):
        settings[JAVA_OPTIONS] = _complete_java_options(known.get(JAVA_OPTIONS, ""))
    if WORKER_PYTHON in known:
        os.environ["PYSPARK_PYTHON"] = known[WORKER_PYTHON]

    builder = SparkSession.builder
    for key, value in settings.items():
        builder = builder.config(key, value)
    with _spark_home_in_environment(_choose_spark_home(known)):
        spark = builder.getOrCreate()
    if spark_is_classic(spark):
        _warn_of_ignored_settings(spark, settings)
    return spark


_CORES: Final = 2


@cache
def _given_settings() -> dict[str, str]:
    """Return the settings that are given outside of the program.

    They are cached: after the first call, the running Spark also has the defaults of that call.
    """
    if SparkContext._active_spark_context is not None:
        return dict(SparkContext._active_spark_context.getConf().getAll())
    if _is_jvm_running():
        # spark-submit has read its command line and its files, and started the JVM.
        SparkContext._ensure_initialized()
        return dict(SparkConf().getAll())
    return read_given_settings(os.environ, Path(_find_spark_home()))


def _is_jvm_running() -> bool:
    return SparkContext._gateway is not None or "PYSPARK_GATEWAY_PORT" in os.environ


def spark_is_classic(spark: SparkSession) -> bool:
    """Return whether a session has a JVM of its own, and is not a client of Spark Connect."""
    return type(spark).__module__ == "pyspark.sql.session"


def _warn_of_unused_cores(cores: int | None, given: Mapping[str, str], chosen: Mapping[str, str]) -> None:
    master = chosen.get(MASTER, given.get(REMOTE, given.get(MASTER)))
    if cores is not None and master is not None and master != f"local[{cores}]":
        warnings.warn(f"cores={cores} has no effect: Spark runs on {master}, which is given elsewhere.", stacklevel=3)


def _defaults() -> dict[str, str]:
    return {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.streaming.stateStore.providerClass": f"{_STREAMING}.state.RocksDBStateStoreProvider",
        "spark.ui.showConsoleProgress": "false",
    }


def _local_defaults(cores: int) -> dict[str, str]:
    partitions = min(max(cores, _SHUFFLE_PARTITIONS_AT_LEAST), _SHUFFLE_PARTITIONS_AT_MOST)
    return {
        MASTER: f"local[{cores}]",
        WORKER_PYTHON: sys.executable,
        DRIVER_HOST: "127.0.0.1",
        BIND_ADDRESS: "127.0.0.1",
        "spark.sql.shuffle.partitions": str(partitions),
        # The default is 10,000 tasks, which is far too many for listing local files.
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": str(2 * cores),
        "spark.sql.streaming.checkpointFileManagerClass": (
            f"{_STREAMING}.checkpointing.FileSystemBasedCheckpointFileManager"
        ),
        "spark.ui.enabled": "false",
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


def _warn_of_ignored_settings(spark: SparkSession, settings: dict[str, str]) -> None:
    # spark.conf would show the requested value even of settings that only a new JVM could apply.
    started_with = spark.sparkContext.getConf()
    ignored = []
    for key, value in sorted(settings.items()):
        if key == APP_NAME:
            continue
        actual = spark.conf.get(key, None) if key.startswith("spark.sql.") else started_with.get(key)
        # Spark puts options of its own in front of the driver's Java options.
        is_applied = (actual or "").endswith(value) if key == JAVA_OPTIONS else actual == value
        if not is_applied:
            ignored.append(key)
    if ignored:
        warnings.warn(
            f"A Spark session was running already; it keeps its own {', '.join(ignored)}. "
            "Stop it first (spark.stop()), or start it with these settings.",
            stacklevel=3,
        )


_PYSPARK_ZIP: Final = "pyspark.zip"


def _choose_spark_home(settings: Mapping[str, str]) -> Path | None:
    """Return a Spark home without pyspark.zip for the JVM that this session starts; None to let PySpark choose.

    Spark puts `$SPARK_HOME/python/lib/pyspark.zip` first on the path of its Python workers. The zip has no compiled
    files, so every worker process compiles what it imports. Without the zip, workers import the installed package;
    that works only on this machine, with this interpreter, and with pyspark in its site-packages.
    """
    is_chosen_by_user = "SPARK_HOME" in os.environ or "SPARK_REMOTE" in os.environ
    if is_chosen_by_user or REMOTE in settings or _is_jvm_running() or os.name == "nt":
        return None
    if not is_local(settings[MASTER]) or shutil.which(settings[WORKER_PYTHON]) != sys.executable:
        return None
    package = Path(pyspark.__file__).parent.resolve()
    if str(package.parent) not in _site_directories() or not (package / "bin" / "spark-submit").is_file():
        return None
    if Path(_find_spark_home()).resolve() != package:
        return None
    return _linked_spark_home(package)


def _site_directories() -> set[str]:
    """Return the directories of installed packages, which a new process of this interpreter searches too."""
    directories = {*site.getsitepackages(), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    if site.ENABLE_USER_SITE:
        directories.add(site.getusersitepackages())
    return {os.path.realpath(directory) for directory in directories}


def _linked_spark_home(package: Path) -> Path | None:
    """Return a directory with links to everything in the package but pyspark.zip; None if it cannot be made.

    It is in the user's cache directory and is made once for each pyspark installation.
    """
    try:
        libraries = [path for path in (package / "python" / "lib").iterdir() if path.name != _PYSPARK_ZIP]
        entries = [path for path in package.iterdir() if path.name not in ("python", "__pycache__")]
        # "conf" is linked even if it is missing: the user may add it later.
        links = {path.relative_to(package): path for path in [*libraries, *entries, package / "conf"]}
        key = hashlib.sha256(repr((CLIENT, sorted(map(str, links.values())))).encode()).hexdigest()[:16]
        home = _cache_directory() / f"spark-home-{CLIENT}-{key}"
        if not home.exists():
            _make_links(home, links)
        is_complete = all(os.readlink(home / name) == str(target) for name, target in links.items())
    except (OSError, RuntimeError):
        # No home directory, a read-only one, or a file system without links.
        return None
    return home if is_complete else None


def _make_links(directory: Path, links: Mapping[Path, Path]) -> None:
    """Make a directory of links atomically: other processes see all of it or nothing."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory.parent, prefix=".spark-home-") as temporary:
        unfinished = Path(temporary) / "home"
        for name, target in links.items():
            link = unfinished / name
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(target)
        # Fails if another process was first; its directory has the same links.
        with suppress(OSError):
            unfinished.rename(directory)


def _cache_directory() -> Path:
    chosen = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (chosen if chosen.is_absolute() else Path.home() / ".cache") / "floodmark"


@contextmanager
def _spark_home_in_environment(home: Path | None) -> Iterator[None]:
    """Set SPARK_HOME while the JVM starts. It is removed again: other programs may have another pyspark."""
    if home is None:
        yield
        return
    os.environ["SPARK_HOME"] = str(home)
    try:
        yield
    finally:
        del os.environ["SPARK_HOME"]


_OLDEST_SPARK: Final = (4, 2)


def require_supported(spark: SparkSession) -> None:
    """Refuse a PySpark or a Spark server that is too old; warn once about a small driver stack."""
    check_version(CLIENT, "PySpark")
    check_version(spark.version, "Spark")
    _warn_of_small_stack(spark)


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
            rule=f"Floodmark needs {oldest} or newer: older versions lack sketches and read limits of Python sources.",
            remedy=f"Install pyspark>={oldest}, and the same version of Spark on the cluster.",
            what=what,
            version=version,
            oldest=oldest,
        )


def _warn_of_small_stack(spark: SparkSession) -> None:
    try:
        options = spark.conf.get("spark.driver.extraJavaOptions", "") or ""
    except PySparkException:
        return
    if "-Xss" not in options:
        _warn_of_stack_once()


@cache
def _warn_of_stack_once() -> None:
    warnings.warn(
        "This session's driver has Java's default stack size, which is too small for Spark to compile large streaming "
        "plans: it logs a long stack trace, and the query may fail. Set spark.driver.extraJavaOptions=-Xss8m before "
        "the session starts, or use floodmark.session().",
        stacklevel=5,
    )
