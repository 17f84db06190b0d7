"""Kafka, as the rooms above need it: settings with their secrets, topics and their ends, records, and values as Arrow.

| name | does |
|---|---|
| `KafkaSettings` | where a cluster is, and how to get in |
| `KafkaCluster` | asks and changes a cluster: topics, partitions, where they begin and end |
| `Fetcher` | reads records of a partition |
| `TransactionalProducer` | writes records that are seen together, or never |
| `MarkRecord` | a record of a marks topic, which tells how far time has come in the topic beside it |

The client is confluent-kafka, which comes with `pip install "floodmark[kafka]"`.
"""

from floodmark.errors import MissingPackage

try:
    import confluent_kafka as _client  # noqa: F401
except ImportError as error:
    raise MissingPackage(
        "There is no client for Kafka: the package confluent-kafka is not installed.",
        rule="Events in Kafka, and topics as sources, need it.",
        remedy='Install it: pip install "floodmark[kafka]".',
        package="confluent-kafka",
    ) from error

from floodmark.kafka._cluster import KafkaCluster, TopicInfo
from floodmark.kafka._fetch import Fetcher, Records
from floodmark.kafka._json_decode import JsonDecoder
from floodmark.kafka._json_encode import encode_json
from floodmark.kafka._mark_records import MarkRecord, marks_topic_of
from floodmark.kafka._settings import KafkaSettings
from floodmark.kafka._transactions import Fenced, TransactionalProducer

__all__ = [
    "Fenced",
    "Fetcher",
    "JsonDecoder",
    "KafkaCluster",
    "KafkaSettings",
    "MarkRecord",
    "Records",
    "TopicInfo",
    "TransactionalProducer",
    "encode_json",
    "marks_topic_of",
]
