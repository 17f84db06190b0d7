"""Transactions of writers: begin, stage events, commit in the order of the requests, note marks, abort."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
from sqlalchemy import Connection, Row, Table, and_, delete, func, insert, or_, select, update

from floodmark._util.codec import from_json, to_json
from floodmark._util.names import check_id
from floodmark._util.retry import retry_on_conflict
from floodmark.control import Home
from floodmark.control.store.base import insert_if_absent
from floodmark.errors import FloodmarkError, InvalidValue, StreamSealed, TransactionNotOpen, UnknownTransaction
from floodmark.streams.definition import StreamInfo, check_not_sealed
from floodmark.streams.events import Events, schema_of, stored_schema, widen_batch
from floodmark.streams.layout.positions import Position, furthest_position, load_position, save_position
from floodmark.streams.local.catalog import Catalog
from floodmark.streams.local.mark_batch import check_newest, move_writer, note_for_writer
from floodmark.streams.local.stored_batch import pack_batch, unpack_batch
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
    """The marks of a commit: for each key, a time that is valid behind its events and behind `position`.

    `outcomes` are known once the marks are noted.

    >>> CommitMarks({"at": 100}, {0: 7}).save()
    {'times': {'at': 100}, 'position': {'0': 7}, 'outcomes': {}}
    """

    times: Mapping[str, int]
    position: Position = field(default_factory=dict)
    """A position behind which the times are valid too, such as that of events by other writers."""
    outcomes: Mapping[str, MarkOutcome] = field(default_factory=dict)

    @property
    def first(self) -> tuple[str, int] | tuple[None, None]:
        """The first key and its time, which the row of the transaction has; None without a time."""
        return min(self.times.items(), default=(None, None))

    def save(self) -> dict[str, Any]:
        """Return the marks as JSON values."""
        return {
            "times": dict(self.times),
            "position": save_position(self.position),
            "outcomes": {key: outcome.value for key, outcome in self.outcomes.items()},
        }

    @classmethod
    def of(cls, row: Row[Any]) -> "CommitMarks":
        """Return the marks in the row of a transaction."""
        if row.time_key is None:
            return cls({})
        if row.marks is None:
            outcomes = {} if row.outcome is None else {row.time_key: MarkOutcome(row.outcome)}
            return cls({row.time_key: row.time}, {}, outcomes)
        saved = from_json(row.marks)
        # A version without `outcomes` stored only that of the first key.
        outcomes = saved.get("outcomes", {} if row.outcome is None else {row.time_key: row.outcome})
        return cls(
            saved["times"],
            load_position(saved["position"]),
            {key: MarkOutcome(outcome) for key, outcome in outcomes.items()},
        )


class Transactions:
    """The transactions of a home's streams. Each step is durable; any process can finish an interrupted commit."""

    __slots__ = ("_catalog", "_home", "_log")

    def __init__(self, home: Home, catalog: Catalog, log: StreamLog) -> None:
        """Use the transactions of this home."""
        self._home = home
        self._catalog = catalog
        self._log = log

    def begin(
        self, stream: StreamInfo, author: Author, timeout: int | None = None, *, transaction: str | None = None
    ) -> str:
        """Begin a transaction and return its id.

        With an id from the caller the call is idempotent: the same author gets the same transaction again.
        """
        transaction_id = new_transaction_id() if transaction is None else check_id("transaction", transaction)
        retry_on_conflict(lambda: self._begin(stream, author, timeout, transaction_id))
        return transaction_id

    def _begin(self, stream: StreamInfo, author: Author, timeout: int | None, transaction_id: str) -> None:
        with self._home.write() as connection:
            info = self._catalog.require(connection, stream)
            check_not_sealed(info)
            check_newest(connection, info, author)
            expires_at = self._home.now(connection) + (
                info.settings.transaction_timeout if timeout is None else timeout
            )
            row = {
                "stream_id": info.id,
                "transaction_id": transaction_id,
                "writer": author.writer,
                "instance": author.instance,
                "state": TransactionState.OPEN.value,
                "expires_at": expires_at,
            }
            if not insert_if_absent(connection, TRANSACTIONS, row):
                existing = find_transaction(connection, info, transaction_id)
                if (existing.writer, existing.instance) != (author.writer, author.instance):
                    raise InvalidValue(
                        f"The id {transaction_id!r} belongs to a transaction of another writer.",
                        rule="Each transaction of a stream has a unique id.",
                        remedy="Leave the id out, or pass a random one such as uuid.uuid4().hex.",
                        transaction=transaction_id,
                    )

    def state(self, stream: StreamInfo, transaction: str) -> TransactionState:
        """Return the state of a transaction."""
        with self._home.read() as connection:
            return TransactionState(find_transaction(connection, stream, transaction).state)

    def request(self, stream: StreamInfo, transaction: str, times: Mapping[str, int]) -> None:
        """Request a commit. From now on any process may carry it out, after the writer's earlier requests.

        Idempotent for the same times.
        """
        retry_on_conflict(lambda: self._store_request(stream, transaction, CommitMarks(times), lambda connection: None))

    def decide(
        self, stream: StreamInfo, transaction: str, marks: CommitMarks, also: Callable[[Connection], None]
    ) -> None:
        """Request a commit, and call `also` in the same store transaction.

        If `also` raises, the commit is not requested. It is not called if the commit was requested before.
        """
        self._store_request(stream, transaction, marks, also)

    def _store_request(
        self, stream: StreamInfo, transaction: str, marks: CommitMarks, also: Callable[[Connection], None]
    ) -> None:
        try:
            with self._home.write() as connection:
                if _is_requested(find_transaction(connection, stream, transaction, lock=True), marks):
                    return
                row = find_open_transaction(connection, stream, transaction, self._home.now(connection))
                check_newest(connection, stream, Author(row.writer, row.instance))
                of_writer = and_(_T.stream_id == stream.id, _T.writer == row.writer)
                last = connection.execute(select(func.max(_T.request)).where(of_writer)).scalar_one()
                number = 1 if last is None else last + 1
                key, time = marks.first
                values = {"request": number, "time_key": key, "time": time, "marks": to_json(marks.save(), "marks")}
                set_transaction_state(connection, stream, transaction, TransactionState.COMMITTING, **values)
                also(connection)
        except TransactionNotOpen as refusal:
            if refusal.fields["state"] == TransactionState.ABORTING.value:
                self._abort(stream, transaction, str(refusal.fields["reason"]))
            raise

    def finish(self, stream: StreamInfo, transaction: str) -> CommitResult:
        """Carry out a requested commit, after all earlier requests of its writer."""
        return retry_on_conflict(lambda: self._finish(stream, transaction))

    def _finish(self, stream: StreamInfo, transaction: str) -> CommitResult:
        while True:
            with self._home.read() as connection:
                row = find_transaction(connection, stream, transaction)
                if row.state == TransactionState.COMMITTED.value and (row.time is None or row.outcome is not None):
                    return CommitResult(load_position(from_json(row.position)), CommitMarks.of(row).outcomes)
                if row.state not in (TransactionState.COMMITTING.value, TransactionState.COMMITTED.value):
                    raise transaction_not_open(transaction, TransactionState(row.state), row.reason)
                first = connection.execute(
                    select(TRANSACTIONS)
                    .where(
                        _T.stream_id == stream.id, _T.writer == row.writer, _T.request <= row.request, _is_unfinished()
                    )
                    .order_by(_T.request)
                    .limit(1)
                ).one()
            self._advance(stream, first)

    def finish_requested(self, stream: StreamInfo, writer: str) -> bool:
        """Carry out all requested commits of a writer; return whether there were any.

        A commit that cannot be carried out any more, because the stream was sealed, is aborted.
        """
        is_requested = (_T.stream_id == stream.id, _T.writer == writer, _is_unfinished())
        with self._home.read() as connection:
            query = select(_T.transaction_id).where(*is_requested).order_by(_T.request)
            requested = connection.execute(query).scalars().all()
        for transaction in requested:
            try:
                self.finish(stream, transaction)
            except (StreamSealed, TransactionNotOpen, UnknownTransaction):
                # It has ended otherwise; its writer gets the error.
                continue
        return bool(requested)

    def abort(self, stream: StreamInfo, transaction: str) -> None:
        """Abort a transaction. Idempotent."""
        retry_on_conflict(lambda: self._abort_open(stream, transaction))

    def _abort_open(self, stream: StreamInfo, transaction: str) -> None:
        state = self.state(stream, transaction)
        if state is TransactionState.ABORTED:
            return
        self._abort(stream, transaction, "it was aborted")
        state = self.state(stream, transaction)
        if state is not TransactionState.ABORTED:
            raise transaction_not_open(transaction, state, None)

    def sweep(self, buckets: Iterable[int], *, in_topics: bool = False) -> None:
        """Finish interrupted commits, abort timed-out transactions and delete old ones, in these buckets.

        Only of streams with events in the home, or, with `in_topics`, of those with events in Kafka.
        """
        with self._home.read() as connection:
            now = self._home.now(connection)
            is_expired = and_(_T.state == TransactionState.OPEN.value, _T.expires_at <= now)
            ended = _T.state.in_([TransactionState.COMMITTED.value, TransactionState.ABORTED.value])
            is_old = and_(ended, _T.expires_at < now - _KEPT)
            is_due = or_(is_expired, is_old, _is_unfinished(), _T.state == TransactionState.ABORTING.value)
            of_kind = STREAMS.c.log.is_not(None) if in_topics else STREAMS.c.log.is_(None)
            in_buckets = select(STREAMS).where(STREAMS.c.bucket.in_(list(buckets)), of_kind)
            has_due = STREAMS.c.stream_id.in_(select(_T.stream_id).where(is_due))
            streams = {row.stream_id: self._catalog.info(row) for row in connection.execute(in_buckets.where(has_due))}
            query = select(TRANSACTIONS).where(_T.stream_id.in_(list(streams)), is_due).order_by(_T.request)
            rows = connection.execute(query).all() if streams else []
        for row in rows:
            stream = streams[row.stream_id]
            state = TransactionState(row.state)
            if state in (TransactionState.OPEN, TransactionState.ABORTING):
                self._abort(stream, row.transaction_id, REASON_TIMED_OUT)
            elif state is TransactionState.COMMITTING or (row.time is not None and row.outcome is None):
                try:
                    self.finish(stream, row.transaction_id)
                except FloodmarkError:
                    # Its writer gets the error; other transactions must not wait for it.
                    continue
            else:
                with self._home.write() as connection:
                    connection.execute(delete(TRANSACTIONS).where(*is_transaction(stream, row.transaction_id)))

    def _advance(self, stream: StreamInfo, row: Row[Any]) -> None:
        """Move a transaction one step forward: from committing to committed, then to its mark."""
        if row.state == TransactionState.COMMITTING.value:
            try:
                self._log.commit(stream, row.transaction_id)
            except StreamSealed:
                with self._home.write() as connection:
                    find_transaction(connection, stream, row.transaction_id, lock=True)
                    values = {"reason": "the stream was sealed"}
                    set_transaction_state(connection, stream, row.transaction_id, TransactionState.ABORTING, **values)
                self._abort(stream, row.transaction_id, "the stream was sealed")
                raise
            return

        def mark() -> None:
            with self._home.write() as connection:
                current = find_transaction(connection, stream, row.transaction_id, lock=True)
                if current.outcome is not None:
                    return
                marks = CommitMarks.of(current)
                layout = self._catalog.require(connection, stream).layout
                position = furthest_position(layout, [marks.position, load_position(from_json(current.position))])
                now = self._home.now(connection)
                outcomes = note_for_writer(
                    connection, self._catalog, stream, current.writer, marks.times, position, now
                )
                values = {
                    "outcome": outcomes[current.time_key].value,
                    "marks": to_json(replace(marks, outcomes=outcomes).save(), "marks"),
                }
                is_row = is_transaction(stream, row.transaction_id)
                connection.execute(update(TRANSACTIONS).where(*is_row).values(**values))

        retry_on_conflict(mark)

    def _abort(self, stream: StreamInfo, transaction: str, reason: str) -> None:
        """Abort a transaction that is open or aborting; leave others unchanged."""
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


