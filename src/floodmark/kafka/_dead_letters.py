"""Records that could not be decoded, sent to a topic of their own with where they came from and why."""

from collections.abc import Iterable
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Producer

from floodmark.kafka._failures import LastError, failure, new_client
from floodmark.kafka._settings import KafkaSettings

_PATIENCE_SECONDS: Final = 60.0


class DeadLetters:
    """Sends records on. What `send` has returned from is in the topic; a task that runs again sends it again.

    A record keeps its key, value, time and headers, and gets the headers topic, partition, offset and reason.
    """

    def __init__(self, settings: KafkaSettings, topic: str, *, patience: float = _PATIENCE_SECONDS) -> None:
        """Send to this topic."""
        self._settings = settings
        self._topic = topic
        self._patience = patience
        self._said = LastError()
        own = {"acks": "all", "enable_idempotence": True, "message_timeout_ms": int(1000 * patience)}
        self._producer = new_client(Producer, {**settings.client(**own), "error_cb": self._said}, settings)

    def send(self, letters: Iterable[tuple[Any, str]]) -> None:
        """Send records, each with the reason why, and return when the brokers have them."""
        refused: list[KafkaError] = []

        def told(error: KafkaError | None, _: object) -> None:
            if error is not None:
                refused.append(error)

        for record, reason in letters:
            about = {
                "topic": record.topic(),
                "partition": str(record.partition()),
                "offset": str(record.offset()),
                "reason": reason,
            }
            headers = [*(record.headers() or ()), *((name, text.encode()) for name, text in about.items())]
            kind, millis = record.timestamp()
            self._produce(record, headers, millis if kind else 0, told)
        left = self._producer.flush(self._patience)
        if refused or left:
            error = refused[0] if refused else KafkaError(KafkaError._TIMED_OUT)
            raise failure(error, f"sending records to the topic {self._topic}", self._settings, self._said.error)

    def _produce(self, record: Any, headers: list[Any], millis: int, told: Any) -> None:
        while True:
            try:
                self._producer.produce(
                    self._topic, record.value(), record.key(), headers=headers, timestamp=millis, on_delivery=told
                )
            except BufferError:
                self._producer.poll(0.1)
            except KafkaException as error:
                doing = f"sending records to the topic {self._topic}"
                raise failure(error.args[0], doing, self._settings, self._said.error) from error
            else:
                self._producer.poll(0)
                return
