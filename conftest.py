"""What all tests share: names and a home for the examples in docstrings, and how hard property tests try."""

import importlib
import pkgutil
from collections.abc import Iterator
from functools import cache
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

settings.register_profile("floodmark", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("floodmark")

pytest_plugins = ["brokers", "homes"]


@cache
def _names_of_room(room: str) -> dict[str, Any]:
    """Return everything that the modules of a room define, or import from below, without an underscore."""
    package = importlib.import_module(f"floodmark.{room}")
    names: dict[str, Any] = {}
    for info in pkgutil.walk_packages(getattr(package, "__path__", ()), f"{package.__name__}."):
        if not info.name.startswith("floodmark.spark."):
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
