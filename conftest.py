"""What all tests share: names for the examples in docstrings, and how hard property tests try."""

from typing import Any

import pytest
from hypothesis import HealthCheck, settings

import floodmark.errors
import floodmark.progress

settings.register_profile("floodmark", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("floodmark")


@pytest.fixture(autouse=True)
def _names_of_examples(doctest_namespace: dict[str, Any]) -> None:
    for module in (floodmark.progress, floodmark.errors):
        doctest_namespace.update({name: getattr(module, name) for name in module.__all__})
