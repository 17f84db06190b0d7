"""Lanes: one segment each that a reader reads, with where it is, what was acknowledged, and an open iterator."""

from collections.abc import Iterator

from floodmark.streams._catalog import StreamInfo
from floodmark.streams._log import Chunk, EventLog
from floodmark.streams._windows import WindowReader
from floodmark.streams.readers._state import Share


class Lane:
    """A segment that a reader reads. `offset` is what comes next, `acked` up to where it counts as read."""

    __slots__ = ("_chunks", "_rest", "_target", "acked", "end", "offset", "share", "stop", "window")

    def __init__(self, share: Share, offset: int, window: WindowReader) -> None:
        """Begin at an offset. How far the segment goes is not known yet."""
        self.share = share
        self.offset = self.acked = self.end = offset
        self.stop: int | None = None
        """Where the group ends in this segment, if it does."""
        self.window = window
        """Where this segment, taken alone, is in time."""
        self._target = offset
        self._chunks: Iterator[Chunk] | None = None
        self._rest: Chunk | None = None

    @property
    def limit(self) -> int:
        """Up to where it can be read now."""
        return self.end if self.stop is None else min(self.end, self.stop)

    @property
    def is_dry(self) -> bool:
        """Whether nothing is there to be read now."""
        return self.offset >= self.limit and self._rest is None

    def see(self, end: int) -> None:
        """Take note of where the segment ends now."""
        self.end = max(self.end, end)

    def acknowledge(self) -> bool:
        """Let all that was read count, and return whether that is more than before."""
        is_more = self.acked < self.offset
        self.acked = self.offset
        return is_more

    def next(self, log: EventLog, stream: StreamInfo, most: int) -> Chunk | None:
        """Return the next events, at most so many; None if there are none now."""
        while not self.is_dry:
            chunk = self._rest or self._read(log, stream)
            self._rest = None
            if chunk is None:
                continue
            if chunk.batch.num_rows > most:
                cut = chunk.first + most
                chunk, self._rest = chunk.slice(chunk.first, cut), chunk.slice(cut, chunk.end)
            self.offset = chunk.end
            return chunk
        return None

    def _read(self, log: EventLog, stream: StreamInfo) -> Chunk | None:
        if self._chunks is None:
            self._target = self.limit
            self._chunks = log.read(stream, self.share[1], self.offset, self._target)
        chunk = next(self._chunks, None)
        if chunk is None:
            # A log may leave numbers out: what was asked for is read, though the last event lies before its end.
            self._chunks = None
            self.offset = self._target
        return chunk
