"""The options of a query that reads a stream: their parsing, the range of the stream to read, and the columns."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final, cast, get_args

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from floodmark._util.codec import parse_json
from floodmark._util.options import refuse_unknown_options, require_one_of
from floodmark._util.text import did_you_mean
from floodmark._util.times import duration_micros, time_in_unit
from floodmark.bindings import BoundStream
from floodmark.bindings.sources import check_source_settings
from floodmark.errors import InvalidOption, UnknownColumn, UnsupportedFrame
from floodmark.spark.source.bound_reader import IS_MARK, ROWS_PER_TASK, OnIdle, TimeFilter
from floodmark.streams import Position, Stream, StreamSettings
from floodmark.streams.events import PAYLOAD_SCHEMA
from floodmark.streams.layout.positions import check_cut, load_position

OPTIONS: Final = {
    "stream": "the name of the stream",
    "home": "its home; by default that of the environment",
    "source": "the id of its binding history; by default the name of the stream",
    "tick": "the interval at which timestamps are closed, if the source is new",
    "compactionWindow": "how far back timestamps stay readable that no query holds, or never, if the source is new",
    "columns": "the columns to read, as a JSON list; by default all",
    "key": "the time key; by default the first",
    "startingTime": "read rows from this time on",
    "startingCut": "begin at this cut",
    "endingTime": "read rows before this time, then end",
    "endingCut": "end at this cut",
    "maxRowsPerTrigger": "the most rows of a batch",
    "maxBytesPerTrigger": "about the most bytes of a batch",
    "maxEventTimePerTrigger": "how far the watermark may advance in a batch",
    "align": "the name of a group of queries of which none runs ahead of the slowest",
    "maxAhead": "how far the query may be ahead of the slowest of its group",
    "settle": "whether batches end where the watermark advances, followed by an empty batch",
    "rowsPerTask": "the most rows of a task",
    "marks": "whether each batch has a row with the watermark and no data; set by read_stream",
    "asOf": "read the rows bound up to this timestamp; in a batch query only",
    "checkWorkers": "whether worker processes compare their version of the package with the driver's",
    "onIdle": "hold or release: whether a source without active writers lets the other inputs of a query pass",
    "idleAfter": "after how long without news the source counts as idle, if all of it is read; by default never",
    "reader": "the id of the DataFrame; set by read_stream, needed by write_stream",
}
"""The options and their meaning. Spark passes option names in lower case."""

_OPTION_NAMES: Final = {name.lower(): name for name in OPTIONS}
_SPARK_OPTIONS: Final = ("path",)


@dataclass(frozen=True, slots=True)
class StreamReadSettings:
    """The parsed options of a query that reads a stream."""

    stream: str
    home: str | None = field(default=None, repr=False)
    source: str | None = None
    tick: str | None = None
    compaction_window: str | None = None
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
    check_workers: bool = True
    reader: str | None = None
    on_idle: OnIdle = "hold"
    idle_after: int | None = None
    stream_columns: int | None = None
    """How many columns the stream had when the query was planned; it may have more by now."""

    @property
    def source_settings(self) -> dict[str, Any]:
        """The settings of the source that the options state."""
        return given_source_settings(self.tick, self.compaction_window)

    @property
    def mark_rows(self) -> bool:
        """Whether each batch has a row with the watermark and no data."""
        return self.marks

    @classmethod
    def of(cls, options: Mapping[str, str]) -> "StreamReadSettings":
        """Return the settings that options describe.

        >>> StreamReadSettings.of({"stream": "orders", "maxrowspertrigger": "1000"}).max_rows
        1000
        >>> StreamReadSettings.of({"stream": "orders", "maxRowsPerTriger": "1000"})
        Traceback (most recent call last):
        floodmark.errors.InvalidOption: There is no option 'maxRowsPerTriger'. ... 'maxRowsPerTrigger'? [invalid-option]
        """
        unknown = {
            name: value for name, value in options.items() if name.lower() not in (*_OPTION_NAMES, *_SPARK_OPTIONS)
        }
        refuse_unknown_options(unknown, OPTIONS)
        texts = {_OPTION_NAMES[name.lower()]: value for name, value in options.items() if name.lower() in _OPTION_NAMES}
        stream = texts.get("stream") or options.get("path")
        if not stream:
            raise InvalidOption(
                "The option stream is missing.",
                rule="It names the stream to read.",
                remedy="Write .option('stream', 'shop/orders').",
                option="stream",
            )
        for option, other in (("startingTime", "startingCut"), ("endingTime", "endingCut"), ("endingCut", "asOf")):
            if option in texts and other in texts:
                raise InvalidOption(
                    f"Both {option} and {other} are given.",
                    rule="They both set the same end of the range to read.",
                    remedy=f"Leave {option} or {other} out.",
                    option=other,
                    value=texts[other],
                )
        check_source_settings(given_source_settings(texts.get("tick"), texts.get("compactionWindow")))
        duration, quiet = texts.get("maxEventTimePerTrigger"), texts.get("idleAfter")
        return cls(
            stream=stream,
            home=texts.get("home"),
            source=texts.get("source"),
            tick=texts.get("tick"),
            compaction_window=texts.get("compactionWindow"),
            columns=parse_names(texts, "columns"),
            key=texts.get("key"),
            starting_time=texts.get("startingTime"),
            starting_cut=texts.get("startingCut"),
            ending_time=texts.get("endingTime"),
            ending_cut=texts.get("endingCut"),
            max_rows=parse_count(texts, "maxRowsPerTrigger"),
            max_bytes=parse_count(texts, "maxBytesPerTrigger"),
            max_event_time=None if duration is None else duration_micros(duration, "maxEventTimePerTrigger", least=1),
            align=texts.get("align"),
            max_ahead=duration_micros(texts.get("maxAhead", "0 seconds"), "maxAhead"),
            settle=parse_flag(texts, "settle"),
            rows_per_task=parse_count(texts, "rowsPerTask") or ROWS_PER_TASK,
            marks=parse_flag(texts, "marks"),
            as_of=texts.get("asOf"),
            check_workers=parse_flag(texts, "checkWorkers", default="true"),
            reader=texts.get("reader"),
            on_idle=parse_on_idle(texts),
            idle_after=None if quiet is None else duration_micros(quiet, "idleAfter", least=1),
        )


def given_source_settings(tick: str | None, compaction_window: str | None) -> dict[str, Any]:
    """Return the settings of a source without those that are not given.

    >>> given_source_settings(None, "never")
    {'compaction_window': 'never'}
    """
    settings = {"tick": tick, "compaction_window": compaction_window}
    return {name: value for name, value in settings.items() if value is not None}


def parse_time(text: str, option: str) -> int | datetime:
    """Return the time of an option: a number in the unit of the stream, or ISO 8601 with a zone.

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
            rule="It must be a whole number in the unit of the stream, or a time in ISO 8601.",
            remedy="Write for example 2026-01-31T12:00:00Z.",
            option=option,
            value=text,
        ) from None


