"""The way of a flush into Kafka, which may go on to other segments while it is under way."""

from typing import Any

import numpy as np

from floodmark.streams._catalog import StreamInfo
from floodmark.streams._events import Events
from floodmark.streams._log import Author
from floodmark.streams.kafka_log._records import NUMBER, keys_and_values, number_prefix
from floodmark.streams.kafka_log._sending import Flight, Outgoing
from floodmark.streams.kafka_log._settling import Numbers


class Way:
    """The way of a flush: what is left of it, where that goes by the layout that is known, and what is in flight."""

    def __init__(self, stream: StreamInfo, events: Events, left: Any) -> None:
        self.stream = stream
        self.events = events
        self.keys, self.values = keys_and_values(stream, events)
        self.left = left
        self.ends: dict[int, int] = {}
        self.flight: Flight | None = None
        self._segments = events.segments(stream.layout)

    @property
    def is_left(self) -> bool:
        """Whether some of it has not arrived."""
        return bool(self.left.any())

    def records(self, author: Author, first_number: int) -> Outgoing:
        """Return what is left as records, in the order of the events."""
        prefix = number_prefix(author)
        places = np.flatnonzero(self.left)
        keys, values = self.keys, self.values
        if len(places) < len(self.left):
            keys, values = [keys[place] for place in places], [values[place] for place in places]
        headers = ([(NUMBER, prefix + b"%d" % number)] for number in (places + first_number).tolist())
        return Outgoing(self._segments[places].tolist(), keys, values, headers)

    def arrived(self, segment: int, end: int) -> None:
        """Take it that all events for a segment have arrived."""
        self.left &= self._segments != segment
        self.ends[segment] = end

    def arrived_before(self, segment: int, end: int, places: Numbers) -> None:
        """Take it that some events for a segment have arrived, and the others not."""
        places = places[(places >= 0) & (places < len(self.left))]
        self.left[places] = False
        if len(places):
            self.ends[segment] = end

    def layout_of(self, stream: StreamInfo) -> None:
        """Let what is left go where it belongs now."""
        self.stream = stream
        self._segments = self.events.segments(stream.layout)
        self.flight = None
