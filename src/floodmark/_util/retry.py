"""Retries of a transaction that lost a race, from its beginning."""

from collections.abc import Callable
from typing import TypeVar

from floodmark.errors import Conflict

T = TypeVar("T")
_MOST_ATTEMPTS = 50


class LostRace(Exception):
    """Another process changed what the transaction has read: roll it back and run it again."""


def retry_on_conflict(transaction: Callable[[], T]) -> T:
    """Return the result of a transaction, and retry it while it loses a race or hits a deadlock.

    >>> attempts = iter([LostRace(), None])
    >>> def work() -> str:
    ...     lost = next(attempts)
    ...     if lost:
    ...         raise lost
    ...     return "done"
    >>> retry_on_conflict(work)
    'done'
    """
    for _ in range(_MOST_ATTEMPTS):
        try:
            return transaction()
        except LostRace:
            continue
        except Conflict as conflict:
            # Retry only conflicts that the database reports (deadlock, serialization failure).
            if "sqlstate" not in conflict.fields:
                raise
    return transaction()
