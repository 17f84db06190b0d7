"""Errors of Kafka: its brokers, topics and records."""

from floodmark.errors._tree import StateError, UnknownName


class KafkaAway(StateError):
    """No broker has answered in time. What was asked for may be tried again."""

    code = "kafka-away"


class KafkaRefused(StateError):
    """A broker does not allow it, or does not know who asks."""

    code = "kafka-refused"


class KafkaFailed(StateError):
    """A broker, or Kafka's client, has said that something cannot be done."""

    code = "kafka-failed"


class UnknownTopic(UnknownName):
    """There is no such topic."""

    code = "unknown-topic"


class TopicTrimmed(StateError):
    """Records were to be read that the topic does not keep any more."""

    code = "topic-trimmed"


class TopicRecreated(StateError):
    """A topic was deleted and made anew: its offsets mean other records now."""

    code = "topic-recreated"
