"""The fixtures of this folder: one Spark for all of its tests, and what lets drivers of their own start faster."""

from pathlib import Path

import pytest

from support.spark.class_archive import make_archive
from support.spark.fixtures import *  # noqa: F403 - pytest finds fixtures by their names

FEW_TESTS = 3
"""The archive takes as long to make as it spares in about four of these tests."""


@pytest.fixture(scope="session", autouse=True)
def _class_archive(request: pytest.FixtureRequest) -> None:
    here = [item for item in request.session.items if Path(__file__).parent in item.path.parents]
    if len(here) > FEW_TESTS:
        make_archive()
