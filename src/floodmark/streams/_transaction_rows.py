"""Transactions as the store knows them, and the step from each state to the next."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from sqlalchemy import Connection, Row, select, update

from floodmark._util.codec import from_json
from floodmark.errors import TransactionNotOpen, UnknownTransaction
from floodmark.streams._catalog import StreamInfo
from floodmark.streams._layout import Layout
from floodmark.streams._positions import Position, furthest, load_position, save_position
from floodmark.streams._schema import TRANSACTIONS

TIMED_OUT: Final = "it took longer than its timeout"
OPENED_AGAIN: Final = "its writer was opened again"


class TransactionState(enum.Enum):
    """Where a transaction is: open, on the way to one of two ends, or at that end."""

    OPEN = "open"
    COMMITTING = "committing"
    COMMITTED = "committed"
    ABORTING = "aborting"
    ABORTED = "aborted"


@dataclass(frozen=True, slots=True)
class Told:
    """What a commit says of time: for each key, a time that holds behind its events, and behind `position`.

    >>> Told({"at": 100}, {0: 7}).save()
    {'times': {'at': 100}, 'position': {'0': 7}}
    """

    times: Mapping[str, int]
    position: Position = field(default_factory=dict)
    """Where earlier events of the writer end, which may have come without any word of time."""

    def save(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {"times": dict(self.times), "position": save_position(self.position)}


def told_by(row: Row[Any], layout: Layout) -> Told:
    """Return what a transaction that is committed says of time, and at which position."""
    position = load_position(from_json(row.position))
    if row.marks is None:
        return Told({row.time_key: row.time}, position)
    saved = from_json(row.marks)
    return Told(saved["times"], furthest(layout, [load_position(saved["position"]), position]))


def find(connection: Connection, stream: StreamInfo, transaction: str, *, lock: bool = False) -> Row[Any]:
    """Return a transaction; locked, nobody else changes it before the end."""
    wanted = select(TRANSACTIONS).where(*here(stream, transaction))
    row = connection.execute(wanted.with_for_update() if lock else wanted).one_or_none()
    if row is None:
        raise UnknownTransaction(
            f"The transaction {transaction!r} is not known.",
            rule="A transaction is known from its beginning until a day after its end.",
            remedy="Begin another one.",
            transaction=transaction,
        )
    return row


def find_open(connection: Connection, stream: StreamInfo, transaction: str, now: int) -> Row[Any]:
    """Return a transaction that is open, which nobody else changes before the end, or refuse one that is not."""
    row = find(connection, stream, transaction, lock=True)
    state, reason = TransactionState(row.state), row.reason
    if state is TransactionState.OPEN and now >= row.expires_at:
        state, reason = TransactionState.ABORTING, TIMED_OUT
    if state is not TransactionState.OPEN:
        raise not_open(transaction, state, reason)
    return row


def move(connection: Connection, stream: StreamInfo, transaction: str, state: TransactionState, **values: Any) -> None:
    """Put a transaction, which is locked, into another state."""
    connection.execute(update(TRANSACTIONS).where(*here(stream, transaction)).values(state=state.value, **values))


def here(stream: StreamInfo, transaction: str) -> tuple[Any, Any]:
    """Return the condition for the row of a transaction."""
    return TRANSACTIONS.c.stream_id == stream.id, TRANSACTIONS.c.transaction_id == transaction


def not_open(transaction: str, state: TransactionState, reason: str | None) -> TransactionNotOpen:
    """Return the error for a transaction that is used when it is not open."""
    why = f": {reason}" if reason else ""
    return TransactionNotOpen(
        f"The transaction {transaction!r} is {state.value}{why}.",
        rule="Only an open transaction takes events, and is committed or aborted.",
        remedy="Begin another one and write its events again."
        if state in (TransactionState.ABORTING, TransactionState.ABORTED)
        else "Nothing is to be done: its events are in the stream, or about to be.",
        transaction=transaction,
        state=state.value,
        reason=reason,
    )
