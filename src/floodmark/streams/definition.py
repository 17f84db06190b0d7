"""The definition of a stream: its name, settings, layout and bucket, and its Kafka topic if its events are there."""

import base64
import json
import re
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa

from floodmark._util.ddl import check_schema, parse_ddl, write_ddl
from floodmark._util.ints import INT64_MAX
from floodmark._util.text import did_you_mean
from floodmark._util.times import Duration, check_unit, duration_micros
from floodmark.errors import (
    InvalidName,
    InvalidOption,
    InvalidValue,
    SchemaChangeRefused,
    StreamDiffers,
    StreamSealed,
    UnknownColumn,
    UnknownKey,
)
from floodmark.streams.layout.layout import Layout, stable_hash
from floodmark.streams.marks.watermark import WatermarkRules

BUCKETS: Final = 32
"""The number of buckets. Controllers divide the streams of a home by bucket."""


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """The settings of a stream; durations are in microseconds. `StreamHome.create_stream` describes each one.

    >>> make_settings(schema="at TIMESTAMP, paid DOUBLE", time_columns="at").keys
    ('at',)
    """

    schema: Any
    """The Arrow schema of the events; None: events are bytes, text or JSON."""
    time_columns: Mapping[str, str | None]
    unit: str = "us"
    writer_timeout: int = 60_000_000
    first_mark_delay: int = 0
    rate_floor: int = 10_000
    forget_after: int | None = None
    marks_retention: int | None = None
    transaction_timeout: int = 60_000_000
    retention: int | None = None
    retention_bytes: int | None = None
    first_columns: int | None = None
    """The number of columns that the stream was created with; None if no columns were added since."""

    @property
    def keys(self) -> tuple[str, ...]:
        """The time keys; the first is the default."""
        return tuple(self.time_columns)

    @property
    def has_retention(self) -> bool:
        """Whether old events are removed."""
        return self.retention is not None or self.retention_bytes is not None

    @property
    def rules(self) -> WatermarkRules:
        """The settings that the watermark depends on."""
        return WatermarkRules(self.writer_timeout, self.first_mark_delay, self.rate_floor, self.forget_after)

    @property
    def ddl(self) -> str | None:
        """The schema in Spark's DDL syntax; None without a schema."""
        return None if self.schema is None else write_ddl(self.schema)

    def key(self, key: str | None) -> str:
        """Return `key` if the stream has it, the default key for None, or raise `UnknownKey`."""
        if key is None:
            return self.keys[0]
        if isinstance(key, str) and key in self.time_columns:
            return key
        raise UnknownKey(
            f"There is no time key {key!r}.",
            rule=f"The time keys of this stream are {', '.join(map(repr, self.keys))}.",
            remedy=did_you_mean(str(key), self.keys, otherwise="Pass one of them, or leave key out for the first."),
            key=key,
        )

    def save(self) -> dict[str, Any]:
        """Return the settings as JSON values."""
        saved = {name: getattr(self, name) for name in ("unit", *_DURATION_MINIMUMS)}
        # Left out if they are not set: earlier releases do not know them.
        newer = {name: getattr(self, name) for name in ("retention", "retention_bytes", "first_columns")}
        saved = {**saved, **newer}
        saved = {name: value for name, value in saved.items() if value is not None or name not in newer}
        arrow = None if self.schema is None else base64.b64encode(self.schema.serialize().to_pybytes()).decode()
        return {**saved, "schema": arrow, "time_columns": list(self.time_columns.items())}

    @classmethod
    def load(cls, saved: Mapping[str, Any]) -> "StreamSettings":
        """Return the settings that `save` saved."""
        arrow = saved["schema"]
        schema = None if arrow is None else pa.ipc.read_schema(pa.py_buffer(base64.b64decode(arrow)))
        others = {name: value for name, value in saved.items() if name not in ("schema", "time_columns")}
        return cls(schema=schema, time_columns=dict(saved["time_columns"]), **others)


