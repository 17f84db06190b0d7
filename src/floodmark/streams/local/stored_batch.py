"""Events as the store keeps them: the bytes of an Arrow record batch, with a checksum that is tested on reading."""

import zlib
from typing import Any, Final

import numpy as np
import pyarrow as pa

from floodmark.errors import EventsDamaged

Place = dict[str, Any]
"""Where stored events are, as fields of an error: the stream, and a segment and offset, or a transaction and part."""

_COLUMNS: Final = 256
_BLOCK: Final = 8 * _COLUMNS
_LEAST_SUMMED: Final = 8 * _BLOCK


def checksum_of(content: Any, start: int = 0) -> int:
    """Return the checksum of bytes, which follow bytes with the checksum `start`.

    It finds damage, not forgery. Short content has a CRC-32. Of long content, the words of 8 bytes are added up in
    columns and in rows, and the CRC-32 is that of the sums: this is several times faster, and every change of one
    word, or of several that are not in the corners of a rectangle, still changes it.

    >>> checksum_of(b"events"), checksum_of(b"event!") == checksum_of(b"events")
    (1401378634, False)
    >>> content = bytearray(1_000_000)
    >>> before, content[500_000] = checksum_of(content), 1
    >>> checksum_of(content) == before
    False
    """
    size = len(content)
    if size < _LEAST_SUMMED:
        return zlib.crc32(content, start)
    rows = size // _BLOCK
    words = np.frombuffer(content, "<u8", rows * _COLUMNS).reshape(rows, _COLUMNS)
    checksum = zlib.crc32(np.add.reduce(words, axis=0).data, start)
    checksum = zlib.crc32(np.add.reduce(words, axis=1).data, checksum)
    return zlib.crc32(memoryview(content)[rows * _BLOCK :], checksum)


def pack_batch(batch: Any, points: bytes = b"") -> tuple[memoryview, int]:
    """Return the bytes of a batch, and the checksum of them and of the positions of its keys, if they are stored."""
    body = memoryview(batch.serialize())
    return body, checksum_of(body, checksum_of(points))


def unpack_batch(
    body: bytes, events: int, schema: Any, checksum: int | None, place: Place, points: bytes | None = None
) -> Any:
    """Return a batch of so many events, or raise `EventsDamaged`. Earlier releases stored no checksum.

    >>> batch = pa.record_batch({"id": [1, 2]})
    >>> body, checksum = pack_batch(batch)
    >>> unpack_batch(bytes(body), 2, batch.schema, checksum, {"stream": "orders", "segment": 0, "offset": 7}).num_rows
    2
    >>> unpack_batch(bytes(body[:-8]), 2, batch.schema, checksum, {"stream": "orders", "segment": 0, "offset": 7})
    Traceback (most recent call last):
    floodmark.errors.EventsDamaged: Stored events are damaged (stream 'orders', ...): ... [events-damaged]
    """
    if checksum is not None and checksum_of(body, checksum_of(points or b"")) != checksum:
        raise _damaged(place, "their checksum is wrong")
    try:
        batch = pa.ipc.read_record_batch(pa.py_buffer(body), schema)
        if checksum is None:
            # Nothing else keeps wrong offsets from reading other memory.
            batch.validate(full=True)
    except (pa.ArrowException, EOFError, OSError) as error:
        raise _damaged(place, f"reading them failed with {str(error)!r:.200}") from error
    if batch.num_rows != events or (points is not None and len(points) != 8 * events):
        raise _damaged(place, f"there are not {events} of them")
    return batch


def _damaged(place: Place, why: str) -> EventsDamaged:
    shown = ", ".join(f"{name} {value!r}" for name, value in place.items())
    return EventsDamaged(
        f"Stored events are damaged ({shown}): {why}.",
        rule="Events are read exactly as they were written.",
        remedy="Check the disk, and restore the home from a backup; events behind these can still be read.",
        **place,
    )
