"""Options of Kafka's client, and secrets that a file has."""

from pathlib import Path

import pytest

from floodmark.errors import InvalidOption
from floodmark.kafka import KafkaSettings


def test_a_secret_may_be_in_a_file_that_a_variable_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secret").write_text("hunter22\n")
    monkeypatch.setenv("FLOODMARK_KAFKA_SASL_PASSWORD_FILE", str(tmp_path / "secret"))
    settings = KafkaSettings.of("one:9092", {"kafka.sasl.username": "me"})
    assert settings.options == {"sasl.password": "hunter22", "sasl.username": "me"}
    assert settings.private_options() == {"kafka.sasl.password": "hunter22", "kafka.sasl.username": "me"}
    assert "hunter22" not in repr(settings)


def test_a_file_that_cannot_be_read_is_refused_with_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOODMARK_KAFKA_SSL_KEY_PASSWORD_FILE", "/nowhere/secret")
    with pytest.raises(InvalidOption, match="FLOODMARK_KAFKA_SSL_KEY_PASSWORD_FILE is '/nowhere/secret'") as refused:
        KafkaSettings.of("one:9092")
    assert "or set FLOODMARK_KAFKA_SSL_KEY_PASSWORD to the secret" in refused.value.remedy


def test_an_option_that_ends_in_file_and_is_no_secret_stays_an_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOODMARK_KAFKA_SASL_OAUTHBEARER_ASSERTION_PRIVATE_KEY_FILE", "/key.pem")
    assert KafkaSettings.of("one:9092").options == {"sasl.oauthbearer.assertion.private.key.file": "/key.pem"}
