"""Where pages wait on disk until the last has come: only then is it known which columns there are."""

import struct
from collections.abc import Iterator
from tempfile import TemporaryFile
from typing import IO, Any, Final

import pyarrow as pa

_HEADER: Final = struct.Struct("<QQ")


class Spool:
    """Texts of any length, in the order in which they were added; on disk, compressed, and gone when closed.

    >>> with Spool() as spool:
    ...     spool.add(b"one")
    ...     spool.add(b"two")
    ...     list(spool)
    [b'one', b'two']
    """

    def __init__(self) -> None:
        self._file: IO[bytes] = TemporaryFile(prefix="floodmark-")  # noqa: SIM115 - closed by close
        self._codec = pa.Codec("zstd", compression_level=1)

    def add(self, text: bytes) -> None:
        """Keep a text."""
        packed = self._codec.compress(text, asbytes=True)
        self._file.write(_HEADER.pack(len(packed), len(text)))
        self._file.write(packed)

    def __iter__(self) -> Iterator[bytes]:
        """Give all texts back."""
        self._file.seek(0)
        while header := self._file.read(_HEADER.size):
            packed, whole = _HEADER.unpack(header)
            yield self._codec.decompress(self._file.read(packed), whole, asbytes=True)

    def __enter__(self) -> "Spool":
        return self

    def __exit__(self, *error: Any) -> None:
        self._file.close()