def _is_requested(row: Row[Any], marks: CommitMarks) -> bool:
    is_under_way = row.state in (TransactionState.COMMITTING.value, TransactionState.COMMITTED.value)
    return is_under_way and dict(CommitMarks.of(row).times) == dict(marks.times)


def _is_unfinished() -> Any:
    is_unmarked = and_(_T.state == TransactionState.COMMITTED.value, _T.time.is_not(None), _T.outcome.is_(None))
    return or_(_T.state == TransactionState.COMMITTING.value, is_unmarked)


def find_transaction(connection: Connection, stream: StreamInfo, transaction: str, *, lock: bool = False) -> Row[Any]:
    """Return the row of a transaction, optionally locked until the store transaction ends."""
    query = select(TRANSACTIONS).where(*is_transaction(stream, transaction))
    row = connection.execute(query.with_for_update() if lock else query).one_or_none()
    if row is None:
        raise UnknownTransaction(
            f"There is no transaction {transaction!r}.",
            rule="A transaction is deleted a day after it has ended.",
            remedy="Begin another one with begin().",
            transaction=transaction,
        )
    return row


def find_open_transaction(connection: Connection, stream: StreamInfo, transaction: str, now: int) -> Row[Any]:
    """Return and lock an open transaction; raise `TransactionNotOpen` for another state."""
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
    """Change the state of a locked transaction."""
    connection.execute(
        update(TRANSACTIONS).where(*is_transaction(stream, transaction)).values(state=state.value, **values)
    )


