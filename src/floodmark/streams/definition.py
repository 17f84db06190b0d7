"""The definition of a stream: its name, settings, layout and bucket, and the Kafka topic if its events are there."""

import base64
import json
import re
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa

from floodmark._util.ddl import parse_ddl, write_ddl
from floodmark._util.text import did_you_mean
from floodmark._util.times import Duration, check_unit, duration_micros
from floodmark.errors import InvalidName, InvalidOption, InvalidValue, StreamSealed, UnknownColumn, UnknownKey
from floodmark.streams.layout.layout import Layout, stable_hash
from floodmark.streams.marks.watermark import WatermarkRules

BUCKETS: Final = 32
"""Streams are shared out among controllers by the bucket they fall into."""


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """The settings of a stream. Durations are in microseconds.

    >>> make_settings(schema="at TIMESTAMP, paid DOUBLE", time_columns="at").keys
    ('at',)
    """

    schema: Any
    """The Arrow schema of the events, or None: then an event is whatever JSON can write, or bytes."""
    time_columns: Mapping[str, str | None]
    unit: str = "us"
    writer_timeout: int = 60_000_000
    first_mark_delay: int = 0
    rate_floor: int = 10_000
    forget_after: int | None = None
    marks_retention: int | None = None
    transaction_timeout: int = 60_000_000

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys that time is noted for; the first is the default."""
        return tuple(self.time_columns)

    @property
    def rules(self) -> WatermarkRules:
        """What the watermark depends on."""
        return WatermarkRules(self.writer_timeout, self.first_mark_delay, self.rate_floor, self.forget_after)

    @property
    def ddl(self) -> str | None:
        """The schema as Spark writes it."""
        return None if self.schema is None else write_ddl(self.schema)

    def key(self, key: str | None) -> str:
        """Return `key` if the stream has it; without one, the default key."""
        if key is None:
            return self.keys[0]
        if isinstance(key, str) and key in self.time_columns:
            return key
        raise UnknownKey(
            f"There is no time key {key!r}.",
            rule=f"The keys of this stream are {', '.join(map(repr, self.keys))}.",
            remedy=did_you_mean(str(key), self.keys, otherwise="Name one of them, or none for the first."),
            key=key,
        )

    def save(self) -> dict[str, Any]:
        """Return the settings as JSON values."""
        saved = {name: getattr(self, name) for name in ("unit", *_LEAST)}
        arrow = None if self.schema is None else base64.b64encode(self.schema.serialize().to_pybytes()).decode()
        return {**saved, "schema": arrow, "time_columns": list(self.time_columns.items())}

    @classmethod
    def load(cls, saved: Mapping[str, Any]) -> "StreamSettings":
        """Return the settings that were saved."""
        arrow = saved["schema"]
        schema = None if arrow is None else pa.ipc.read_schema(pa.py_buffer(base64.b64decode(arrow)))
        others = {name: value for name, value in saved.items() if name not in ("schema", "time_columns")}
        return cls(schema=schema, time_columns=dict(saved["time_columns"]), **others)


@dataclass(frozen=True, slots=True)
class LogTopic:
    """A topic of Kafka. Its `topic_id` tells it from another one that gets its name later.

    >>> place = LogTopic("one:9092,two:9092", "floodmark.shop.orders-2a", "Zk3V")
    >>> LogTopic.load(place.save()) == place
    True
    """

    servers: str
    topic: str
    topic_id: str

    def save(self) -> str:
        """Return it as text."""
        return json.dumps({"servers": self.servers, "topic": self.topic, "topic_id": self.topic_id})

    @classmethod
    def load(cls, saved: str) -> "LogTopic":
        """Return what was saved."""
        return cls(**json.loads(saved))


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """What a stream is. `id` tells it from another one that had its name before; `version` counts its changes."""

    id: int
    name: str
    bucket: int
    settings: StreamSettings
    layout: Layout
    is_sealed: bool
    version: int
    created_at: int
    log: LogTopic | None = None
    """Where its events are, if not in the home."""


def new_stream_id() -> int:
    """Return the id of a new stream: 62 bits that nobody has had before."""
    return uuid.uuid4().int >> 66


def check_not_sealed(stream: StreamInfo) -> None:
    """Refuse a stream that takes no more events."""
    if stream.is_sealed:
        raise StreamSealed(
            f"The stream {stream.name!r} is sealed.",
            rule="A sealed stream takes no more events, and is not scaled.",
            remedy="Write to another stream.",
            stream=stream.name,
        )


def bucket_of(stream: str, buckets: int) -> int:
    """Return the bucket of a stream: the same in every process, for as long as there are as many buckets.

    >>> bucket_of("orders", 100)
    49
    """
    if not isinstance(stream, str) or not stream:
        raise InvalidValue(
            f"The name of the stream is {stream!r}.",
            rule="It is a string that is not empty.",
            remedy="Pass the full name of the stream.",
            stream=stream,
        )
    return stable_hash(stream) % _check_bucket_count(buckets)


def assign_buckets(
    buckets: int, controllers: Iterable[str], current: Mapping[int, str] | None = None
) -> dict[int, str]:
    """Return the owner of each bucket: no controller has two more than another, and as few as possible move.

    The same arguments give the same answer in whatever order they come. Without controllers nobody owns anything.

    >>> owners = assign_buckets(4, ["a", "b"])
    >>> owners
    {0: 'a', 1: 'a', 2: 'b', 3: 'b'}
    >>> assign_buckets(4, ["a", "b", "c"], owners)
    {0: 'a', 1: 'a', 2: 'b', 3: 'c'}
    """
    names = sorted(set(controllers))
    count = _check_bucket_count(buckets)
    if not names:
        return {}
    held: dict[str, list[int]] = {name: [] for name in names}
    for bucket in range(count):
        owner = None if current is None else current.get(bucket)
        if owner in held:
            held[owner].append(bucket)
    share, left_over = divmod(count, len(names))
    # Who has most now gets the bucket more that some must get: then it need not give it away.
    by_size = sorted(names, key=lambda name: (-len(held[name]), name))
    quotas = {name: share + (place < left_over) for place, name in enumerate(by_size)}
    owners = {bucket: name for name in names for bucket in held[name][: quotas[name]]}
    free = iter([bucket for bucket in range(count) if bucket not in owners])
    for name in names:
        for _ in range(quotas[name] - min(len(held[name]), quotas[name])):
            owners[next(free)] = name
    return dict(sorted(owners.items()))


def _check_bucket_count(buckets: int) -> int:
    if isinstance(buckets, int) and not isinstance(buckets, bool) and buckets > 0:
        return buckets
    raise InvalidOption(
        f"The number of buckets is {buckets!r}.",
        rule="It is a whole number above 0, and stays the same for the life of a store.",
        remedy="Use 100 unless there is a reason not to.",
        buckets=buckets,
    )


TimeColumns = Mapping[str, str] | Iterable[str] | str
"""{key: column}, or columns that are their own keys; the first is the default key."""

DEFAULT_KEY: Final = "time"
"""The one key of a stream that names no time column."""

_LEAST: Final = {
    "writer_timeout": 1,
    "first_mark_delay": 0,
    "rate_floor": 0,
    "forget_after": 0,
    "marks_retention": 0,
    "transaction_timeout": 1,
}
_MAY_BE_NONE: Final = ("forget_after", "marks_retention")


def make_settings(
    *, schema: Any = None, time_columns: TimeColumns | None = None, unit: str = "us", **durations: Duration | None
) -> StreamSettings:
    """Return the settings of a new stream, or refuse them.

    >>> make_settings(writer_timeout="0 seconds")
    Traceback (most recent call last):
    floodmark.errors.InvalidOption: writer_timeout is '0 seconds'. ... [invalid-option]
    """
    checked = parse_ddl(schema) if isinstance(schema, str) else schema
    if checked is not None:
        if not isinstance(checked, pa.Schema):
            raise InvalidOption(
                f"schema is {schema!r}.",
                rule="It is text as Spark writes schemas, or a pyarrow.Schema.",
                remedy="Write for example 'id BIGINT, at TIMESTAMP'; leave it out for events of any form.",
                option="schema",
                value=schema,
            )
        write_ddl(checked)
        checked = checked.remove_metadata()
    columns = _check_columns(time_columns, checked)
    return StreamSettings(checked, columns, check_unit(unit), **_check_durations(durations))


def alter_settings(settings: StreamSettings, changes: Mapping[str, Any]) -> StreamSettings:
    """Return the settings with changes, or refuse them. The schema stays.

    >>> alter_settings(make_settings(), {"writer_timeout": "5 seconds"}).writer_timeout
    5000000
    >>> alter_settings(make_settings(), {"writer_timout": "5 seconds"})
    Traceback (most recent call last):
    floodmark.errors.InvalidOption: There is no option 'writer_timout'. ... 'writer_timeout'? [invalid-option]
    """
    durations = {name: value for name, value in changes.items() if name not in ("time_columns", "unit")}
    new: dict[str, Any] = _check_durations(durations)
    if "unit" in changes:
        new["unit"] = check_unit(changes["unit"])
    if "time_columns" in changes:
        new["time_columns"] = _check_columns(changes["time_columns"], settings.schema)
    return replace(settings, **new)


def _check_durations(durations: Mapping[str, Any]) -> dict[str, Any]:
    known = ("time_columns", "unit", *_LEAST)
    checked: dict[str, Any] = {}
    for name, value in durations.items():
        if name not in _LEAST:
            raise InvalidOption(
                f"There is no option {name!r}.",
                rule=f"The options are {', '.join(known)}.",
                remedy=did_you_mean(name, known, otherwise="Leave it out."),
                option=name,
                value=value,
            )
        is_none = value is None and name in _MAY_BE_NONE
        checked[name] = None if is_none else duration_micros(value, name, least=_LEAST[name])
    return checked


def _check_columns(columns: Any, schema: Any) -> dict[str, str | None]:
    if columns is None:
        return {DEFAULT_KEY: None}
    if isinstance(columns, str):
        columns = [columns]
    pairs = list(columns.items()) if isinstance(columns, Mapping) else [(column, column) for column in columns]
    for key, column in pairs:
        if not all(isinstance(name, str) and name for name in (key, column)):
            raise InvalidOption(
                f"time_columns has {key!r}: {column!r}.",
                rule="Keys and columns are names.",
                remedy="Pass for example 'order_time', or {'order_time': 'order.at'}.",
                option="time_columns",
                value=columns,
            )
        if schema is not None and column not in schema.names:
            raise UnknownColumn(
                f"The schema has no column {column!r}.",
                rule=f"Its columns are {', '.join(schema.names)}.",
                remedy=did_you_mean(column, schema.names, otherwise="Name a column that holds times."),
                column=column,
            )
    if not pairs or len(dict(pairs)) < len(pairs):
        raise InvalidOption(
            f"time_columns is {columns!r}.",
            rule="It names at least one column, and each once.",
            remedy="Leave it out if events have no time of their own.",
            option="time_columns",
            value=columns,
        )
    return dict(pairs)


_STREAM: Final = re.compile(r"[A-Za-z0-9_][\w.\-]*(/[A-Za-z0-9_][\w.\-]*)*", re.ASCII)
_LONGEST: Final = 200


def check_stream_name(name: object) -> str:
    """Return `name` if a stream may have it.

    >>> check_stream_name("shop/orders")
    'shop/orders'
    >>> check_stream_name("shop/")
    Traceback (most recent call last):
    floodmark.errors.InvalidName: The name of the stream is 'shop/'. ... [invalid-name]
    """
    if isinstance(name, str) and len(name) <= _LONGEST and _STREAM.fullmatch(name):
        return name
    raise InvalidName(
        f"The name of the stream is {name!r}.",
        rule=f"It has parts of letters, digits, '_', '-' and '.', with '/' between, of at most {_LONGEST} characters.",
        remedy="Use for example 'shop/orders'.",
        what="stream",
        name=name,
    )


def check_writer_id(writer: object) -> str:
    """Return `writer` if a writer may be called so.

    >>> check_writer_id("till-3")
    'till-3'
    """
    if isinstance(writer, str) and 0 < len(writer) <= _LONGEST and writer.isprintable() and not writer.startswith("~"):
        return writer
    raise InvalidName(
        f"The writer id is {writer!r}.",
        rule=f"It is printable text of at most {_LONGEST} characters that does not begin with '~'.",
        remedy="Use a name that stays the same when the writer is started again.",
        what="writer",
        name=writer,
    )


ANONYMOUS_PREFIX: Final = "~"
"""What the names of writers without an id begin with."""
