"""Events of transactions, kept in the home until they are committed, and what a commit leaves behind."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Table, delete, insert, select, update

from floodmark._util.codec import from_json, to_json
from floodmark.streams._catalog import StreamInfo
from floodmark.streams._events import Events
from floodmark.streams._log_rows import load_events, schema_of
from floodmark.streams._positions import Position, load_position, save_position
from floodmark.streams._schema import TRANSACTION_BATCHES, TRANSACTIONS, WRITERS
from floodmark.streams._transaction_rows import find


@dataclass(frozen=True, slots=True)
class Kept:
    """A transaction that is to be committed: its events, if it has any, or where they went if it is committed."""

    writer: str
    events: Events | None
    position: Position | None


def keep_part(connection: Connection, stream: StreamInfo, transaction: str, part: int, events: Events) -> None:
    """Keep events of a transaction; a part that comes twice is kept once."""
    here = (*_of(TRANSACTION_BATCHES, stream, transaction), TRANSACTION_BATCHES.c.part == part)
    if connection.execute(select(TRANSACTION_BATCHES.c.part).where(*here)).first() is None:
        connection.execute(
            insert(TRANSACTION_BATCHES).values(
                stream_id=stream.id,
                transaction_id=transaction,
                part=part,
                events=len(events),
                points=events.points.tobytes(),
                body=events.batch.serialize().to_pybytes(),
            )
        )


def read_kept(connection: Connection, stream: StreamInfo, transaction: str) -> Kept:
    """Return a transaction, and lock it."""
    row = find(connection, stream, transaction, lock=True)
    if row.position is not None:
        return Kept(row.writer, None, load_position(from_json(row.position)))
    here = _of(TRANSACTION_BATCHES, stream, transaction)
    parts = connection.execute(select(TRANSACTION_BATCHES).where(*here).order_by(TRANSACTION_BATCHES.c.part))
    schema = schema_of(stream)
    events = [load_events(part, schema) for part in parts]
    return Kept(row.writer, Events.join(events) if events else None, None)


def count_events(connection: Connection, stream: StreamInfo, writer: str, count: int) -> int:
    """Let a writer have written more events, and return the number of the first of them."""
    here = (WRITERS.c.stream_id == stream.id, WRITERS.c.writer == writer)
    numbers = update(WRITERS).where(*here).values(next_number=WRITERS.c.next_number + count)
    after: int = connection.execute(numbers.returning(WRITERS.c.next_number)).scalar_one()
    return after - count


def end_committed(connection: Connection, stream: StreamInfo, transaction: str, ends: dict[int, int]) -> None:
    """Say that a transaction is committed, and forget its events here."""
    position = to_json(save_position(ends), "position")
    here = _of(TRANSACTIONS, stream, transaction)
    connection.execute(update(TRANSACTIONS).where(*here).values(state="committed", position=position))
    forget_parts(connection, stream, transaction)


def forget_parts(connection: Connection, stream: StreamInfo, transaction: str) -> None:
    """Forget the events of a transaction here."""
    connection.execute(delete(TRANSACTION_BATCHES).where(*_of(TRANSACTION_BATCHES, stream, transaction)))


def _of(table: Table, stream: StreamInfo, transaction: str) -> tuple[Any, Any]:
    return table.c.stream_id == stream.id, table.c.transaction_id == transaction
