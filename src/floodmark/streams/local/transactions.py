"""Transactions of writers: begun, staged in the home, committed in the order of the requests, marked, or aborted."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
from sqlalchemy import Connection, Row, Table, and_, delete, func, insert, or_, select, update

from floodmark._util.codec import from_json, to_json
from floodmark._util.names import check_id
from floodmark._util.retry import retry_on_conflict
from floodmark.control import Home
from floodmark.control.store.base import insert_if_absent
from floodmark.errors import FloodmarkError, InvalidValue, StreamSealed, TransactionNotOpen, UnknownTransaction
from floodmark.streams.definition import StreamInfo, check_not_sealed
from floodmark.streams.events import Events, schema_of
from floodmark.streams.layout.layout import Layout
from floodmark.streams.layout.positions import Position, furthest, load_position, save_position
from floodmark.streams.local.catalog import Catalog
from floodmark.streams.local.registry import Registry
from floodmark.streams.local.tables import STREAMS, TRANSACTION_BATCHES, TRANSACTIONS, WRITERS
from floodmark.streams.marks.writer_record import MarkOutcome
from floodmark.streams.ports import (
    REASON_TIMED_OUT,
    Author,
    CommitResult,
    StreamLog,
    TransactionState,
    new_transaction_id,
)

_T: Final = TRANSACTIONS.c
_KEPT: Final = 24 * 3_600_000_000


@dataclass(frozen=True, slots=True)
class CommitMarks:
    """What a commit says of time: for each key, a time that holds behind its events, and behind `position`.

    >>> CommitMarks({"at": 100}, {0: 7}).save()
    {'times': {'at': 100}, 'position': {'0': 7}}
    """

    times: Mapping[str, int]
    position: Position = field(default_factory=dict)
    """Where earlier events of the writer end, which may have come without any word of time."""

    def save(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {"times": dict(self.times), "position": save_position(self.position)}


class Transactions:
    """The transactions of a home's streams. Each step is durable, and whoever finds one half done can finish it."""

    __slots__ = ("_catalog", "_home", "_log", "_registry")

    def __init__(self, home: Home, catalog: Catalog, log: StreamLog, registry: Registry) -> None:
        """Keep them in this home."""
        self._home = home
        self._catalog = catalog
        self._log = log
        self._registry = registry

    def begin(
        self, stream: StreamInfo, author: Author, timeout: int | None = None, *, transaction: str | None = None
    ) -> str:
        """Begin a transaction, and return its id.

        Who brings the id may ask again if the answer was lost: what the same author has begun under it goes on.
        """
        number = new_transaction_id() if transaction is None else check_id("transaction", transaction)
        with self._home.write() as connection:
            info = self._catalog.require(connection, stream)
            check_not_sealed(info)
            self._registry.check_newest(connection, info, author)
            expires_at = self._home.now(connection) + (
                info.settings.transaction_timeout if timeout is None else timeout
            )
            row = {
                "stream_id": info.id,
                "transaction_id": number,
                "writer": author.writer,
                "instance": author.instance,
                "state": TransactionState.OPEN.value,
                "expires_at": expires_at,
            }
            if not insert_if_absent(connection, TRANSACTIONS, row):
                begun = find_transaction(connection, info, number)
                if (begun.writer, begun.instance) != (author.writer, author.instance):
                    raise InvalidValue(
                        f"The id {number!r} belongs to a transaction of another writer.",
                        rule="Each transaction has an id of its own.",
                        remedy="Leave the id out, or make one at random.",
                        transaction=number,
                    )
        return number

    def state(self, stream: StreamInfo, transaction: str) -> TransactionState:
        """Return where a transaction is."""
        with self._home.read() as connection:
            return TransactionState(find_transaction(connection, stream, transaction).state)

    def request(self, stream: StreamInfo, transaction: str, key: str | None, time: int | None) -> None:
        """Ask for a commit. From here on it will be committed, whoever does it, after those asked for before.

        To ask again for the same is no error, since the answer may have been lost.
        """
        self._request(stream, transaction, key, time, {})

    def decide(
        self, stream: StreamInfo, transaction: str, told: CommitMarks, also: Callable[[Connection], None]
    ) -> None:
        """Ask for a commit, say how far time has come for several keys, and do something else: all or nothing.

        `also` is called in the transaction of the store in which the commit is asked for. If it raises, that was not
        asked for; if it was asked for before, it is not called again.
        """
        key, time = min(told.times.items(), default=(None, None))
        self._request(stream, transaction, key, time, {"marks": to_json(told.save(), "marks")}, also)

    def _request(
        self,
        stream: StreamInfo,
        transaction: str,
        key: str | None,
        time: int | None,
        more: dict[str, Any],
        also: Callable[[Connection], None] = lambda connection: None,
    ) -> None:
        try:
            with self._home.write() as connection:
                if _is_requested(find_transaction(connection, stream, transaction, lock=True), key, time):
                    return
                row = find_open_transaction(connection, stream, transaction, self._home.now(connection))
                self._registry.check_newest(connection, stream, Author(row.writer, row.instance))
                of_writer = and_(_T.stream_id == stream.id, _T.writer == row.writer)
                last = connection.execute(select(func.max(_T.request)).where(of_writer)).scalar_one()
                number = 1 if last is None else last + 1
                values = {"request": number, "time_key": key, "time": time, **more}
                set_transaction_state(connection, stream, transaction, TransactionState.COMMITTING, **values)
                also(connection)
        except TransactionNotOpen as refusal:
            if refusal.fields["state"] == TransactionState.ABORTING.value:
                self._give_up(stream, transaction, str(refusal.fields["reason"]))
            raise

    def finish(self, stream: StreamInfo, transaction: str) -> CommitResult:
        """Commit a transaction for which that was asked, and before it all for which it was asked before."""
        while True:
            with self._home.read() as connection:
                row = find_transaction(connection, stream, transaction)
                if row.state == TransactionState.COMMITTED.value and (row.time is None or row.outcome is not None):
                    outcome = None if row.outcome is None else MarkOutcome(row.outcome)
                    return CommitResult(load_position(from_json(row.position)), outcome)
                if row.state not in (TransactionState.COMMITTING.value, TransactionState.COMMITTED.value):
                    raise transaction_not_open(transaction, TransactionState(row.state), row.reason)
                first = connection.execute(
                    select(TRANSACTIONS)
                    .where(_T.stream_id == stream.id, _T.writer == row.writer, _T.request <= row.request, _half_done())
                    .order_by(_T.request)
                    .limit(1)
                ).one()
            self._advance(stream, first)

    def abort(self, stream: StreamInfo, transaction: str) -> None:
        """Give a transaction up; one that is aborted already stays so."""
        state = self.state(stream, transaction)
        if state is TransactionState.ABORTED:
            return
        self._give_up(stream, transaction, "it was given up")
        state = self.state(stream, transaction)
        if state is not TransactionState.ABORTED:
            raise transaction_not_open(transaction, state, None)

    def sweep(self, buckets: Iterable[int], *, in_topics: bool = False) -> None:
        """Bring to an end what is half done, or has taken too long, in the streams of these buckets.

        That is those whose events are in the home, or those whose events are in topics.
        """
        with self._home.read() as connection:
            now = self._home.now(connection)
            over = and_(_T.state == TransactionState.OPEN.value, _T.expires_at <= now)
            ended = _T.state.in_([TransactionState.COMMITTED.value, TransactionState.ABORTED.value])
            old = and_(ended, _T.expires_at < now - _KEPT)
            is_left = or_(over, old, _half_done(), _T.state == TransactionState.ABORTING.value)
            of_kind = STREAMS.c.log.is_not(None) if in_topics else STREAMS.c.log.is_(None)
            in_buckets = select(STREAMS).where(STREAMS.c.bucket.in_(list(buckets)), of_kind)
            ours = STREAMS.c.stream_id.in_(select(_T.stream_id).where(is_left))
            streams = {row.stream_id: self._catalog.info(row) for row in connection.execute(in_buckets.where(ours))}
            wanted = select(TRANSACTIONS).where(_T.stream_id.in_(list(streams)), is_left).order_by(_T.request)
            rows = connection.execute(wanted).all() if streams else []
        for row in rows:
            stream = streams[row.stream_id]
            state = TransactionState(row.state)
            if state in (TransactionState.OPEN, TransactionState.ABORTING):
                self._give_up(stream, row.transaction_id, REASON_TIMED_OUT)
            elif state is TransactionState.COMMITTING or (row.time is not None and row.outcome is None):
                try:
                    self.finish(stream, row.transaction_id)
                except FloodmarkError:
                    # Its writer is told; the others must not wait for it.
                    continue
            else:
                with self._home.write() as connection:
                    connection.execute(delete(TRANSACTIONS).where(*is_transaction(stream, row.transaction_id)))

    def _advance(self, stream: StreamInfo, row: Row[Any]) -> None:
        """Take a transaction one step on: from committing to committed, and from there to its mark."""
        if row.state == TransactionState.COMMITTING.value:
            try:
                self._log.commit(stream, row.transaction_id)
            except StreamSealed:
                with self._home.write() as connection:
                    find_transaction(connection, stream, row.transaction_id, lock=True)
                    values = {"reason": "the stream was sealed"}
                    set_transaction_state(connection, stream, row.transaction_id, TransactionState.ABORTING, **values)
                self._give_up(stream, row.transaction_id, "the stream was sealed")
                raise
            return

        def mark() -> None:
            with self._home.write() as connection:
                current = find_transaction(connection, stream, row.transaction_id, lock=True)
                if current.outcome is not None:
                    return
                told = commit_marks_of(current, self._catalog.require(connection, stream).layout)
                outcomes = self._registry.note_for(connection, stream, current.writer, told.times, told.position)
                outcome = outcomes[current.time_key]
                connection.execute(
                    update(TRANSACTIONS)
                    .where(*is_transaction(stream, row.transaction_id))
                    .values(outcome=outcome.value)
                )

        retry_on_conflict(mark)

    def _give_up(self, stream: StreamInfo, transaction: str, reason: str) -> None:
        """Take a transaction that is open or being aborted to its end; another one stays as it is."""
        aborting = TransactionState.ABORTING
        with self._home.write() as connection:
            row = find_transaction(connection, stream, transaction, lock=True)
            if row.state == TransactionState.OPEN.value:
                set_transaction_state(connection, stream, transaction, aborting, reason=reason)
            elif row.state != aborting.value:
                return
        self._log.abort(stream, transaction)
        with self._home.write() as connection:
            if find_transaction(connection, stream, transaction, lock=True).state == aborting.value:
                set_transaction_state(connection, stream, transaction, TransactionState.ABORTED)


