"""A broker that asks who is there, and looks at what each may do; and secrets, which nobody gets to see."""

import pickle
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from floodmark.bindings import BoundTopics
from floodmark.control import Home
from floodmark.errors import FloodmarkError, InvalidOption, KafkaRefused
from floodmark.kafka import Fetcher, KafkaCluster, KafkaSettings
from floodmark.streams import connect
from floodmark.testing import KafkaBroker
from support.kafka.kafka_homes import numbers_in

SECRET = "kept-to-itself"
USERS = {"admin": SECRET, "reader": "reader-secret", "nobody": "nobody-secret"}


@pytest.fixture(scope="module")
def guarded() -> Iterator[KafkaBroker]:
    """Give a broker that lets in some users, of whom one may do everything."""
    with KafkaBroker(users=USERS) as broker:
        yield broker


def options(user: str, password: str | None = None) -> dict[str, str]:
    return {
        "kafka.security.protocol": "SASL_PLAINTEXT",
        "kafka.sasl.mechanism": "PLAIN",
        "kafka.sasl.username": user,
        "kafka.sasl.password": password or USERS[user],
    }


def allow(broker: KafkaBroker, user: str, topic: str, *operations: AclOperation) -> None:
    admin = AdminClient(KafkaSettings.of(broker.url, options("admin")).client())
    here = (ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, f"User:{user}", "*")
    rules = [AclBinding(*here, operation, AclPermissionType.ALLOW) for operation in operations]
    for done in admin.create_acls(rules).values():
        done.result()


def test_who_may_do_everything_writes_and_reads_a_stream(guarded: KafkaBroker, tmp_path: Path) -> None:
    with connect(tmp_path / "home", log=guarded.url, log_options=options("admin"), controller=False) as home:
        stream = home.create_stream("s", segments=2)
        with stream.writer("w") as writer, stream.transactional_writer("t") as till:
            writer.write_batch([1, 2, 3])
            transaction = till.begin()
            transaction.write(4)
            transaction.commit(time=1)
        stream.split(0)
        assert sorted(numbers_in(stream)) == [1, 2, 3, 4]
    for file in (tmp_path / "home").iterdir():
        assert SECRET.encode() not in file.read_bytes(), "no secret is stored"


def test_options_may_come_from_variables(guarded: KafkaBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in options("admin").items():
        monkeypatch.setenv("FLOODMARK_" + name.upper().replace(".", "_"), value)
    monkeypatch.setenv("FLOODMARK_LOG", guarded.url)
    with connect(tmp_path / "home", controller=False) as home:
        assert home.create_stream("s").info.log is not None


@pytest.mark.parametrize(
    "given", [options("admin", "wrong-secret"), options("stranger", "x-secret"), {}], ids=["password", "user", "none"]
)
def test_who_is_not_known_is_told_so_soon_and_sees_no_secret(guarded: KafkaBroker, given: dict[str, str]) -> None:
    cluster = KafkaCluster(KafkaSettings.of(guarded.url, given), patience=2)
    began = time.monotonic()
    with pytest.raises(FloodmarkError) as refusal:
        cluster.topics()
    assert time.monotonic() - began < 20
    assert refusal.value.code in ("kafka-refused", "kafka-away")
    assert not given or isinstance(refusal.value, KafkaRefused)
    assert "secret" not in str(refusal.value) + repr(refusal.value.fields)


def test_who_may_not_create_a_topic_is_told_so_and_no_stream_is_left(guarded: KafkaBroker, tmp_path: Path) -> None:
    with connect(tmp_path / "home", log=guarded.url, log_options=options("nobody"), controller=False) as home:
        with pytest.raises(KafkaRefused, match="creating the topic"):
            home.create_stream("s")
        assert home.streams() == []


def test_who_may_only_look_at_a_topic_may_not_read_it(guarded: KafkaBroker, topic_name: str) -> None:
    KafkaCluster(KafkaSettings.of(guarded.url, options("admin"))).create_topic(topic_name, 1, {})
    allow(guarded, "reader", topic_name, AclOperation.DESCRIBE)
    fetcher = Fetcher(KafkaSettings.of(guarded.url, options("reader")), patience=5)
    with pytest.raises(KafkaRefused, match=topic_name):
        list(fetcher.read(topic_name, 0, 0, 1))


def test_who_may_read_a_topic_but_not_its_settings_reads_it_with_a_warning(
    guarded: KafkaBroker, topic_name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    KafkaCluster(KafkaSettings.of(guarded.url, options("admin"))).create_topic(topic_name, 1, {})
    allow(guarded, "reader", topic_name, AclOperation.DESCRIBE, AclOperation.READ)
    cluster = KafkaCluster(KafkaSettings.of(guarded.url, options("reader")))
    with Home.open(tmp_path / "home") as home:
        assert BoundTopics(home, cluster, [topic_name], marks="ignore").tick(at_once=True).ends == {}
    (record,) = caplog.records
    assert record.getMessage().startswith(f"The cleanup policy of the topic {topic_name!r} is unknown")


def test_who_may_not_write_is_told_so_at_the_flush(guarded: KafkaBroker, tmp_path: Path) -> None:
    with connect(tmp_path / "home", log=guarded.url, log_options=options("admin"), controller=False) as home:
        place = home.create_stream("s").info.log
    assert place is not None
    allow(guarded, "reader", place.topic, AclOperation.READ, AclOperation.DESCRIBE)
    with connect(tmp_path / "home", log_options=options("reader"), controller=False) as home:
        stream = home.stream("s")
        writer = stream.writer("w")
        writer.write(1)
        with pytest.raises(KafkaRefused):
            writer.flush()
        assert numbers_in(stream) == []


def test_no_secret_is_shown() -> None:
    settings = KafkaSettings.of("kafka://host:1", {**options("admin"), "kafka.ssl.key.pem": SECRET})
    assert SECRET not in repr(settings) + str(settings) + settings.url + f"{settings}"
    assert "sasl.username=admin" in repr(settings)
    assert pickle.loads(pickle.dumps(settings)) == settings


@pytest.mark.parametrize(
    ("option", "value"),
    [("kafka.sasl.pasword", SECRET), ("kafka.security.protocol", "NOTHING"), ("kafka.acks", "many")],
)
def test_an_option_that_kafkas_client_does_not_take_is_refused_without_its_value(option: str, value: str) -> None:
    with pytest.raises(InvalidOption) as refusal:
        Fetcher(KafkaSettings.of("kafka://127.0.0.1:1", {option: value}))._borrow_consumer()
    assert SECRET not in str(refusal.value)


def test_an_option_of_javas_client_is_refused_with_the_one_to_use() -> None:
    with pytest.raises(InvalidOption, match=r"kafka\.sasl\.username"):
        KafkaSettings.of("host:1", {"kafka.sasl.jaas.config": f'password="{SECRET}"'})
