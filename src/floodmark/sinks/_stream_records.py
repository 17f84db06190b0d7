"""What sinks have written to streams: one row each, in the home that has the streams, behind a fence."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, and_, or_, select, update

from floodmark.control import Home
from floodmark.control.store.base import insert_if_absent
from floodmark.sinks._progress import Progress
from floodmark.sinks._schema import STREAM_SINKS
from floodmark.sinks._sink_errors import fenced_off

_S = STREAM_SINKS.c


@dataclass(frozen=True, slots=True)
class StreamRecord:
    """What a sink has written to a stream."""

    sink: str
    stream_id: int
    fence: int
    """The instance of the stream's writer that may write; all older ones may not."""
    progress: Progress | None
    transaction: str | None
    """The transaction of the stream that has the rows of the last batch: it was decided that it is committed."""
    earlier: Progress | None
    """The progress before that batch, which holds again should its commit turn out to be impossible."""


class StreamRecords:
    """The records of a home. Who takes one over waits for the step another is just taking, and then ends its turn."""

    def __init__(self, home: Home) -> None:
        """Keep them in this home."""
        self._home = home

    def find(self, sink: str) -> StreamRecord | None:
        """Return what is known of a sink."""
        with self._home.read() as connection:
            row = connection.execute(select(STREAM_SINKS).where(_S.sink == sink)).one_or_none()
        return None if row is None else _load(row)

    def take(self, sink: str, stream_id: int, fence: int) -> StreamRecord:
        """Let this instance of the stream's writer be the one that writes, and return the record as it then is.

        One that was opened after it is not driven away, and a record that says that another stream has rows stays.
        """
        is_newer = and_(_S.stream_id == stream_id, _S.fence < fence)
        is_unused = and_(_S.stream_id != stream_id, _S.progress.is_(None))
        with self._home.write() as connection:
            insert_if_absent(connection, STREAM_SINKS, {"sink": sink, "stream_id": stream_id, "fence": 0})
            taken = update(STREAM_SINKS).where(_S.sink == sink, or_(is_newer, is_unused))
            values = {"stream_id": stream_id, "fence": fence}
            row = connection.execute(taken.values(values).returning(*STREAM_SINKS.columns)).one_or_none()
            if row is None:
                raise fenced_off(sink, "it started")
            return _load(row)

    def move(self, record: StreamRecord, stream_id: int, fence: int) -> StreamRecord:
        """Let a sink begin anew in another stream."""
        values = {"stream_id": stream_id, "fence": fence, "progress": None, "transaction_id": None, "earlier": None}
        with self._home.write() as connection:
            _change(connection, record, values)
        return StreamRecord(record.sink, stream_id, fence, None, None, None)

    def record(
        self, connection: Connection, record: StreamRecord, progress: Progress, transaction: str | None = None
    ) -> StreamRecord:
        """As part of a transaction, say what is written once a transaction of the stream is committed."""
        earlier = None if transaction is None else record.progress
        values = {"progress": _save(progress), "transaction_id": transaction, "earlier": _save(earlier)}
        _change(connection, record, values)
        return StreamRecord(record.sink, record.stream_id, record.fence, progress, transaction, earlier)

    def take_back(self, record: StreamRecord) -> StreamRecord:
        """Say that the last batch was not written after all."""
        values = {"progress": _save(record.earlier), "transaction_id": None, "earlier": None}
        with self._home.write() as connection:
            _change(connection, record, values)
        return StreamRecord(record.sink, record.stream_id, record.fence, record.earlier, None, None)


def _change(connection: Connection, record: StreamRecord, values: dict[str, Any]) -> None:
    ours = (_S.sink == record.sink, _S.stream_id == record.stream_id, _S.fence == record.fence)
    if connection.execute(update(STREAM_SINKS).where(*ours).values(values)).rowcount != 1:
        raise fenced_off(record.sink, "it recorded a batch")


def _save(progress: Progress | None) -> str | None:
    return None if progress is None else progress.save().decode()


def _load(row: Row[Any]) -> StreamRecord:
    progress, earlier = (None if text is None else Progress.load(text) for text in (row.progress, row.earlier))
    return StreamRecord(row.sink, row.stream_id, row.fence, progress, row.transaction_id, earlier)
