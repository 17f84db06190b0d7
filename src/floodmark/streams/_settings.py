"""The settings of a stream: what its events look like, which times they have, how patient its watermark is."""

import base64
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa

from floodmark._util.text import did_you_mean
from floodmark._util.times import Duration, check_unit, duration_micros
from floodmark.errors import InvalidOption, UnknownColumn, UnknownKey
from floodmark.streams._ddl import parse_ddl, write_ddl
from floodmark.streams._rules import WatermarkRules

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


def altered(settings: StreamSettings, changes: Mapping[str, Any]) -> StreamSettings:
    """Return the settings with changes, or refuse them. The schema stays.

    >>> altered(make_settings(), {"writer_timeout": "5 seconds"}).writer_timeout
    5000000
    >>> altered(make_settings(), {"writer_timout": "5 seconds"})
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