def parse_cut(text: str, option: str, stream: Stream) -> Position:
    """Return the cut of an option, which is JSON."""
    try:
        saved: Any = parse_json(text)
        position = load_position(saved)
    except (AttributeError, TypeError, ValueError) as error:
        raise InvalidOption(
            f"{option} is {text!r:.100}.",
            rule="It must be a cut as JSON: {segment id: offset}.",
            remedy="""Write for example {"0": 100}.""",
            option=option,
            value=text,
        ) from error
    return check_cut(stream.layout, position)


def parse_names(texts: Mapping[str, str], option: str) -> tuple[str, ...] | None:
    """Return the names of an option, which is a JSON list; None if it is not set."""
    text = texts.get(option)
    if text is None:
        return None
    try:
        names: Any = parse_json(text)
    except ValueError:
        names = None
    if isinstance(names, list) and names and all(isinstance(name, str) for name in names):
        return tuple(dict.fromkeys(names))
    raise InvalidOption(
        f"{option} is {text!r:.100}.",
        rule="It must be a JSON list of names.",
        remedy="""Write for example ["id", "_ts"], or leave it out for all.""",
        option=option,
        value=text,
    )


def parse_count(texts: Mapping[str, str], option: str) -> int | None:
    """Return the number of an option, above 0; None if it is not set."""
    text = texts.get(option)
    if text is None:
        return None
    if text.isdecimal() and int(text) > 0:
        return int(text)
    raise InvalidOption(
        f"{option} is {text!r}.",
        rule="It must be a whole number above 0.",
        remedy="Set it to such a number, or leave it out for no limit.",
        option=option,
        value=text,
    )


