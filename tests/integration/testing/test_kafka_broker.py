"""What is needed to start a Kafka broker, and what is said where it is missing."""

from pathlib import Path

import pytest

from floodmark.errors import ServerNotStarted
from floodmark.testing import KafkaBroker
from floodmark.testing.kafka import find_java


def test_a_home_of_java_that_is_set_to_nothing_is_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    found = find_java()
    monkeypatch.setenv("JAVA_HOME", "")
    assert find_java() == found


def test_without_java_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ServerNotStarted, match="Java 17"):
        find_java()


def test_a_broker_that_does_not_run_has_no_address() -> None:
    with pytest.raises(ServerNotStarted):
        _ = KafkaBroker().url