def _is_requested(row: Row[Any], key: str | None, time: int | None) -> bool:
    is_under_way = row.state in (TransactionState.COMMITTING.value, TransactionState.COMMITTED.value)
    return is_under_way and (row.time_key, row.time) == (key, time)


def _half_done() -> Any:
    is_unmarked = and_(_T.state == TransactionState.COMMITTED.value, _T.time.is_not(None), _T.outcome.is_(None))
    return or_(_T.state == TransactionState.COMMITTING.value, is_unmarked)


def commit_marks_of(row: Row[Any], layout: Layout) -> CommitMarks:
    """Return what a transaction that is committed says of time, and at which position."""
    position = load_position(from_json(row.position))
    if row.marks is None:
        return CommitMarks({row.time_key: row.time}, position)
    saved = from_json(row.marks)
    return CommitMarks(saved["times"], furthest(layout, [load_position(saved["position"]), position]))


def find_transaction(connection: Connection, stream: StreamInfo, transaction: str, *, lock: bool = False) -> Row[Any]:
    """Return a transaction; locked, nobody else changes it before the end."""
    wanted = select(TRANSACTIONS).where(*is_transaction(stream, transaction))
    row = connection.execute(wanted.with_for_update() if lock else wanted).one_or_none()
    if row is None:
        raise UnknownTransaction(
            f"The transaction {transaction!r} is not known.",
            rule="A transaction is known from its beginning until a day after its end.",
            remedy="Begin another one.",
            transaction=transaction,
        )
    return row


