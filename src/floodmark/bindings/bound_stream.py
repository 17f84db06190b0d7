"""A stream as a bound source: its segments are the partitions, its marks give the watermarks of the bindings."""

from collections.abc import Mapping
from typing import Final

from floodmark._util.times import Duration
from floodmark.bindings.bindings import Bindings
from floodmark.bindings.history import BindingHistory, SourceState
from floodmark.bindings.timestamps import Proposals
from floodmark.errors import MintLost
from floodmark.streams import Layout, Position, Stream, StreamHome
from floodmark.streams.layout.positions import expand_cut
from floodmark.streams.marks.log import EntryKind, MarkEntry, time_at

_PAST_STEPS: Final = 500
"""Events from before the first tick are bound to at most this many timestamps."""


class BoundStream:
    """A stream whose events get timestamps as they arrive.

    >>> with connect(clock=lambda: 1_200_000) as home:
    ...     with home.create_stream("shop/orders").writer() as writer:
    ...         writer.write({"id": 1})
    ...     BoundStream(home, "shop/orders").tick().ends
    {0: 1}

    Events from before the first tick are bound along the stream's marks, as if the stream had been ticked all along. So
    the watermark of a query over the past rises as it reads, instead of keeping every window open until the end.
    """

    __slots__ = ("bindings", "source", "stream")

    def __init__(
        self,
        home: StreamHome,
        stream: str,
        *,
        source: str | None = None,
        bindings: Bindings | None = None,
        **settings: Duration | None,
    ) -> None:
        """Register the stream as a source; the default source id is the name of the stream.

        `settings` are those of `Bindings.register`.
        """
        self.stream: Stream = home.stream(stream)
        self.source = source or stream
        self.bindings = Bindings(home.home) if bindings is None else bindings
        identity = {"stream": self.stream.name, "stream_id": self.stream.info.id}
        self.bindings.register(self.source, kind="stream", identity=identity, **settings)

    def history(self) -> BindingHistory:
        """Return the stored bindings."""
        return self.bindings.history(self.source)

    def tick(self, *, at_once: bool = False) -> BindingHistory:
        """Bind new events if there are any and a tick is due, and return the history.

        With `at_once`, all events now in the stream are bound without waiting for the tick.
        """
        history = self.history()
        if history.upper == history.origin:
            history = self._bind_past(history)
        seen = _StreamEnds(self.stream, history)
        ends = seen.ends()
        is_bound = all(history.ends.get(segment, 0) >= end for segment, end in ends.items())
        if is_bound and not history.risen(seen.watermarks(ends)) and seen.state(ends) == history.state:
            return history
        if not at_once:
            return self.bindings.tick(self.source, seen.ends, seen.watermarks, state=seen.state).history
        while True:
            try:
                current = self.bindings.history(self.source)
                ends = seen.ends()
                watermarks, state = seen.watermarks(ends), seen.state(ends)
                return self.bindings.mint(self.source, ends, watermarks, expected_upper=current.upper, state=state)
            except MintLost:
                continue

    def ends_at(self, cut: Position) -> dict[int, int]:
        """Return a cut as the ends of all segments that it has passed or lies in."""
        return expand_cut(self.stream.layout, cut, self.stream.ends())

    def _bind_past(self, history: BindingHistory) -> BindingHistory:
        """Bind the events from before the first tick, one timestamp for each of a sample of the marks."""
        layout, ends = self.stream.layout, self.stream.ends()
        index = self.stream.marks_index()
        numbers = index.numbers()
        proposals = Proposals(history)
        last = 0
        for number in numbers[:: max(1, -(-len(numbers) // _PAST_STEPS))]:
            entry = index.entry_from(number)
            if entry.seq == last:
                # Retention has deleted several of the sample meanwhile.
                continue
            last = entry.seq
            if max(entry.cut) >= len(layout.segments):
                break
            offsets = expand_cut(layout, entry.cut, ends)
            if any(offset > ends[segment] for segment, offset in offsets.items()):
                # The entry was written after the ends were read; the first tick binds up to it.
                break
            for segment, offset in offsets.items():
                proposals.propose(segment, offset)
            proposals.note_watermarks(_watermarks(_entries_at_cut(self.stream, layout, entry.cut)))
            proposals.close(proposals.current_ts + 1)
        self.bindings.flush(self.source, proposals)
        return self.history()


class _StreamEnds:
    """The ends of a stream, and the watermarks that hold once everything before them was read."""

    def __init__(self, stream: Stream, history: BindingHistory) -> None:
        self._stream = stream
        self._bound = history.ends
        self._layout = stream.layout
        self._passed: tuple[dict[int, int], dict[str, MarkEntry | None]] | None = None

    def ends(self) -> dict[int, int]:
        # Read the layout first: with an older layout a watermark can only be too low, never too high.
        layout = self._layout = self._stream.layout
        ends = self._stream.ends()
        # Sealed segments that are bound completely need no further pairs.
        return {
            segment: end
            for segment, end in ends.items()
            if segment >= len(layout.segments) or not layout.is_sealed(segment) or self._bound.get(segment) != end
        }

    def watermarks(self, ends: Mapping[int, int]) -> dict[str, int]:
        return _watermarks(self._entries(ends))

    def state(self, ends: Mapping[int, int]) -> SourceState:
        """Return the state of the stream at these ends: an event after the last entry revives it on all keys."""
        entries = list(self._entries(ends).values())
        if any(entry is None or entry.kind is EntryKind.WATERMARK for entry in entries):
            return "active"
        for entry in entries:
            passed = expand_cut(self._layout, {} if entry is None else entry.cut, {**self._bound, **ends})
            if any(end > passed.get(segment, 0) for segment, end in ends.items()):
                return "active"
        is_unknown = any(entry is not None and entry.kind is EntryKind.UNKNOWN for entry in entries)
        return "unknown" if is_unknown else "idle"

    def _entries(self, ends: Mapping[int, int]) -> dict[str, MarkEntry | None]:
        """Return the last entry of each key that these ends have passed; read once, so that all answers agree."""
        if self._passed is None or self._passed[0] != ends:
            cut = {segment.id: ends.get(segment.id, 0) for segment in self._layout.current}
            self._passed = dict(ends), _entries_at_cut(self._stream, self._layout, cut)
        return self._passed[1]


def _entries_at_cut(stream: Stream, layout: Layout, cut: Position) -> dict[str, MarkEntry | None]:
    return {key: time_at(stream.marks_index(key), cut, layout).entry for key in stream.settings.keys}


def _watermarks(entries: Mapping[str, MarkEntry | None]) -> dict[str, int]:
    return {key: entry.lower for key, entry in entries.items() if entry is not None and entry.lower is not None}
