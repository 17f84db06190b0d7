"""What all tests share: names and a home for the examples in docstrings, and how hard property tests try."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

import floodmark.bindings
import floodmark.control
import floodmark.errors
import floodmark.kafka
import floodmark.progress
import floodmark.streams

settings.register_profile("floodmark", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("floodmark")

pytest_plugins = ["brokers", "homes"]


@pytest.fixture(autouse=True)
def _names_of_examples(doctest_namespace: dict[str, Any]) -> None:
    rooms = (floodmark.progress, floodmark.errors, floodmark.control, floodmark.kafka, floodmark.streams)
    for module in (*rooms, floodmark.bindings):
        doctest_namespace.update({name: getattr(module, name) for name in module.__all__})


@pytest.fixture(autouse=True)
def _home_of_examples(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    if not isinstance(request.node, pytest.DoctestItem):
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLOODMARK_HOME", str(tmp_path_factory.mktemp("examples") / "home"))
        yield
