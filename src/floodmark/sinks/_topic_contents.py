"""What is in the topics of a sink when it begins."""

from floodmark.kafka import Fetcher, KafkaCluster, MarkRecord
from floodmark.sinks._progress import SinkMark


def has_records(cluster: KafkaCluster, topic: str, partitions: int) -> bool:
    """Return whether a topic has any record that is committed: what was aborted does not count."""
    starts, ends = cluster.starts(topic, range(partitions)), cluster.ends(topic, range(partitions))
    fetcher = Fetcher(cluster.settings)
    try:
        return any(any(fetcher.read(topic, part, starts[part], end)) for part, end in ends.items())
    finally:
        fetcher.close()


def read_marks(cluster: KafkaCluster, topic: str) -> dict[str, SinkMark]:
    """Return what a marks topic tells of each key: whoever begins there goes on counting."""
    (start,), (end,) = cluster.starts(topic, [0]).values(), cluster.ends(topic, [0]).values()
    fetcher, found = Fetcher(cluster.settings), {}
    try:
        for records in fetcher.read(topic, 0, start, end):
            for record in records:
                told = MarkRecord.load(record.value() or b"")
                if told.lower is not None:
                    found[told.key] = SinkMark(told.lower, told.seq)
    finally:
        fetcher.close()
    return found
