"""A stream: what it is, how it is written and scaled, where times lie in it, and why its watermark stands."""

import time as clock
from collections.abc import Iterator, Sequence
from typing import Any

from floodmark._util.ints import check_int64
from floodmark._util.times import Duration, Time, duration_micros, time_in_unit
from floodmark.errors import OffsetOutOfRange, StateError
from floodmark.streams.definition import StreamInfo, StreamSettings, check_writer_id
from floodmark.streams.events import schema_of
from floodmark.streams.layout.layout import KeyRange, Layout
from floodmark.streams.layout.positions import Position
from floodmark.streams.marks.log import Found, MarkEntry, cut_at, ending_at, starting_at, time_at
from floodmark.streams.marks.watermark import WatermarkExplanation
from floodmark.streams.ports import Backend, Chunk, MarksPages
from floodmark.streams.writers.writer import TransactionalWriter, Writer

_POLL_SECONDS = 0.005
_MOST_ENTRIES = 1_000


class Stream:
    """A stream of a home; get one from `StreamHome.create_stream` or `StreamHome.stream`.

    >>> with connect() as home:
    ...     stream = home.create_stream("shop/orders", schema="id BIGINT, at TIMESTAMP", time_columns="at")
    ...     stream.split(0)
    ...     print(stream.layout)
    epoch 1: 1 [0, 0.5), 2 [0.5, 1)
    """

    __slots__ = ("_backend", "_info")

    def __init__(self, backend: Backend, info: StreamInfo) -> None:
        """Use a `StreamHome`."""
        self._backend = backend
        self._info = info

    @property
    def name(self) -> str:
        """Its name."""
        return self._info.name

    @property
    def info(self) -> StreamInfo:
        """What it is now."""
        self._info = self._backend.catalog.refresh(self._info)
        return self._info

    @property
    def settings(self) -> StreamSettings:
        """Its settings now."""
        return self.info.settings

    @property
    def layout(self) -> Layout:
        """Its segments now, and those it ever had."""
        return self.info.layout

    @property
    def schema(self) -> Any:
        """The Arrow schema of the batches that `read` gives; without a schema: key and payload, as bytes."""
        return schema_of(self._info)

    def alter(self, **changes: Any) -> None:
        """Change settings: see `StreamHome.create_stream`. The schema stays as it is.

        >>> with connect() as home:
        ...     stream = home.create_stream("shop/orders")
        ...     stream.alter(writer_timeout="5 seconds")
        ...     stream.settings.writer_timeout
        5000000
        """
        self._info = self._backend.catalog.alter(self._info, changes)

    def scale(self, seal: Sequence[int], ranges: Sequence[KeyRange]) -> None:
        """Seal segments and put others in their place, which have exactly their keys. Writers go on by themselves."""
        self._info = self._backend.log.scale(self._info, lambda layout: layout.replace(seal, ranges))

    def split(self, segment: int, parts: int = 2) -> None:
        """Seal a segment and put equally wide ones in its place."""
        self._info = self._backend.log.scale(self._info, lambda layout: layout.split(segment, parts))

    def merge(self, segments: Sequence[int]) -> None:
        """Seal segments that lie side by side and put one in their place."""
        self._info = self._backend.log.scale(self._info, lambda layout: layout.merge(segments))

    def seal(self) -> None:
        """Let it take no more events, ever."""
        self._info = self._backend.log.seal(self._info)

    def delete(self) -> None:
        """Forget it, with its events and marks."""
        self._backend.catalog.delete(self._info)

    def writer(self, id: str | None = None, *, automatic: bool | Duration = False) -> Writer:  # noqa: A002
        """Open a writer. With an id it may note time, and goes on where an earlier one of that id was.

        An `automatic` one notes the wall clock by itself, every 5 seconds unless it is given an interval.
        """
        writer = None if id is None else check_writer_id(id)
        interval = None
        if automatic is not False:
            every: Duration = "5 seconds" if automatic is True else automatic
            interval = duration_micros(every, "automatic", least=1) / 1e6
            writer = check_writer_id(id)
        info = self.info
        opened = self._backend.registry.open(info, writer, info.settings.keys)
        if writer is not None:
            self._backend.wake()
        # Where an earlier one has left its events is not known here, and its next mark must cover them too.
        position = self.tail() if opened.next_number else {}
        return Writer(self._backend, info, opened, position, interval)

    def transactional_writer(self, id: str) -> TransactionalWriter:  # noqa: A002
        """Open a writer whose events come in transactions. Those an earlier one of that id left open are aborted."""
        info = self.info
        opened = self._backend.registry.open(info, check_writer_id(id), info.settings.keys)
        self._backend.wake()
        return TransactionalWriter(self._backend, info, opened)

    def head(self) -> Position:
        """Return the cut before the first event."""
        return {segment.id: 0 for segment in self.layout.segments_of(0)}

    def tail(self) -> Position:
        """Return the cut behind the last event that is there now."""
        info = self.info
        ends = self._backend.log.ends(info)
        return {segment.id: ends[segment.id] for segment in info.layout.current}

    def ends(self) -> Position:
        """Return the end of every segment, sealed ones included."""
        return self._backend.log.ends(self._info)

    def read(
        self, segment: int, start: int = 0, end: int | None = None, *, max_rows: int | None = None
    ) -> Iterator[Chunk]:
        """Return the events of a segment from offset `start` to before `end`, as Arrow batches with their offsets.

        Without an end it goes to where the segment ends now; events that are not there yet are not waited for.

        >>> with connect() as home:
        ...     stream = home.create_stream("shop/orders", schema="id BIGINT")
        ...     with stream.writer() as writer:
        ...         writer.write_batch([{"id": number} for number in range(10)])
        ...     [(chunk.first, chunk.batch["id"].to_pylist()) for chunk in stream.read(0, 3, max_rows=2)]
        [(3, [3, 4])]
        """
        known = self._backend.catalog.newest_known(self._info)
        if isinstance(segment, int) and segment >= len(known.layout.segments):
            known = self.info
        known.layout.segment(segment)
        stop = self._backend.log.ends(known)[segment] if end is None else check_int64(end, "end")
        start = check_int64(start, "start")
        if max_rows is not None:
            stop = min(stop, start + check_int64(max_rows, "max_rows"))
        if not start >= 0 or (end is not None and end < start) or (max_rows is not None and max_rows < 0):
            raise OffsetOutOfRange(
                f"Events of segment {segment} were to be read from {start} to {stop}.",
                rule="A segment is read from 0 or a later offset on, forward.",
                remedy="Take offsets from head(), tail(), a cut, or a chunk that was read.",
                segment=segment,
                start=start,
                end=end,
            )
        return self._backend.log.read(known, segment, start, stop)

    def marks(self, key: str | None = None, *, after: int = 0, most: int = _MOST_ENTRIES) -> list[MarkEntry]:
        """Return the entries of the marks log in their order, from behind the number `after` on."""
        return self.marks_index(key).page(check_int64(after, "after"), check_int64(most, "most"))

    def marks_index(self, key: str | None = None) -> MarksPages:
        """Return the marks log as what `cut_at`, `WindowReader` and their like look things up in."""
        info = self.info
        return self._backend.marks(info, info.settings.key(key))

    def cut_at(self, time: Time, key: str | None = None) -> Found:
        """Return the place of a time: the newest watermark whose `lower` is not above it."""
        return cut_at(self.marks_index(key), self._time(time))

    def starting_at(self, time: Time, key: str | None = None) -> Found:
        """Return where to begin reading so as to miss no event from a time on."""
        return starting_at(self.marks_index(key), self._time(time))

    def ending_at(self, time: Time, key: str | None = None) -> Found:
        """Return where to end reading so as to have all events below a time."""
        return ending_at(self.marks_index(key), self._time(time))

    def time_at(self, cut: Position, key: str | None = None) -> Found:
        """Return how far time has come at a cut: the newest entry that it has passed."""
        index = self.marks_index(key)
        return time_at(index, cut, self._info.layout)

    def await_mark(self, time: Time, key: str | None = None, timeout: Duration = "10 seconds") -> MarkEntry:
        """Wait until the watermark has come to a time, and return the first entry that says so."""
        index = self.marks_index(key)
        wanted = self._time(time)
        give_up = clock.monotonic() + duration_micros(timeout, "timeout") / 1e6
        while True:
            found = index.oldest_with_lower_at_least(wanted)
            if found is not None:
                return found
            if clock.monotonic() > give_up:
                raise StateError(
                    f"The watermark of {self.name!r} has not come to {wanted}: {self.why(key)}.",
                    rule="It comes when every writer that is waited for has noted a later time.",
                    remedy="See who holds it, or wait longer.",
                    stream=self.name,
                    time=wanted,
                )
            clock.sleep(_POLL_SECONDS)

    def why(self, key: str | None = None) -> WatermarkExplanation:
        """Return why the watermark stands where it stands: who holds it, until when, and who is not waited for."""
        info = self.info
        return self._backend.explain(info, info.settings.key(key))

    def _time(self, time: Time) -> int:
        return time_in_unit(time, self._info.settings.unit)

    def __repr__(self) -> str:
        return f"Stream({self.name!r})"
