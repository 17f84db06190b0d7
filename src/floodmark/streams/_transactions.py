"""The life of transactions: begun, committed in the order in which that was asked for, marked, or given up."""

import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, Row, and_, delete, func, or_, select, update

from floodmark._util.codec import from_json, to_json
from floodmark._util.names import check_id
from floodmark._util.retry import retry_on_conflict
from floodmark.control import Home
from floodmark.control.store.base import insert_if_absent
from floodmark.errors import FloodmarkError, InvalidValue, StreamSealed, TransactionNotOpen
from floodmark.streams._catalog import Catalog, StreamInfo, check_not_sealed
from floodmark.streams._log import Author, StreamLog
from floodmark.streams._positions import Position, load_position
from floodmark.streams._registry import Registry
from floodmark.streams._schema import STREAMS, TRANSACTIONS
from floodmark.streams._transaction_rows import (
    TIMED_OUT,
    Told,
    TransactionState,
    find,
    find_open,
    here,
    move,
    not_open,
    told_by,
)
from floodmark.streams._writers import MarkOutcome

_T: Final = TRANSACTIONS.c
_KEPT: Final = 24 * 3_600_000_000


@dataclass(frozen=True, slots=True)
class CommitResult:
    """What a commit came to: how far its events fill the segments, and what became of its mark, if it had a time."""

    position: Position
    outcome: MarkOutcome | None


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
                begun = find(connection, info, number)
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
            return TransactionState(find(connection, stream, transaction).state)

    def request(self, stream: StreamInfo, transaction: str, key: str | None, time: int | None) -> None:
        """Ask for a commit. From here on it will be committed, whoever does it, after those asked for before.

        To ask again for the same is no error, since the answer may have been lost.
        """
        self._request(stream, transaction, key, time, {})

    def decide(self, stream: StreamInfo, transaction: str, told: Told, also: Callable[[Connection], None]) -> None:
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
                if _is_asked(find(connection, stream, transaction, lock=True), key, time):
                    return
                row = find_open(connection, stream, transaction, self._home.now(connection))
                self._registry.check_newest(connection, stream, Author(row.writer, row.instance))
                of_writer = and_(_T.stream_id == stream.id, _T.writer == row.writer)
                last = connection.execute(select(func.max(_T.request)).where(of_writer)).scalar_one()
                number = 1 if last is None else last + 1
                values = {"request": number, "time_key": key, "time": time, **more}
                move(connection, stream, transaction, TransactionState.COMMITTING, **values)
                also(connection)
        except TransactionNotOpen as refusal:
            if refusal.fields["state"] == TransactionState.ABORTING.value:
                self._give_up(stream, transaction, str(refusal.fields["reason"]))
            raise

    def finish(self, stream: StreamInfo, transaction: str) -> CommitResult:
        """Commit a transaction for which that was asked, and before it all for which it was asked before."""
        while True:
            with self._home.read() as connection:
                row = find(connection, stream, transaction)
                if row.state == TransactionState.COMMITTED.value and (row.time is None or row.outcome is not None):
                    outcome = None if row.outcome is None else MarkOutcome(row.outcome)
                    return CommitResult(load_position(from_json(row.position)), outcome)
                if row.state not in (TransactionState.COMMITTING.value, TransactionState.COMMITTED.value):
                    raise not_open(transaction, TransactionState(row.state), row.reason)
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
            raise not_open(transaction, state, None)

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
                self._give_up(stream, row.transaction_id, TIMED_OUT)
            elif state is TransactionState.COMMITTING or (row.time is not None and row.outcome is None):
                try:
                    self.finish(stream, row.transaction_id)
                except FloodmarkError:
                    # Its writer is told; the others must not wait for it.
                    continue
            else:
                with self._home.write() as connection:
                    connection.execute(delete(TRANSACTIONS).where(*here(stream, row.transaction_id)))

    def _advance(self, stream: StreamInfo, row: Row[Any]) -> None:
        """Take a transaction one step on: from committing to committed, and from there to its mark."""
        if row.state == TransactionState.COMMITTING.value:
            try:
                self._log.commit(stream, row.transaction_id)
            except StreamSealed:
                with self._home.write() as connection:
                    find(connection, stream, row.transaction_id, lock=True)
                    values = {"reason": "the stream was sealed"}
                    move(connection, stream, row.transaction_id, TransactionState.ABORTING, **values)
                self._give_up(stream, row.transaction_id, "the stream was sealed")
                raise
            return

        def mark() -> None:
            with self._home.write() as connection:
                current = find(connection, stream, row.transaction_id, lock=True)
                if current.outcome is not None:
                    return
                told = told_by(current, self._catalog.require(connection, stream).layout)
                outcomes = self._registry.note_for(connection, stream, current.writer, told.times, told.position)
                outcome = outcomes[current.time_key]
                connection.execute(
                    update(TRANSACTIONS).where(*here(stream, row.transaction_id)).values(outcome=outcome.value)
                )

        retry_on_conflict(mark)

    def _give_up(self, stream: StreamInfo, transaction: str, reason: str) -> None:
        """Take a transaction that is open or being aborted to its end; another one stays as it is."""
        aborting = TransactionState.ABORTING
        with self._home.write() as connection:
            row = find(connection, stream, transaction, lock=True)
            if row.state == TransactionState.OPEN.value:
                move(connection, stream, transaction, aborting, reason=reason)
            elif row.state != aborting.value:
                return
        self._log.abort(stream, transaction)
        with self._home.write() as connection:
            if find(connection, stream, transaction, lock=True).state == aborting.value:
                move(connection, stream, transaction, TransactionState.ABORTED)


def new_transaction_id() -> str:
    """Return the id of a new transaction."""
    return uuid.uuid4().hex


def _is_asked(row: Row[Any], key: str | None, time: int | None) -> bool:
    is_under_way = row.state in (TransactionState.COMMITTING.value, TransactionState.COMMITTED.value)
    return is_under_way and (row.time_key, row.time) == (key, time)


def _half_done() -> Any:
    is_unmarked = and_(_T.state == TransactionState.COMMITTED.value, _T.time.is_not(None), _T.outcome.is_(None))
    return or_(_T.state == TransactionState.COMMITTING.value, is_unmarked)
