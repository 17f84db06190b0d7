"""What is read of a stream: the options as text, the settings they mean, where reading begins and ends, the columns."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from floodmark._util.options import refuse_unknown_options
from floodmark._util.text import did_you_mean
from floodmark._util.times import duration_micros, time_in_unit
from floodmark.bindings import BoundStream
from floodmark.errors import InvalidOption, UnknownColumn, UnsupportedFrame
from floodmark.spark.source.bound_reader import IS_MARK, ROWS_PER_TASK, TimeFilter
from floodmark.streams import Position, Stream, StreamSettings
from floodmark.streams.events import PAYLOAD_SCHEMA
from floodmark.streams.layout.positions import check_cut, load_position

OPTIONS: Final = {
    "stream": "the name of the stream",
    "home": "its home; by default that of the environment",
    "source": "the id under which its bindings are kept; by default the name of the stream",
    "columns": "which columns to read, as a JSON list; by default all, and where each row lies",
    "key": "the time key; by default the first",
    "startingTime": "read rows from this time on",
    "startingCut": "begin at this cut",
    "endingTime": "read rows before this time, and end",
    "endingCut": "end at this cut",
    "maxRowsPerTrigger": "how many rows a batch may have",
    "maxBytesPerTrigger": "how many bytes a batch may have, about",
    "maxEventTimePerTrigger": "how far the watermark may move in a batch",
    "align": "a name that other queries have too: none runs ahead of the slowest",
    "maxAhead": "how far ahead of the slowest it may be",
    "settle": "whether batches end where the watermark moves, with an empty one after it",
    "rowsPerTask": "how many rows a task reads, at most",
    "marks": "whether a row without data tells where the watermark is; see read_stream",
    "asOf": "read what was bound at this timestamp; in a batch only",
    "reader": "what tells this DataFrame from others; read_stream gives it, and write_stream needs it",
}
"""The options, which Spark gives in small letters, and what each says."""


_OPTION_NAMES: Final = {name.lower(): name for name in OPTIONS}
_SPARK_OPTIONS: Final = ("path",)


@dataclass(frozen=True, slots=True)
class StreamReadSettings:
    """What is to be read of a stream, and in which portions."""

    stream: str
    home: str | None = None
    source: str | None = None
    columns: tuple[str, ...] | None = None
    key: str | None = None
    starting_time: str | None = None
    starting_cut: str | None = None
    ending_time: str | None = None
    ending_cut: str | None = None
    max_rows: int | None = None
    max_bytes: int | None = None
    max_event_time: int | None = None
    align: str | None = None
    max_ahead: int = 0
    settle: bool = False
    rows_per_task: int = ROWS_PER_TASK
    marks: bool = False
    as_of: str | None = None
    reader: str | None = None

    @property
    def mark_rows(self) -> bool:
        """Whether a row without data tells where the watermark is."""
        return self.marks

    @classmethod
    def of(cls, options: Mapping[str, str]) -> "StreamReadSettings":
        """Return the settings that options say, or refuse them.

        >>> StreamReadSettings.of({"stream": "orders", "maxrowspertrigger": "1000"}).max_rows
        1000
        >>> StreamReadSettings.of({"stream": "orders", "maxRowsPerTriger": "1000"})
        Traceback (most recent call last):
        floodmark.errors.InvalidOption: There is no option 'maxRowsPerTriger'. ... 'maxRowsPerTrigger'? [invalid-option]
        """
        others = {
            name: value for name, value in options.items() if name.lower() not in (*_OPTION_NAMES, *_SPARK_OPTIONS)
        }
        refuse_unknown_options(others, OPTIONS)
        given = {_OPTION_NAMES[name.lower()]: value for name, value in options.items() if name.lower() in _OPTION_NAMES}
        stream = given.get("stream") or options.get("path")
        if not stream:
            raise InvalidOption(
                "No stream was named.",
                rule="The option stream names what is read.",
                remedy="Write .option('stream', 'shop/orders').",
                option="stream",
            )
        for one, other in (("startingTime", "startingCut"), ("endingTime", "endingCut"), ("endingCut", "asOf")):
            if one in given and other in given:
                raise InvalidOption(
                    f"Both {one} and {other} are given.",
                    rule="A place is told by one of them.",
                    remedy="Leave one out.",
                    option=other,
                    value=given[other],
                )
        duration = given.get("maxEventTimePerTrigger")
        return cls(
            stream=stream,
            home=given.get("home"),
            source=given.get("source"),
            columns=parse_names(given, "columns"),
            key=given.get("key"),
            starting_time=given.get("startingTime"),
            starting_cut=given.get("startingCut"),
            ending_time=given.get("endingTime"),
            ending_cut=given.get("endingCut"),
            max_rows=parse_count(given, "maxRowsPerTrigger"),
            max_bytes=parse_count(given, "maxBytesPerTrigger"),
            max_event_time=None if duration is None else duration_micros(duration, "maxEventTimePerTrigger", least=1),
            align=given.get("align"),
            max_ahead=duration_micros(given.get("maxAhead", "0 seconds"), "maxAhead"),
            settle=parse_flag(given, "settle"),
            rows_per_task=parse_count(given, "rowsPerTask") or ROWS_PER_TASK,
            marks=parse_flag(given, "marks"),
            as_of=given.get("asOf"),
            reader=given.get("reader"),
        )


def parse_time(text: str, option: str) -> int | datetime:
    """Return a time that was written as a number, or as ISO 8601 with a zone.

    >>> parse_time("1500", "startingTime"), parse_time("2026-01-31T12:00:00Z", "startingTime").hour
    (1500, 12)
    """
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise InvalidOption(
            f"{option} is {text!r}.",
            rule="It is a whole number in the unit of the stream, or a time as ISO 8601 writes it.",
            remedy="Write for example 2026-01-31T12:00:00Z.",
            option=option,
            value=text,
        ) from None


def parse_cut(text: str, option: str, stream: Stream) -> Position:
    """Return a cut of a stream that was written as JSON."""
    try:
        saved: Any = json.loads(text)
        position = load_position(saved)
    except (AttributeError, TypeError, ValueError) as error:
        raise InvalidOption(
            f"{option} is {text!r:.100}.",
            rule="It is a cut as JSON: the ids of segments as text, and offsets.",
            remedy="""Write for example {"0": 100}.""",
            option=option,
            value=text,
        ) from error
    return check_cut(stream.layout, position)


def parse_names(given: Mapping[str, str], option: str) -> tuple[str, ...] | None:
    """Return names that were written as a JSON list; None if the option is not given."""
    text = given.get(option)
    if text is None:
        return None
    try:
        names: Any = json.loads(text)
    except ValueError:
        names = None
    if isinstance(names, list) and names and all(isinstance(name, str) for name in names):
        return tuple(dict.fromkeys(names))
    raise InvalidOption(
        f"{option} is {text!r:.100}.",
        rule="It is a JSON list of names.",
        remedy="""Write for example ["id", "_ts"], or leave it out for all.""",
        option=option,
        value=text,
    )


def parse_count(given: Mapping[str, str], option: str) -> int | None:
    """Return a number above 0; None if the option is not given."""
    text = given.get(option)
    if text is None:
        return None
    if text.isdecimal() and int(text) > 0:
        return int(text)
    raise InvalidOption(
        f"{option} is {text!r}.",
        rule="It is a whole number above 0.",
        remedy="Leave it out for no limit.",
        option=option,
        value=text,
    )


def parse_flag(given: Mapping[str, str], option: str) -> bool:
    """Return a truth value; False if the option is not given."""
    text = given.get(option, "false").lower()
    if text not in ("true", "false"):
        raise InvalidOption(
            f"{option} is {text!r}.",
            rule="It is true or false.",
            remedy="Leave it out for false.",
            option=option,
            value=text,
        )
    return text == "true"


@dataclass(frozen=True, slots=True)
class ReadRange:
    """The bounds of a query; times are in the stream's unit."""

    key: str
    unit: str
    starting_time: int | None = None
    starting_cut: Position | None = None
    ending_time: int | None = None
    ending_cut: Position | None = None
    rows: TimeFilter | None = None

    @classmethod
    def of(cls, settings: StreamReadSettings, stream: Stream) -> "ReadRange":
        """Return the bounds that the options say, or refuse them."""
        known = stream.settings
        key, unit = known.key(settings.key), known.unit
        lower, upper = (
            None if text is None else time_in_unit(parse_time(text, option), unit)
            for text, option in ((settings.starting_time, "startingTime"), (settings.ending_time, "endingTime"))
        )
        rows = None
        if lower is not None or upper is not None:
            _check_time_column(stream, key)
            rows = TimeFilter(key, lower, upper)
        cuts = (
            None if text is None else parse_cut(text, option, stream)
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


MICROS_TYPE: Final = pa.timestamp("us", "UTC")


def stream_spark_schema(stream: StreamSettings, settings: StreamReadSettings) -> StructType:
    """Return the columns that are read of a stream, and those that are added.

    Each may be null, since a row that only tells the watermark has no data.
    """
    return from_arrow_schema(stream_arrow_schema(stream, settings), prefer_timestamp_ntz=True)


def stream_arrow_schema(stream: StreamSettings, settings: StreamReadSettings) -> Any:
    """Return the columns that are read of a stream, and those that are added, as Arrow has them."""
    payload = PAYLOAD_SCHEMA if stream.schema is None else stream.schema
    stamps = pa.struct([(key, MICROS_TYPE) for key in stream.keys])
    places = [("_segment", pa.int64()), ("_offset", pa.int64()), ("_ts", MICROS_TYPE), ("_w", stamps)]
    known = [*(field.with_nullable(True) for field in payload), *(pa.field(*column) for column in places)]
    if settings.columns is not None:
        fields = {field.name: field for field in known}
        for name in settings.columns:
            if name not in fields:
                raise UnknownColumn(
                    f"The stream {settings.stream!r} has no column {name!r}.",
                    rule=f"Its columns are {', '.join(fields)}.",
                    remedy=did_you_mean(name, fields, otherwise="Leave it out."),
                    column=name,
                )
        known = [fields[name] for name in settings.columns]
    return pa.schema([*known, pa.field(IS_MARK, pa.bool_())] if settings.marks else known)
