"""Helpers for tests of code that uses Floodmark: a manual clock, and a real Kafka broker and PostgreSQL server.

Public: programs import them from here. They import nothing of Floodmark but its errors, and no other room imports
them. `servers` is what the two servers have in common.
"""

from floodmark.testing.clock import ManualClock
from floodmark.testing.kafka import KafkaBroker
from floodmark.testing.postgres import PostgresServer

__all__ = ["KafkaBroker", "ManualClock", "PostgresServer"]
