"""Errors of Kafka's client as errors of Floodmark, and which of them are worth a retry."""

import time
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from confluent_kafka import KafkaError, KafkaException

from floodmark.errors import FloodmarkError, InvalidOption, KafkaAway, KafkaFailed, KafkaRefused, UnknownTopic
from floodmark.kafka.settings import OPTION_PREFIX, KafkaSettings

T = TypeVar("T")

_AWAY: Final = {
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._TIMED_OUT,
    KafkaError._TIMED_OUT_QUEUE,
    KafkaError._MSG_TIMED_OUT,
    KafkaError._RESOLVE,
    # "No leaders found": a broker that has just come back.
    KafkaError._NOENT,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_ENOUGH_REPLICAS,
    KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    KafkaError.NETWORK_EXCEPTION,
    # A broker that has come back, and a client that has not heard of it.
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.OFFSET_NOT_AVAILABLE,
    KafkaError.KAFKA_STORAGE_ERROR,
    KafkaError.NOT_CONTROLLER,
    KafkaError.BROKER_NOT_AVAILABLE,
}
_REFUSED: Final = {
    KafkaError._AUTHENTICATION,
    KafkaError._SSL,
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
_UNKNOWN: Final = {KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION, KafkaError.UNKNOWN_TOPIC_OR_PART}


def is_unknown_partition(error: KafkaError) -> bool:
    """Return whether an error says that a topic or partition is not known, perhaps only not yet to this client."""
    # "No leaders found" is what it says of a partition that was added.
    return error.code() in _UNKNOWN or error.code() == KafkaError._NOENT


def await_partitions(client: Any, topic: str, partitions: int, seconds: float) -> None:
    """Let a client see that a topic has at least so many partitions; it looks by itself only every few minutes."""
    give_up = time.monotonic() + seconds
    while len(client.list_topics(topic, timeout=seconds).topics[topic].partitions) < partitions:
        if time.monotonic() > give_up:
            raise KafkaException(KafkaError(KafkaError._UNKNOWN_PARTITION))
        time.sleep(0.02)


class LastClientError:
    """Remembers what a client has said of its connections: an attempt that runs out of time does not say why."""

    __slots__ = ("error",)

    def __init__(self) -> None:
        self.error: KafkaError | None = None

    def __call__(self, error: KafkaError) -> None:
        """Keep the error; the client calls this as its error callback."""
        # That all brokers are down says less than what made them so.
        if error.code() != KafkaError._ALL_BROKERS_DOWN:
            self.error = error


def translate_error(
    error: KafkaError, doing: str, settings: KafkaSettings, said: KafkaError | None = None
) -> FloodmarkError:
    """Return the error for what went wrong while `doing` something; `said` is what the client said before."""
    if error.code() in _AWAY and said is not None and said.code() in _REFUSED:
        error = said
    reason = error.str() if said is None or said is error else f"{error.str()}; {said.str()}"
    fact = f"Kafka at {settings.servers} failed at {doing}: {reason}."
    fields: dict[str, Any] = {"servers": settings.servers, "doing": doing, "kafka_code": error.name()}
    if error.code() in _AWAY:
        rule = "A broker must answer in time; what was asked for may be asked again."
        return KafkaAway(fact, rule=rule, remedy="Check that the brokers run and can be reached.", **fields)
    if error.code() in _REFUSED:
        rule = "Kafka lets in whom it knows, and lets them do what they may."
        remedy = "Check the options kafka.security.protocol, kafka.sasl.* and kafka.ssl.*, and the rights of the user."
        return KafkaRefused(fact, rule=rule, remedy=remedy, **fields)
    if error.code() in _UNKNOWN:
        rule = "A topic is there before it is used."
        return UnknownTopic(fact, rule=rule, remedy="Check its name, or create it.", **fields)
    rule = "What a broker refuses for good is not tried again."
    return KafkaFailed(fact, rule=rule, remedy="See what it says.", **fields)


def new_client(kind: Callable[[dict[str, Any]], T], options: Mapping[str, Any], settings: KafkaSettings) -> T:
    """Return a new producer, consumer or admin client with these options, which are those of the settings and more."""
    try:
        return kind(dict(options))
    except KafkaException as error:
        raise invalid_client_option(error, settings) from error


def invalid_client_option(error: KafkaException, settings: KafkaSettings) -> InvalidOption:
    """Return the error for options that Kafka's client does not take."""
    known = error.args[0]
    reason = known.str() if isinstance(known, KafkaError) else str(known)
    for name, value in settings.options.items():
        # It repeats the value that it does not like, which may be a secret.
        reason = reason.replace(value, "***") if value and name in reason else reason
    return InvalidOption(
        f"Kafka's client does not take its options: {reason}.",
        rule=f"Options that begin with {OPTION_PREFIX} are those of librdkafka.",
        remedy="Check the option's name and value.",
    )


def retry_while_away(action: Callable[[], T], seconds: float) -> T:
    """Return what an action returns; while no broker answers, try again for so many seconds."""
    give_up = time.monotonic() + seconds
    pause = 0.05
    while True:
        try:
            return action()
        except KafkaAway:
            if time.monotonic() + pause > give_up:
                raise
            time.sleep(pause)
            pause = min(2 * pause, 1.0)