def is_transaction(stream: StreamInfo, transaction: str) -> tuple[Any, Any]:
    """Return the condition that selects the row of a transaction."""
    return TRANSACTIONS.c.stream_id == stream.id, TRANSACTIONS.c.transaction_id == transaction


def transaction_not_open(transaction: str, state: TransactionState, reason: str | None) -> TransactionNotOpen:
    """Return the error for using a transaction that is not open."""
    why = f": {reason}" if reason else ""
    return TransactionNotOpen(
        f"The transaction {transaction!r} is {state.value}{why}.",
        rule="Only an open transaction takes events and can be committed or aborted.",
        remedy="Begin another transaction and write its events again."
        if state in (TransactionState.ABORTING, TransactionState.ABORTED)
        else "Do not write its events again: they are in the stream, or will be.",
        transaction=transaction,
        state=state.value,
        reason=reason,
    )


@dataclass(frozen=True, slots=True)
class StagedTransaction:
    """A transaction to commit: its staged events, or their position once it is committed."""

    writer: str
    events: Events | None
    position: Position | None


def stage_part(connection: Connection, stream: StreamInfo, transaction: str, part: int, events: Events) -> None:
    """Stage events of a transaction. Idempotent for each part."""
    is_part = (*_rows_of(TRANSACTION_BATCHES, stream, transaction), TRANSACTION_BATCHES.c.part == part)
    if connection.execute(select(TRANSACTION_BATCHES.c.part).where(*is_part)).first() is None:
        points = events.points.tobytes()
        body, checksum = pack_batch(events.batch, points)
        connection.execute(
            insert(TRANSACTION_BATCHES).values(
                stream_id=stream.id,
                transaction_id=transaction,
                part=part,
                events=len(events),
                points=points,
                body=bytes(body),
                checksum=checksum,
                columns=events.batch.num_columns,
            )
        )


