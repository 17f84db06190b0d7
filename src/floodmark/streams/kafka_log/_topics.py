"""The topics of streams: made before a stream is, and removed after it."""

from floodmark.kafka import marks_topic_of
from floodmark.streams._log_place import LogPlace, topic_of
from floodmark.streams.kafka_log._connections import TOPIC_SETTINGS, Connections


class StreamTopics:
    """Makes the topics of new streams, and removes those of streams that are no more."""

    def __init__(self, connections: Connections) -> None:
        """Use these connections."""
        self._connections = connections

    def make(self, servers: str, name: str, stream_id: int, segments: int) -> LogPlace:
        """Make the topic of a new stream, and one for its marks; what an earlier attempt has made is used."""
        cluster = self._connections.to(servers).cluster
        topic = topic_of(name, stream_id)
        made = cluster.create_topic(topic, segments, TOPIC_SETTINGS)
        cluster.create_topic(marks_topic_of(topic), 1, TOPIC_SETTINGS)
        return LogPlace(servers, topic, made.id)

    def remove(self, place: LogPlace) -> None:
        """Remove the topics of a stream that is no more."""
        names = [place.topic, marks_topic_of(place.topic)]
        self._connections.to(place.servers).cluster.delete_topics(names)
