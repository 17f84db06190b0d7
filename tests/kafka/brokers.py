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


@pytest.fixture
def log_in_kafka(broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the events of streams that are created be in Kafka, whoever creates them."""
    monkeypatch.setenv("FLOODMARK_LOG", broker.url)


@pytest.fixture(params=["home", "kafka"])
def log(request: pytest.FixtureRequest) -> str:
    """Run a test twice: with events in the home, and in Kafka."""
    if request.param == "kafka":
        request.getfixturevalue("log_in_kafka")
    return str(request.param)
