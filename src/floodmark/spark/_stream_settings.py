"""The options of a stream that Spark reads, as text, and what they mean."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from floodmark._util.times import duration_micros
from floodmark.errors import InvalidOption
from floodmark.spark._options import require_no_others
from floodmark.streams import Position, Stream
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

ROWS_PER_TASK: Final = 4_000_000
"""A task of a Python source costs about a tenth of a second by itself, so there should be few."""

_KNOWN: Final = {name.lower(): name for name in OPTIONS}
_OF_SPARK: Final = ("path",)


@dataclass(frozen=True, slots=True)
class ReadSettings:
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
    def of(cls, options: Mapping[str, str]) -> "ReadSettings":
        """Return the settings that options say, or refuse them.

        >>> ReadSettings.of({"stream": "orders", "maxrowspertrigger": "1000"}).max_rows
        1000
        >>> ReadSettings.of({"stream": "orders", "maxRowsPerTriger": "1000"})
        Traceback (most recent call last):
        floodmark.errors.InvalidOption: There is no option 'maxRowsPerTriger'. ... 'maxRowsPerTrigger'? [invalid-option]
        """
        others = {name: value for name, value in options.items() if name.lower() not in (*_KNOWN, *_OF_SPARK)}
        require_no_others(others, OPTIONS)
        given = {_KNOWN[name.lower()]: value for name, value in options.items() if name.lower() in _KNOWN}
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
            columns=names_of(given, "columns"),
            key=given.get("key"),
            starting_time=given.get("startingTime"),
            starting_cut=given.get("startingCut"),
            ending_time=given.get("endingTime"),
            ending_cut=given.get("endingCut"),
            max_rows=count_of(given, "maxRowsPerTrigger"),
            max_bytes=count_of(given, "maxBytesPerTrigger"),
            max_event_time=None if duration is None else duration_micros(duration, "maxEventTimePerTrigger", least=1),
            align=given.get("align"),
            max_ahead=duration_micros(given.get("maxAhead", "0 seconds"), "maxAhead"),
            settle=truth_of(given, "settle"),
            rows_per_task=count_of(given, "rowsPerTask") or ROWS_PER_TASK,
            marks=truth_of(given, "marks"),
            as_of=given.get("asOf"),
            reader=given.get("reader"),
        )


def time_from(text: str, option: str) -> int | datetime:
    """Return a time that was written as a number, or as ISO 8601 with a zone.

    >>> time_from("1500", "startingTime"), time_from("2026-01-31T12:00:00Z", "startingTime").hour
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


def cut_from(text: str, option: str, stream: Stream) -> Position:
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


def names_of(given: Mapping[str, str], option: str) -> tuple[str, ...] | None:
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


def count_of(given: Mapping[str, str], option: str) -> int | None:
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


def truth_of(given: Mapping[str, str], option: str) -> bool:
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