def parse_flag(texts: Mapping[str, str], option: str, *, default: str = "false") -> bool:
    """Return the truth value of an option, which is `default` if it is not set."""
    text = texts.get(option, default).lower()
    if text not in ("true", "false"):
        raise InvalidOption(
            f"{option} is {text!r}.",
            rule="It must be true or false.",
            remedy=f"Set it to true or false, or leave it out for {default}.",
            option=option,
            value=text,
        )
    return text == "true"


def parse_on_idle(texts: Mapping[str, str]) -> OnIdle:
    """Return the value of the option onIdle."""
    text = texts.get("onIdle", "hold")
    require_one_of("onIdle", text, get_args(OnIdle))
    return cast("OnIdle", text)


@dataclass(frozen=True, slots=True)
class ReadRange:
    """Where a query begins and ends; times are in the stream's unit."""

    key: str
    unit: str
    starting_time: int | None = None
    starting_cut: Position | None = None
    ending_time: int | None = None
    ending_cut: Position | None = None
    rows: TimeFilter | None = None

    @classmethod
    def of(cls, settings: StreamReadSettings, stream: Stream) -> "ReadRange":
        """Return the range that the options describe."""
        key, unit = stream.settings.key(settings.key), stream.settings.unit
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
            # Rows with exactly this time may lie before a mark of this time, so look for a mark below it.
            return bound.stream.starting_at(self.starting_time - 1, self.key).cut
        return self.starting_cut

    def end(self, bound: BoundStream) -> dict[int, int] | None:
        """Return the end offset of each segment; None without an end, or while no watermark has reached it yet."""
        cut = self.ending_cut
        if self.ending_time is not None:
            cut = bound.stream.ending_at(self.ending_time, self.key).cut
        return None if cut is None else bound.ends_at(cut)

    def rows_of(self, most_bytes: int | None, bound: BoundStream) -> int | None:
        """Return about how many rows have so many bytes, estimated from the newest rows."""
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
            rule="A query that begins or ends at a time compares it with that column.",
            remedy="Begin and end the query at cuts, or create the stream with a schema and time_columns.",
            stream=stream.name,
            key=key,
        )


MICROS_TYPE: Final = pa.timestamp("us", "UTC")


def settings_when_planned(stream: StreamSettings, settings: StreamReadSettings) -> StreamSettings:
    """Return the settings of the stream with the columns that it had when the query was planned.

    >>> stream = StreamSettings(pa.schema([("id", pa.int64()), ("note", pa.string())]), {"time": None})
    >>> settings_when_planned(stream, StreamReadSettings("orders", stream_columns=1)).schema.names
    ['id']
    """
    count = settings.stream_columns
    if stream.schema is None or count is None or count >= len(stream.schema):
        return stream
    return replace(stream, schema=pa.schema(list(stream.schema)[:count]))


def stream_spark_schema(stream: StreamSettings, settings: StreamReadSettings) -> StructType:
    """Return the schema of a query, as Spark's: see `stream_arrow_schema`."""
    return from_arrow_schema(stream_arrow_schema(stream, settings), prefer_timestamp_ntz=True)


def stream_arrow_schema(stream: StreamSettings, settings: StreamReadSettings) -> Any:
    """Return the schema of a query: the columns of the stream, and those that the source adds.

    All are nullable, since a mark row has no data.
    """
    payload = PAYLOAD_SCHEMA if stream.schema is None else stream.schema
    stamps = pa.struct([(key, MICROS_TYPE) for key in stream.keys])
    added = [("_segment", pa.int64()), ("_offset", pa.int64()), ("_ts", MICROS_TYPE), ("_w", stamps)]
    fields = [*(field.with_nullable(True) for field in payload), *(pa.field(*column) for column in added)]
    if settings.columns is not None:
        by_name = {field.name: field for field in fields}
        for name in settings.columns:
            if name not in by_name:
                raise UnknownColumn(
                    f"The stream {settings.stream!r} has no column {name!r}.",
                    rule=f"Its columns are {', '.join(by_name)}.",
                    remedy=did_you_mean(name, by_name, otherwise="Leave it out."),
                    column=name,
                )
        fields = [by_name[name] for name in settings.columns]
    return pa.schema([*fields, pa.field(IS_MARK, pa.bool_())] if settings.marks else fields)
