"""Translates errors of the Kafka client into errors of Floodmark, and retries those that are temporary."""

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
    # "No leaders found": a broker that is just restarting.
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
    # A broker has restarted, and the client still has old metadata.
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
    """Return whether an error says that a topic or partition does not exist, perhaps only not yet for this client."""
    # "No leaders found" is reported for a partition that was just added.
    return error.code() in _UNKNOWN or error.code() == KafkaError._NOENT


def await_partitions(client: Any, topic: str, partitions: int, seconds: float) -> None:
    """Wait until the client sees at least this many partitions; by itself it refreshes only every few minutes."""
    deadline = time.monotonic() + seconds
    while len(client.list_topics(topic, timeout=seconds).topics[topic].partitions) < partitions:
        if time.monotonic() > deadline:
            raise KafkaException(KafkaError(KafkaError._UNKNOWN_PARTITION))
        time.sleep(0.02)


class LastClientError:
    """The last error of a client's connections. A request that times out does not say why; this does."""

    __slots__ = ("error",)

    def __init__(self) -> None:
        self.error: KafkaError | None = None

    def __call__(self, error: KafkaError) -> None:
        """Store the error; the client calls this as its error callback."""
        # "All brokers down" hides the reason why.
        if error.code() != KafkaError._ALL_BROKERS_DOWN:
            self.error = error


def translate_error(
    error: KafkaError, doing: str, settings: KafkaSettings, client_error: KafkaError | None = None
) -> FloodmarkError:
    """Return the Floodmark error for a Kafka error while `doing` something; `client_error` may tell the real cause."""
    if error.code() in _AWAY and client_error is not None and client_error.code() in _REFUSED:
        error = client_error
    reason = error.str()
    if client_error is not None and client_error is not error:
        reason += f"; {client_error.str()}"
    fact = f"Kafka at {settings.servers} failed at {doing}: {reason}."
    fields: dict[str, Any] = {"servers": settings.servers, "doing": doing, "kafka_code": error.name()}
    if error.code() in _AWAY:
        rule = "A broker must answer within the timeout. The request can be retried."
        return KafkaAway(fact, rule=rule, remedy="Check that the brokers run and can be reached.", **fields)
    if error.code() in _REFUSED:
        rule = "Kafka requires authentication and authorization of the user."
        remedy = "Check the options kafka.security.protocol, kafka.sasl.* and kafka.ssl.*, and the ACLs of the user."
        return KafkaRefused(fact, rule=rule, remedy=remedy, **fields)
    if error.code() in _UNKNOWN:
        rule = "A topic must exist before it is used."
        return UnknownTopic(fact, rule=rule, remedy="Check the topic's name, or create it.", **fields)
    rule = "This error is not temporary, so the request is not retried."
    remedy = f"Look for {error.name()} in the brokers' logs, correct what it names, and try again."
    return KafkaFailed(fact, rule=rule, remedy=remedy, **fields)


def new_client(kind: Callable[[dict[str, Any]], T], options: Mapping[str, Any], settings: KafkaSettings) -> T:
    """Return a new producer, consumer or admin client; raise InvalidOption if it does not accept the options."""
    try:
        return kind(dict(options))
    except KafkaException as error:
        raise invalid_client_option(error, settings) from error


def invalid_client_option(error: KafkaException, settings: KafkaSettings) -> InvalidOption:
    """Return the error for options that the Kafka client does not accept."""
    cause = error.args[0]
    reason = cause.str() if isinstance(cause, KafkaError) else str(cause)
    for name, value in settings.options.items():
        # The message repeats the value, which may be a secret.
        reason = reason.replace(value, "***") if value and name in reason else reason
    return InvalidOption(
        f"The Kafka client does not accept its options: {reason}.",
        rule=f"Options that begin with {OPTION_PREFIX} are passed to librdkafka.",
        remedy="Correct the option's name or value as in librdkafka's CONFIGURATION.md.",
    )


def retry_while_away(action: Callable[[], T], seconds: float) -> T:
    """Return the result of an action, retrying it for up to `seconds` while no broker answers."""
    deadline = time.monotonic() + seconds
    pause = 0.05
    while True:
        try:
            return action()
        except KafkaAway:
            if time.monotonic() + pause > deadline:
                raise
            time.sleep(pause)
            pause = min(2 * pause, 1.0)