def read_staged(connection: Connection, stream: StreamInfo, transaction: str) -> StagedTransaction:
    """Return a transaction with its staged events, and lock it."""
    row = find_transaction(connection, stream, transaction, lock=True)
    if row.position is not None:
        return StagedTransaction(row.writer, None, load_position(from_json(row.position)))
    is_staged = _rows_of(TRANSACTION_BATCHES, stream, transaction)
    parts = connection.execute(select(TRANSACTION_BATCHES).where(*is_staged).order_by(TRANSACTION_BATCHES.c.part))
    events = [load_staged_events(part, stream) for part in parts]
    return StagedTransaction(row.writer, Events.join(events) if events else None, None)


def claim_event_numbers(connection: Connection, stream: StreamInfo, writer: str, count: int) -> int:
    """Reserve `count` event numbers of a writer and return the first."""
    is_writer = (WRITERS.c.stream_id == stream.id, WRITERS.c.writer == writer)
    numbers = update(WRITERS).where(*is_writer).values(next_number=WRITERS.c.next_number + count)
    after: int = connection.execute(numbers.returning(WRITERS.c.next_number)).scalar_one()
    return after - count


def mark_committed(
    connection: Connection, catalog: Catalog, stream: StreamInfo, transaction: str, writer: str, ends: dict[int, int]
) -> None:
    """Store that a transaction is committed and how far its writer has written, and delete its staged events."""
    move_writer(connection, catalog, stream, writer, ends)
    position = to_json(save_position(ends), "position")
    is_row = _rows_of(TRANSACTIONS, stream, transaction)
    connection.execute(update(TRANSACTIONS).where(*is_row).values(state="committed", position=position))
    delete_staged_parts(connection, stream, transaction)


def delete_staged_parts(connection: Connection, stream: StreamInfo, transaction: str) -> None:
    """Delete the staged events of a transaction."""
    connection.execute(delete(TRANSACTION_BATCHES).where(*_rows_of(TRANSACTION_BATCHES, stream, transaction)))


def _rows_of(table: Table, stream: StreamInfo, transaction: str) -> tuple[Any, Any]:
    return table.c.stream_id == stream.id, table.c.transaction_id == transaction


def load_staged_events(row: Row[Any], stream: StreamInfo) -> Events:
    """Load staged events of a transaction, with the columns of the stream."""
    place = {"stream": stream.name, "transaction": row.transaction_id, "part": row.part}
    stored = stored_schema(stream, row.columns)
    batch = widen_batch(unpack_batch(row.body, row.events, stored, row.checksum, place, row.points), schema_of(stream))
    return Events(batch, np.frombuffer(row.points, dtype=np.float64))
