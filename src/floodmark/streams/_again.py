"""Transactions that lost a race are run again from their beginning."""

from collections.abc import Callable
from typing import TypeVar

from floodmark.errors import Conflict

T = TypeVar("T")
_TIMES = 50


class LostRace(Exception):
    """What a transaction was built on was changed by somebody else; it must end without trace and be run again."""


def until_done(transaction: Callable[[], T]) -> T:
    """Run a transaction, again if it lost a race, and return what it returns.

    >>> attempts = iter([LostRace(), None])
    >>> def work() -> str:
    ...     lost = next(attempts)
    ...     if lost:
    ...         raise lost
    ...     return "done"
    >>> until_done(work)
    'done'
    """
    for _ in range(_TIMES):
        try:
            return transaction()
        except LostRace:
            continue
        except Conflict as conflict:
            # Only the store's own word, that two waited for each other, is worth another try.
            if "sqlstate" not in conflict.fields:
                raise
    return transaction()
