"""What all tests share: names and a home for the examples in docstrings, and how hard property tests try."""

import importlib
import os
import pkgutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

import floodmark.bindings
import floodmark.control
import floodmark.delta
import floodmark.errors
import floodmark.ingest
import floodmark.kafka
import floodmark.progress
import floodmark.sinks
import floodmark.streams

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

settings.register_profile("floodmark", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("floodmark")

pytest_plugins = ["support.brokers", "support.homes"]

# Processes that tests start, those of Spark too, find the helpers.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")]))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that `make test-all` uses."""
    parser.addoption("--full", action="store_true", help="run every test on every backend, with all examples")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark each test with its tier, and leave out what only `--full` runs.

    A test that is written for several backends runs on SQLite if it lies in tests/unit, on all of them elsewhere.
    """
    left_out = []
    for item in items:
        folders = item.path.relative_to(TESTS).parts if TESTS in item.path.parents else ()
        params = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
        backends = {params.get("kind"), params.get("log")} & {"postgres", "http", "kafka"}
        for tier in {"spark", "crash"}.intersection(folders):
            item.add_marker(tier)
        needs_server = "integration" in folders and "sqlite" not in params.values()
        if needs_server or backends or SERVERS.intersection(getattr(item, "fixturenames", ())):
            item.add_marker("server")
        if backends and "unit" in folders and not config.getoption("full"):
            left_out.append(item)
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in set(left_out)]


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
