"""Where reading of a stream begins and ends, by time or by cut, and which rows that leaves out."""

from dataclasses import dataclass

import pyarrow as pa

from floodmark._util.times import time_in_unit
from floodmark.bindings import BoundStream
from floodmark.errors import UnsupportedFrame
from floodmark.spark._stream_rows import TimeFilter
from floodmark.spark._stream_settings import ReadSettings, cut_from, time_from
from floodmark.streams import Position, Stream


@dataclass(frozen=True, slots=True)
class Bounds:
    """The bounds of a query; times are in the stream's unit."""

    key: str
    unit: str
    starting_time: int | None = None
    starting_cut: Position | None = None
    ending_time: int | None = None
    ending_cut: Position | None = None
    rows: TimeFilter | None = None

    @classmethod
    def of(cls, settings: ReadSettings, stream: Stream) -> "Bounds":
        """Return the bounds that the options say, or refuse them."""
        known = stream.settings
        key, unit = known.key(settings.key), known.unit
        lower, upper = (
            None if text is None else time_in_unit(time_from(text, option), unit)
            for text, option in ((settings.starting_time, "startingTime"), (settings.ending_time, "endingTime"))
        )
        rows = None
        if lower is not None or upper is not None:
            _check_time_column(stream, key)
            rows = TimeFilter(key, lower, upper)
        cuts = (
            None if text is None else cut_from(text, option, stream)
            for text, option in ((settings.starting_cut, "startingCut"), (settings.ending_cut, "endingCut"))
        )
        starting_cut, ending_cut = cuts
        return cls(key, unit, lower, starting_cut, upper, ending_cut, rows)

    def start(self, bound: BoundStream) -> Position | None:
        """Return the cut to begin at; None for the head."""
        if self.starting_time is not None:
            # A row of just this time may lie before a mark of this time: only what ends below it lies behind.
            return bound.stream.starting_at(self.starting_time - 1, self.key).cut
        return self.starting_cut

    def end(self, bound: BoundStream) -> dict[int, int] | None:
        """Return how far each segment is read; None for all of it, or while time has not come to the end yet."""
        cut = self.ending_cut
        if self.ending_time is not None:
            cut = bound.stream.ending_at(self.ending_time, self.key).cut
        return None if cut is None else bound.ends_at(cut)

    def rows_of(self, most_bytes: int | None, bound: BoundStream) -> int | None:
        """Return how many rows have about so many bytes, by the newest ones."""
        if most_bytes is None:
            return None
        for segment, end in bound.stream.tail().items():
            for chunk in bound.stream.read(segment, max(0, end - 1000), end):
                if chunk.batch.num_rows:
                    return max(1, most_bytes * int(chunk.batch.num_rows) // max(1, int(chunk.batch.nbytes)))
        return None


def _check_time_column(stream: Stream, key: str) -> None:
    column = stream.settings.time_columns[key]
    schema = stream.settings.schema
    if column is None or schema is None or not pa.types.is_timestamp(schema.field(column).type):
        raise UnsupportedFrame(
            f"The stream {stream.name!r} has no column of type TIMESTAMP for the key {key!r}.",
            rule="Rows are compared with a time by a column of the stream's schema.",
            remedy="Bound the query by cuts, or create the stream with a schema and time_columns.",
            stream=stream.name,
            key=key,
        )
