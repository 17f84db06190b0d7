"""A Kafka broker for the tests of every room."""

import os
import uuid
from collections.abc import Iterator

import pytest

from floodmark.errors import FloodmarkError
from floodmark.testing import KafkaBroker


@pytest.fixture(scope="session")
def broker() -> Iterator[KafkaBroker]:
    """Give a broker that is started when the first test asks for it; nobody may kill this one."""
    broker = KafkaBroker()
    try:
        broker.start()
    except FloodmarkError as error:
        if os.environ.get("FLOODMARK_REQUIRE_KAFKA") == "1":
            raise
        pytest.skip(f"NO KAFKA BROKER, ITS TESTS ARE LEFT OUT: {error}")
    yield broker
    broker.stop()


@pytest.fixture
def topic_name() -> str:
    """Give a name that no topic has."""
    return f"topic-{uuid.uuid4().hex[:12]}"
