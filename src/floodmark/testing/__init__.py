"""Public helpers for tests of code that uses Floodmark."""

from floodmark.testing._clock import ManualClock
from floodmark.testing._kafka import KafkaBroker
from floodmark.testing._postgres import PostgresServer

__all__ = ["KafkaBroker", "ManualClock", "PostgresServer"]
