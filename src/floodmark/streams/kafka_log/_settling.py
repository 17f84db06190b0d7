"""What counts of a flush: it is settled in the store, after Kafka has it. What a crash left open is found again.

The order is what makes it safe. Kafka has acknowledged the records, and only then the state of their segments is read,
in a transaction that begins afterwards: a segment that is open then ends behind them, whoever seals it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, delete, select

from floodmark._util.codec import from_json, to_json
from floodmark.control.store.base import upsert_row
from floodmark.streams._catalog import StreamInfo
from floodmark.streams._log import Author
from floodmark.streams._positions import Position, load_position, save_position
from floodmark.streams._schema import SEGMENTS, SENT
from floodmark.streams._table_log import COUNT_NEXT

OPEN: Final = 0
SEALED: Final = 1
SEALING: Final = 2

Numbers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SegmentState:
    """What the store says of a segment: whether it is open, and where it ends once it is sealed."""

    state: int
    end: int


@dataclass(frozen=True, slots=True)
class Sent:
    """What is known of a writer's records: all its unsettled ones lie behind `position`, and some were found there.

    A segment that the position does not name was made later, and is looked at from its beginning.
    """

    position: Position
    first_number: int
    found: bytes = b""
    """A bit for each event from `first_number` on: whether Kafka has it, though its writer never heard so."""
    looked_by: str = ""
    """Which process has looked last, or has settled since: it knows of everything that it has sent itself."""

    @classmethod
    def of(cls, position: Position, first_number: int, found: Numbers, looked_by: str) -> "Sent":
        """Return it with those of the found numbers that are not below the first."""
        return cls(position, first_number, packed(found[found >= first_number].tolist(), first_number), looked_by)

    @property
    def numbers_found(self) -> Numbers:
        """The numbers of the events that were found.

        >>> Sent({}, 10, packed([10, 12], 10)).numbers_found.tolist()
        [10, 12]
        """
        bits = np.unpackbits(np.frombuffer(self.found, np.uint8))
        return np.flatnonzero(bits).astype(np.int64) + self.first_number

    def places_found(self, first_number: int, count: int) -> NDArray[np.bool_]:
        """Return for each event from a number on whether it was found.

        >>> Sent({}, 10, packed([10, 12], 10)).places_found(10, 4).tolist()
        [True, False, True, False]
        >>> Sent({}, 10, packed([10, 12], 10)).places_found(11, 1).tolist()
        [False]
        """
        found = np.zeros(count, np.bool_)
        if self.found and self.first_number == first_number:
            bits = np.unpackbits(np.frombuffer(self.found, np.uint8))[:count].astype(np.bool_)
            found[: len(bits)] = bits
        return found


def packed(numbers: Iterable[int], first_number: int) -> bytes:
    """Return a bit for each number from the first on: whether it is among them."""
    places = np.fromiter(numbers, np.int64) - first_number
    if not len(places):
        return b""
    bits = np.zeros(int(places.max()) + 1, np.uint8)
    bits[places] = 1
    return np.packbits(bits).tobytes()


def first_missing(found: Numbers, next_number: int) -> int:
    """Return the first number, from the next one on, that was not found.

    >>> first_missing(np.array([5, 6, 8]), 5), first_missing(np.array([6]), 5)
    (7, 5)
    """
    ahead = np.unique(found[found >= next_number])
    gaps = np.flatnonzero(ahead != np.arange(next_number, next_number + len(ahead)))
    return next_number + (len(ahead) if not len(gaps) else int(gaps[0]))


def read_states(connection: Connection, stream: StreamInfo, segments: Iterable[int]) -> dict[int, SegmentState]:
    """Return what the store says of segments, in this transaction."""
    wanted = select(SEGMENTS.c.segment, SEGMENTS.c.sealed, SEGMENTS.c.end_offset)
    here = (SEGMENTS.c.stream_id == stream.id, SEGMENTS.c.segment.in_(list(segments)))
    return {
        row.segment: SegmentState(row.sealed, row.end_offset) for row in connection.execute(wanted.where(*here)).all()
    }


def read_sent(connection: Connection, stream: StreamInfo, writer: str) -> Sent | None:
    """Return what is known of the records of a writer."""
    row = connection.execute(select(SENT).where(*_of(stream, writer))).one_or_none()
    if row is None:
        return None
    return Sent(load_position(from_json(row.position)), row.first_number, bytes(row.found), row.looked_by)


def write_sent(connection: Connection, stream: StreamInfo, writer: str, sent: Sent) -> None:
    """Keep what is known of the records of a writer."""
    position = to_json(save_position(sent.position), "position")
    row: dict[str, Any] = {"stream_id": stream.id, "writer": writer, "position": position}
    upsert_row(
        connection, SENT, {**row, "first_number": sent.first_number, "found": sent.found, "looked_by": sent.looked_by}
    )


def forget_sent(connection: Connection, stream: StreamInfo, writer: str) -> None:
    """Forget what is known of the records of a writer: it has none that are not settled."""
    connection.execute(delete(SENT).where(*_of(stream, writer)))


def settle(
    connection: Connection,
    stream: StreamInfo,
    author: Author,
    numbers: tuple[int, int],
    ends: Mapping[int, int],
    now: int,
    looked_by: str,
) -> bool:
    """Let events from a number to before another count, if they are the next ones of the newest instance."""
    first, after = numbers
    sent = {"s": stream.id, "w": author.writer, "i": author.instance, "first": first, "after": after, "now": now}
    if connection.execute(COUNT_NEXT, sent).rowcount != 1:
        return False
    before = read_sent(connection, stream, author.writer) or Sent({}, first)
    position = dict(before.position)
    for segment, end in ends.items():
        position[segment] = max(end, position.get(segment, 0))
    # What was found further on is still not settled.
    write_sent(connection, stream, author.writer, Sent.of(position, after, before.numbers_found, looked_by))
    return True


def _of(stream: StreamInfo, writer: str) -> tuple[Any, Any]:
    return SENT.c.stream_id == stream.id, SENT.c.writer == writer
