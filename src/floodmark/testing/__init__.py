"""Public helpers for tests of code that uses Floodmark."""

from floodmark.testing.clock import ManualClock
from floodmark.testing.kafka import KafkaBroker
from floodmark.testing.postgres import PostgresServer

__all__ = ["KafkaBroker", "ManualClock", "PostgresServer"]
