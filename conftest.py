"""What all tests share: names and a home for the examples in docstrings, and how hard property tests try."""

import importlib
import os
import pkgutil
import shutil
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

import floodmark.bindings
import floodmark.control
import floodmark.delta
import floodmark.errors
import floodmark.ingest
import floodmark.kafka
import floodmark.progress
import floodmark.sinks
import floodmark.streams
from support.examples import FULL, examples, is_full

ROOMS = (
    floodmark.progress,
    floodmark.errors,
    floodmark.control,
    floodmark.kafka,
    floodmark.delta,
    floodmark.streams,
    floodmark.bindings,
    floodmark.ingest,
    floodmark.sinks,
)

TESTS = Path(__file__).parent / "tests"
SERVERS = {"broker", "postgres", "exchange", "cluster"}
"""Fixtures that start a server."""

MEMORY = Path("/dev/shm")
"""Where Linux keeps files in memory."""

pytest_plugins = ["support.brokers", "support.homes"]

# Processes that tests start, those of Spark too, find the helpers.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")]))

# On a disk, tests of stores mostly wait for it. A process that is killed loses nothing that it wrote to memory either.
if "TMPDIR" not in os.environ and MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > 4 << 30:
    os.environ["TMPDIR"] = tempfile.tempdir = str(MEMORY)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that `make test-all` uses."""
    parser.addoption("--full", action="store_true", help="run every test on every backend, with all examples")


def pytest_configure(config: pytest.Config) -> None:
    """Tell the tests, here and in the workers of pytest-xdist, whether this run is a full one: how hard they try."""
    if config.getoption("full"):
        os.environ[FULL] = "1"
    settings.register_profile(
        "floodmark", max_examples=examples(100), deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )
    settings.load_profile("floodmark")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark each test with its tier, leave out what only `--full` runs, and put tests on Spark, the slowest, first.

    A test that is written for several backends runs on SQLite if it lies in tests/unit, on all of them elsewhere.
    A case that is marked `full` repeats a claim of one that always runs.
    """
    left_out = []
    for item in items:
        folders = item.path.relative_to(TESTS).parts if TESTS in item.path.parents else ()
        params = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
        backends = {params.get("kind"), params.get("log")} & {"postgres", "http", "kafka"}
        for tier in {"spark", "crash"}.intersection(folders):
            item.add_marker(tier)
        servers = SERVERS.intersection(getattr(item, "fixturenames", ()))
        if "integration" in folders or backends or servers:
            item.add_marker("server")
        if servers and "unit" in folders:
            raise pytest.UsageError(f"{item.nodeid} needs {servers}: it belongs in tests/integration")
        if not is_full() and (item.get_closest_marker("full") or (backends and "unit" in folders)):
            left_out.append(item)
    config.hook.pytest_deselected(items=left_out)
    unwanted = set(left_out)
    items[:] = [item for item in items if item not in unwanted]
    items.sort(key=lambda item: "spark" not in item.path.parts)


class Scheduler(LoadScopeScheduling):  # type: ignore[misc]  # pytest-xdist has no types.
    """Gives each process of pytest-xdist one file after the other, or one crash test.

    All tests on Spark run in one process, so that only one Spark is started; in a full run there are too many of them.
    """

    def _split_scope(self, nodeid: str) -> str:
        if nodeid.startswith("tests/crash/"):
            return nodeid
        return "spark" if nodeid.startswith("tests/spark/") and not is_full() else nodeid.partition("::")[0]


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Scheduler:
    """Tell pytest-xdist which tests run together, in the order in which they were collected."""
    config.option.loadscopereorder = False
    return Scheduler(config, log)


@cache
def _names_of_room(room: str) -> dict[str, Any]:
    """Return everything that the modules of a room define, or import from below, without an underscore."""
    package = importlib.import_module(f"floodmark.{room}")
    names: dict[str, Any] = {}
    for info in pkgutil.walk_packages(getattr(package, "__path__", ()), f"{package.__name__}."):
        if not info.name.startswith("floodmark.spark.") and not info.name.endswith(".__main__"):
            module = importlib.import_module(info.name)
            names |= {name: value for name, value in vars(module).items() if not name.startswith("_")}
    return names


@pytest.fixture(autouse=True)
def _names_of_examples(request: pytest.FixtureRequest, doctest_namespace: dict[str, Any]) -> None:
    """Let an example use all public names, and those of its own room; its own module's count first."""
    if not isinstance(request.node, pytest.DoctestItem):
        return
    doctest_namespace.clear()
    own, known = request.node.dtest.name.split(".")[1], request.node.dtest.globs
    for room in ROOMS:
        doctest_namespace.update({name: getattr(room, name) for name in room.__all__ if name not in known})
    doctest_namespace.update({name: value for name, value in _names_of_room(own).items() if name not in known})


@pytest.fixture(autouse=True)
def _home_of_examples(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    if not isinstance(request.node, pytest.DoctestItem):
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLOODMARK_HOME", str(tmp_path_factory.mktemp("examples") / "home"))
        yield