def find_open_transaction(connection: Connection, stream: StreamInfo, transaction: str, now: int) -> Row[Any]:
    """Return a transaction that is open, which nobody else changes before the end, or refuse one that is not."""
    row = find_transaction(connection, stream, transaction, lock=True)
    state, reason = TransactionState(row.state), row.reason
    if state is TransactionState.OPEN and now >= row.expires_at:
        state, reason = TransactionState.ABORTING, REASON_TIMED_OUT
    if state is not TransactionState.OPEN:
        raise transaction_not_open(transaction, state, reason)
    return row


def set_transaction_state(
    connection: Connection, stream: StreamInfo, transaction: str, state: TransactionState, **values: Any
) -> None:
    """Put a transaction, which is locked, into another state."""
    connection.execute(
        update(TRANSACTIONS).where(*is_transaction(stream, transaction)).values(state=state.value, **values)
    )


def is_transaction(stream: StreamInfo, transaction: str) -> tuple[Any, Any]:
    """Return the condition for the row of a transaction."""
    return TRANSACTIONS.c.stream_id == stream.id, TRANSACTIONS.c.transaction_id == transaction


def transaction_not_open(transaction: str, state: TransactionState, reason: str | None) -> TransactionNotOpen:
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


@dataclass(frozen=True, slots=True)
class StagedTransaction:
    """A transaction that is to be committed: its events, if it has any, or where they went if it is committed."""

    writer: str
    events: Events | None
    position: Position | None


