"""A Kafka broker for the tests of every room."""

import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from floodmark.errors import FloodmarkError
from floodmark.kafka import KafkaCluster, KafkaSettings
from floodmark.kafka import cluster as _cluster
from floodmark.streams import StreamHome
from floodmark.testing import KafkaBroker
from support.kafka.kafka_homes import Opener, open_home


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


@pytest.fixture
def opening(broker: KafkaBroker, tmp_path: Path) -> Iterator[Opener]:
    """Give what opens the same home again, as another process would."""
    opened: list[StreamHome] = []

    def again(hook: Callable[[str], None] = lambda place: None) -> StreamHome:
        opened.append(open_home(str(tmp_path / "home"), broker.servers, hook))
        return opened[-1]

    yield again
    for home in opened:
        home.close()


@pytest.fixture
def short_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a request to a broker that is away fail after a second, and not after five."""
    monkeypatch.setattr(_cluster, "_REQUEST_SECONDS", 1.0)


@pytest.fixture
def cluster(broker: KafkaBroker) -> KafkaCluster:
    return KafkaCluster(KafkaSettings.of(broker.url))
