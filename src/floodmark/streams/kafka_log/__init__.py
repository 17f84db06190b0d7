"""Kafka as the log of streams: a topic a stream, a partition a segment, an event a record.

Kafka cannot seal a partition, and has no word that a writer id is used once. What makes up for that:

| module | holds |
|---|---|
| `_records` | what a record says of its writer, and what ends a segment |
| `_sending` | records arrive once and in order, as long as this process lives |
| `_settling` | a flush counts if its segments are open after Kafka has it; what a crash has left is found again |
| `_sealing` | a segment ends where the store says, which asks Kafka for a place behind all that counts |
| `_committing` | a transaction is written by whoever commits it, and is all in Kafka or not at all |
| `_marks_topic` | the marks log for everybody who reads Kafka |
"""

from floodmark.streams.kafka_log._connections import Connections
from floodmark.streams.kafka_log._log import KafkaLog
from floodmark.streams.kafka_log._marks_topic import MarksPublisher
from floodmark.streams.kafka_log._topics import StreamTopics

__all__ = ["Connections", "KafkaLog", "MarksPublisher", "StreamTopics"]
