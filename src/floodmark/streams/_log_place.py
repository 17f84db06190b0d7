"""Where the events of a stream are, if they are not in the home itself."""

import json
from dataclasses import dataclass
from typing import Final

_STEM: Final = 200
"""Kafka's names have at most 249 characters."""


@dataclass(frozen=True, slots=True)
class LogPlace:
    """A topic of Kafka. Its `topic_id` tells it from another one that gets its name later.

    >>> place = LogPlace("one:9092,two:9092", "floodmark.shop.orders-2a", "Zk3V")
    >>> LogPlace.load(place.save()) == place
    True
    """

    servers: str
    topic: str
    topic_id: str

    def save(self) -> str:
        """Return it as text."""
        return json.dumps({"servers": self.servers, "topic": self.topic, "topic_id": self.topic_id})

    @classmethod
    def load(cls, saved: str) -> "LogPlace":
        """Return what was saved."""
        return cls(**json.loads(saved))


def topic_of(name: str, stream_id: int) -> str:
    """Return the name of the topic of a stream; its id is in it, since another stream may get the name later.

    >>> topic_of("shop/orders", 42)
    'floodmark.shop.orders-2a'
    """
    return f"floodmark.{name.replace('/', '.')[:_STEM]}-{stream_id:x}"