def stage_part(connection: Connection, stream: StreamInfo, transaction: str, part: int, events: Events) -> None:
    """Keep events of a transaction; a part that comes twice is kept once."""
    here = (*_rows_of(TRANSACTION_BATCHES, stream, transaction), TRANSACTION_BATCHES.c.part == part)
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


def read_staged(connection: Connection, stream: StreamInfo, transaction: str) -> StagedTransaction:
    """Return a transaction, and lock it."""
    row = find_transaction(connection, stream, transaction, lock=True)
    if row.position is not None:
        return StagedTransaction(row.writer, None, load_position(from_json(row.position)))
    here = _rows_of(TRANSACTION_BATCHES, stream, transaction)
    parts = connection.execute(select(TRANSACTION_BATCHES).where(*here).order_by(TRANSACTION_BATCHES.c.part))
    schema = schema_of(stream)
    events = [load_staged_events(part, schema) for part in parts]
    return StagedTransaction(row.writer, Events.join(events) if events else None, None)


def claim_event_numbers(connection: Connection, stream: StreamInfo, writer: str, count: int) -> int:
    """Let a writer have written more events, and return the number of the first of them."""
    here = (WRITERS.c.stream_id == stream.id, WRITERS.c.writer == writer)
    numbers = update(WRITERS).where(*here).values(next_number=WRITERS.c.next_number + count)
    after: int = connection.execute(numbers.returning(WRITERS.c.next_number)).scalar_one()
    return after - count


def mark_committed(connection: Connection, stream: StreamInfo, transaction: str, ends: dict[int, int]) -> None:
    """Say that a transaction is committed, and forget its events here."""
    position = to_json(save_position(ends), "position")
    here = _rows_of(TRANSACTIONS, stream, transaction)
    connection.execute(update(TRANSACTIONS).where(*here).values(state="committed", position=position))
    delete_staged_parts(connection, stream, transaction)


def delete_staged_parts(connection: Connection, stream: StreamInfo, transaction: str) -> None:
    """Forget the events of a transaction here."""
    connection.execute(delete(TRANSACTION_BATCHES).where(*_rows_of(TRANSACTION_BATCHES, stream, transaction)))


def _rows_of(table: Table, stream: StreamInfo, transaction: str) -> tuple[Any, Any]:
    return table.c.stream_id == stream.id, table.c.transaction_id == transaction


def load_staged_events(row: Row[Any], schema: Any) -> Events:
    """Return events that were kept apart for a transaction."""
    batch = pa.ipc.read_record_batch(pa.py_buffer(row.body), schema)
    return Events(batch, np.frombuffer(row.points, dtype=np.float64))
