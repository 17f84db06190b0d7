"""Retry a transaction that lost a race, from its beginning."""

from collections.abc import Callable
from typing import TypeVar

from floodmark.errors import Conflict

T = TypeVar("T")
_MOST_ATTEMPTS = 50


class LostRace(Exception):
    """What a transaction was built on was changed by somebody else; it must end without trace and be run again."""


def retry_on_conflict(transaction: Callable[[], T]) -> T:
    """Run a transaction, again if it lost a race, and return what it returns.

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
            # Only the store's own word, that two waited for each other, is worth another try.
            if "sqlstate" not in conflict.fields:
                raise
    return transaction()