@dataclass(frozen=True, slots=True)
class LogTopic:
    """The Kafka topic with the events of a stream. `topic_id` distinguishes it from a later topic with the same name.

    >>> topic = LogTopic("one:9092,two:9092", "floodmark.shop.orders-2a", "Zk3V")
    >>> LogTopic.load(topic.save()) == topic
    True
    """

    servers: str
    topic: str
    topic_id: str

    def save(self) -> str:
        """Return the topic as text."""
        return json.dumps({"servers": self.servers, "topic": self.topic, "topic_id": self.topic_id})

    @classmethod
    def load(cls, saved: str) -> "LogTopic":
        """Return the topic that `save` saved."""
        return cls(**json.loads(saved))


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """The definition of a stream, at one version.

    `id` distinguishes it from a deleted stream with the same name; `version` counts its changes.
    """

    id: int
    name: str
    bucket: int
    settings: StreamSettings
    layout: Layout
    is_sealed: bool
    version: int
    created_at: int
    log: LogTopic | None = None
    """The topic with its events; None if they are in the store."""


def new_stream_id() -> int:
    """Return the id of a new stream: 62 random bits."""
    return uuid.uuid4().int >> 66


def check_not_sealed(stream: StreamInfo) -> None:
    """Raise `StreamSealed` if the stream is sealed."""
    if stream.is_sealed:
        raise StreamSealed(
            f"The stream {stream.name!r} is sealed.",
            rule="A sealed stream takes no more events and cannot be scaled.",
            remedy="Create another stream and write to it.",
            stream=stream.name,
        )


def bucket_of(stream: str, buckets: int) -> int:
    """Return the bucket of a stream. It is the same in every process, and depends on the number of buckets.

    >>> bucket_of("orders", 100)
    49
    """
    if not isinstance(stream, str) or not stream:
        raise InvalidValue(
            f"The name of the stream is {stream!r}.",
            rule="It is a non-empty string.",
            remedy="Pass the full name of the stream, for example 'shop/orders'.",
            stream=stream,
        )
    return stable_hash(stream) % _check_bucket_count(buckets)


