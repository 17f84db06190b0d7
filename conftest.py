"""What all tests share: names and a home for the examples in docstrings, and how hard property tests try."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

import floodmark.bindings
import floodmark.control
import floodmark.delta
import floodmark.errors
import floodmark.extract
import floodmark.ingest
import floodmark.kafka
import floodmark.landing
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
    floodmark.extract,
    floodmark.landing,
    floodmark.sinks,
)

settings.register_profile("floodmark", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("floodmark")

pytest_plugins = ["brokers", "homes"]


@pytest.fixture(autouse=True)
def _names_of_examples(request: pytest.FixtureRequest, doctest_namespace: dict[str, Any]) -> None:
    """Let an example use all public names; where two rooms have the same one, its own module's or room's counts."""
    if not isinstance(request.node, pytest.DoctestItem):
        return
    doctest_namespace.clear()
    own, known = request.node.dtest.name.split(".")[1], request.node.dtest.globs
    for room in sorted(ROOMS, key=lambda room: room.__name__.endswith(f".{own}")):
        doctest_namespace.update({name: getattr(room, name) for name in room.__all__ if name not in known})


@pytest.fixture(autouse=True)
def _home_of_examples(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    if not isinstance(request.node, pytest.DoctestItem):
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLOODMARK_HOME", str(tmp_path_factory.mktemp("examples") / "home"))
        yield
