"""The Kafka client layer: settings, topics and their ends, reading and writing records, and values as Arrow.

`KafkaSettings` says how to connect, `KafkaCluster` queries and changes topics, `Fetcher` reads a partition,
`TransactionalProducer` writes, `MarkRecord` is a record of a marks topic, `codecs` decodes and encodes values.
`streams`, `bindings`, `sinks` and `spark` import this room, and only when Kafka is used: it needs confluent-kafka
(`pip install "floodmark[kafka]"`). It imports only `errors` and `_util`. Start with `cluster`.
"""

from floodmark.errors import MissingPackage

try:
    import confluent_kafka as _client  # noqa: F401
except ImportError as error:
    raise MissingPackage(
        "The package confluent-kafka is not installed.",
        rule="Streams in Kafka and topics as sources need it.",
        remedy='Install it: pip install "floodmark[kafka]".',
        package="confluent-kafka",
    ) from error

from floodmark.kafka.cluster import KafkaCluster, TopicInfo
from floodmark.kafka.consumer import Fetcher, Records
from floodmark.kafka.mark_records import MarkRecord, marks_topic_of
from floodmark.kafka.producer import Fenced, TransactionalProducer
from floodmark.kafka.settings import KafkaSettings

__all__ = [
    "Fenced",
    "Fetcher",
    "KafkaCluster",
    "KafkaSettings",
    "MarkRecord",
    "Records",
    "TopicInfo",
    "TransactionalProducer",
    "marks_topic_of",
]
