"""Retries: of a transaction that lost a race, from its beginning, and of what fails only for a while."""

from collections.abc import Callable
from time import monotonic, sleep
from typing import Final, TypeVar

from floodmark.errors import Conflict, HomeUnusable

T = TypeVar("T")
_MOST_ATTEMPTS: Final = 50
_MOST_LOST_CONNECTIONS: Final = 3
_PAUSE_SECONDS: Final = 0.05


class LostRace(Exception):
    """Another process changed what the transaction has read: roll it back and run it again."""


def retry_on_conflict(transaction: Callable[[], T]) -> T:
    """Return the result of a transaction, and retry it while it loses a race, hits a deadlock or loses its connection.

    The transaction must be idempotent: if the connection breaks during its commit, it may have been committed.

    >>> attempts = iter([LostRace(), None])
    >>> def work() -> str:
    ...     lost = next(attempts)
    ...     if lost:
    ...         raise lost
    ...     return "done"
    >>> retry_on_conflict(work)
    'done'
    """
    lost_connections = 0
    for _ in range(_MOST_ATTEMPTS):
        try:
            return transaction()
        except LostRace:
            continue
        except Conflict as conflict:
            # Retry only conflicts that the database reports (deadlock, serialization failure).
            if "sqlstate" not in conflict.fields:
                raise
        except HomeUnusable as error:
            # The next attempt connects again, and waits for a server that restarts.
            lost_connections += 1
            if not error.fields.get("is_away") or lost_connections >= _MOST_LOST_CONNECTIONS:
                raise
    return transaction()


def retry_while(action: Callable[[], T], is_temporary: Callable[[Exception], bool], seconds: float) -> T:
    """Return the result of an action, and retry it for up to `seconds` while it fails with a temporary error.

    >>> attempts = iter([ConnectionRefusedError(), None])
    >>> def connect() -> str:
    ...     refused = next(attempts)
    ...     if refused:
    ...         raise refused
    ...     return "connected"
    >>> retry_while(connect, lambda error: isinstance(error, ConnectionRefusedError), seconds=5)
    'connected'
    """
    give_up = monotonic() + seconds
    while True:
        try:
            return action()
        except Exception as error:
            if not is_temporary(error) or monotonic() >= give_up:
                raise
        sleep(_PAUSE_SECONDS)