def assign_buckets(
    buckets: int, controllers: Iterable[str], current: Mapping[int, str] | None = None
) -> dict[int, str]:
    """Divide the buckets evenly among controllers, moving as few as possible, and return the owner of each bucket.

    Bucket counts differ by at most one. The result does not depend on the order of `controllers`. Without controllers
    it is empty.

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
    quota, left_over = divmod(count, len(names))
    # The controllers that have the most now get the extra buckets, so that fewer buckets move.
    by_size = sorted(names, key=lambda name: (-len(held[name]), name))
    quotas = {name: quota + (rank < left_over) for rank, name in enumerate(by_size)}
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
        rule="It is a whole number above 0, and never changes for a store.",
        remedy=f"Use {BUCKETS}.",
        buckets=buckets,
    )


TimeColumns = Mapping[str, str] | Iterable[str] | str
"""{time key: column}, or columns that are their own time keys; the first is the default key."""

DEFAULT_KEY: Final = "time"
"""The time key of a stream without time columns."""

_DURATION_MINIMUMS: Final = {
    "writer_timeout": 1,
    "first_mark_delay": 0,
    "rate_floor": 0,
    "forget_after": 0,
    "marks_retention": 0,
    "transaction_timeout": 1,
    "retention": 1,
}
_OPTIONAL_DURATIONS: Final = ("forget_after", "marks_retention", "retention")


def make_settings(
    *,
    schema: Any = None,
    time_columns: TimeColumns | None = None,
    unit: str = "us",
    retention_bytes: int | None = None,
    **durations: Duration | None,
) -> StreamSettings:
    """Return the settings of a new stream, or refuse invalid ones.

    >>> make_settings(writer_timeout="0 seconds")
    Traceback (most recent call last):
    floodmark.errors.InvalidOption: writer_timeout is '0 seconds'. ... [invalid-option]
    """
    checked = None if schema is None else _read_schema(schema)
    columns = _check_columns(time_columns, checked)
    most_bytes = _check_retention_bytes(retention_bytes)
    return StreamSettings(checked, columns, check_unit(unit), retention_bytes=most_bytes, **_check_durations(durations))


def _read_schema(schema: Any) -> Any:
    """Return a schema from DDL or Arrow, without metadata, or refuse it."""
    checked = parse_ddl(schema) if isinstance(schema, str) else schema
    if not isinstance(checked, pa.Schema):
        raise InvalidOption(
            f"schema is {schema!r}.",
            rule="It is text in Spark's DDL syntax, or a pyarrow.Schema.",
            remedy="Pass for example 'id BIGINT, at TIMESTAMP', or leave it out for events stored as JSON.",
            option="schema",
            value=schema,
        )
    check_schema(checked)
    write_ddl(checked)
    return checked.remove_metadata()


def extend_schema(settings: StreamSettings, schema: Any) -> StreamSettings:
    """Return the settings with columns added: `schema` is the present schema and nullable columns behind it.

    >>> before = make_settings(schema="id BIGINT")
    >>> extend_schema(before, "id BIGINT, note STRING").ddl
    'id BIGINT, note STRING'
    >>> extend_schema(before, "id STRING")
    Traceback (most recent call last):
    floodmark.errors.SchemaChangeRefused: The column 'id' would change from BIGINT to STRING. ...
    """
    current = settings.schema
    if schema is None or current is None:
        if schema is None and current is None:
            return settings
        raise _schema_refused("The stream would get a schema." if current is None else "The schema would be removed.")
    wanted = _read_schema(schema)
    for place, field in enumerate(current):
        if field.name not in wanted.names:
            raise _schema_refused(f"The column {field.name!r} would be removed or renamed.", column=field.name)
        other = wanted.field(field.name)
        if other.type != field.type:
            before, after = (write_ddl(pa.schema([one])).split(" ", 1)[1] for one in (field, other))
            raise _schema_refused(
                f"The column {field.name!r} would change from {before} to {after}.", column=field.name
            )
        if other.nullable != field.nullable:
            change = "nullable" if other.nullable else "NOT NULL"
            raise _schema_refused(f"The column {field.name!r} would become {change}.", column=field.name)
        if wanted.names[place] != field.name:
            raise _schema_refused(f"The column {field.name!r} would change its place.", column=field.name)
    added = list(wanted)[len(current) :]
    for field in added:
        if not field.nullable:
            raise _schema_refused(f"The new column {field.name!r} is NOT NULL.", column=field.name)
    if not added:
        return settings
    return replace(settings, schema=wanted, first_columns=settings.first_columns or len(current))


def _schema_refused(fact: str, **fields: Any) -> SchemaChangeRefused:
    return SchemaChangeRefused(
        fact,
        rule="Only nullable columns can be added, behind the present ones: stored events keep their columns.",
        remedy="Pass the present schema with new nullable columns at its end, for example "
        "alter(schema=stream.settings.ddl + ', note STRING'). For any other change create another stream, and copy "
        "the events to it.",
        **fields,
    )


def _check_retention_bytes(value: object) -> int | None:
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and 0 < value <= INT64_MAX):
        return value
    raise InvalidOption(
        f"retention_bytes is {value!r}.",
        rule="It is a whole number of bytes above 0, or None to keep events of any size.",
        remedy="Pass for example 10 * 2**30 for ten gigabytes.",
        option="retention_bytes",
        value=value,
    )


def alter_settings(settings: StreamSettings, changes: Mapping[str, Any]) -> StreamSettings:
    """Return the settings with changes applied, or refuse invalid ones. Of the schema see `extend_schema`.

    >>> alter_settings(make_settings(), {"writer_timeout": "5 seconds"}).writer_timeout
    5000000
    >>> alter_settings(make_settings(), {"writer_timout": "5 seconds"})
    Traceback (most recent call last):
    floodmark.errors.InvalidOption: There is no option 'writer_timout'. ... 'writer_timeout'? [invalid-option]
    """
    others = ("schema", "time_columns", "unit", "retention_bytes")
    new: dict[str, Any] = _check_durations({name: value for name, value in changes.items() if name not in others})
    if "schema" in changes:
        settings = extend_schema(settings, changes["schema"])
    if "retention_bytes" in changes:
        new["retention_bytes"] = _check_retention_bytes(changes["retention_bytes"])
    if "unit" in changes:
        new["unit"] = check_unit(changes["unit"])
    if "time_columns" in changes:
        new["time_columns"] = _check_columns(changes["time_columns"], settings.schema)
    return replace(settings, **new)


def _check_durations(durations: Mapping[str, Any]) -> dict[str, Any]:
    options = ("schema", "time_columns", "unit", *_DURATION_MINIMUMS, "retention_bytes")
    checked: dict[str, Any] = {}
    for name, value in durations.items():
        if name not in _DURATION_MINIMUMS:
            raise InvalidOption(
                f"There is no option {name!r}.",
                rule=f"The options are {', '.join(options)}.",
                remedy=did_you_mean(name, options, otherwise="Leave it out."),
                option=name,
                value=value,
            )
        is_none = value is None and name in _OPTIONAL_DURATIONS
        checked[name] = None if is_none else duration_micros(value, name, least=_DURATION_MINIMUMS[name])
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
                rule="Time keys and columns are non-empty strings.",
                remedy="Pass for example 'order_time', or {'order_time': 'order.at'}.",
                option="time_columns",
                value=columns,
            )
        if schema is not None and column not in schema.names:
            raise UnknownColumn(
                f"The schema has no column {column!r}.",
                rule=f"Its columns are {', '.join(schema.names)}.",
                remedy=did_you_mean(column, schema.names, otherwise="Name one of these columns that holds times."),
                column=column,
            )
    if not pairs or len(dict(pairs)) < len(pairs):
        raise InvalidOption(
            f"time_columns is {columns!r}.",
            rule="It names at least one column, and each time key once.",
            remedy="Remove duplicates; leave time_columns out if events have no time column.",
            option="time_columns",
            value=columns,
        )
    return dict(pairs)


_STREAM_NAME: Final = re.compile(r"[A-Za-z0-9_][\w.\-]*(/[A-Za-z0-9_][\w.\-]*)*", re.ASCII)
_MAX_LENGTH: Final = 200


def check_stream_name(name: object) -> str:
    """Return `name` if it is a valid stream name, or raise `InvalidName`.

    >>> check_stream_name("shop/orders")
    'shop/orders'
    >>> check_stream_name("shop/")
    Traceback (most recent call last):
    floodmark.errors.InvalidName: The name of the stream is 'shop/'. ... [invalid-name]
    """
    if isinstance(name, str) and len(name) <= _MAX_LENGTH and _STREAM_NAME.fullmatch(name):
        return name
    raise InvalidName(
        f"The name of the stream is {name!r}.",
        rule=f"It has names of letters, digits, '_', '-' and '.', separated by '/': at most {_MAX_LENGTH} characters.",
        remedy="Use for example 'shop/orders'.",
        what="stream",
        name=name,
    )


def check_writer_id(writer: object) -> str:
    """Return `writer` if it is a valid writer id, or raise `InvalidName`.

    >>> check_writer_id("till-3")
    'till-3'
    """
    if (
        isinstance(writer, str)
        and 0 < len(writer) <= _MAX_LENGTH
        and writer.isprintable()
        and not writer.startswith("~")
    ):
        return writer
    raise InvalidName(
        f"The writer id is {writer!r}.",
        rule=f"It is printable text of at most {_MAX_LENGTH} characters that does not begin with '~'.",
        remedy="Use a name that stays the same when the writer is restarted, for example 'till-3'.",
        what="writer",
        name=writer,
    )


ANONYMOUS_PREFIX: Final = "~"
"""The prefix of the generated ids of anonymous writers."""


def check_same_definition(existing: StreamInfo, settings: StreamSettings, segments: int) -> None:
    """Raise `StreamDiffers` if an existing stream has other settings, or was created with other segments.

    >>> stream = StreamInfo(7, "s", 0, make_settings(), Layout.create(1), False, 1, 0)
    >>> check_same_definition(stream, make_settings(unit="ms"), 2)
    Traceback (most recent call last):
    floodmark.errors.StreamDiffers: The stream 's' exists with unit 'us', not 'ms'; segments 1, not 2. ...
    """
    found = {**_described(existing.settings), "segments": len(existing.layout.segments_of(0))}
    wanted = {**_described(settings), "segments": segments}
    differences = {name: (found[name], wanted[name]) for name in found if found[name] != wanted[name]}
    if differences:
        shown = "; ".join(f"{name} {before!r}, not {after!r}" for name, (before, after) in differences.items())
        raise StreamDiffers(
            f"The stream {existing.name!r} exists with {shown}.",
            rule="With if_exists='open' an existing stream is opened only if its definition is the same.",
            remedy="Open it with stream(), change its settings with alter(), or create a stream with another name.",
            stream=existing.name,
            differences=differences,
        )


def _described(settings: StreamSettings) -> dict[str, Any]:
    """Return the settings as they are compared and shown; the schema as text."""
    schema = None if settings.schema is None else ", ".join(map(_described_field, settings.schema))
    return {**settings.save(), "schema": schema, "time_columns": dict(settings.time_columns)}


def _described_field(field: Any) -> str:
    return f"{field.name} {field.type}{'' if field.nullable else ' not null'}"
