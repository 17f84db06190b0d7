"""Settings of streams, as requests say them, checked as if they had been said here."""

import base64
import binascii
from datetime import timedelta
from typing import Any, Final

import pyarrow as pa

from floodmark.errors import RequestInvalid, SchemaInvalid
from floodmark.service._forms import SettingsForm
from floodmark.streams._settings import DEFAULT_KEY, StreamSettings, make_settings

_DURATIONS: Final = (
    "writer_timeout",
    "first_mark_delay",
    "rate_floor",
    "forget_after",
    "marks_retention",
    "transaction_timeout",
)


def settings_of(form: SettingsForm) -> StreamSettings:
    """Return the settings of a new stream, or refuse them.

    >>> settings_of(SettingsForm.model_validate({"ddl": "id BIGINT", "writer_timeout": 5_000_000})).writer_timeout
    5000000
    """
    if form.arrow_schema is not None and form.ddl is not None:
        raise RequestInvalid(
            "The schema is given twice.",
            rule="It is an Arrow schema, or text as Spark writes schemas.",
            remedy="Leave one of them out.",
        )
    schema = form.ddl if form.arrow_schema is None else _schema(form.arrow_schema)
    given = changes_of(form)
    unit = given.pop("unit", "us")
    columns = given.pop("time_columns", None)
    # Without a time column the one key has none.
    columns = None if columns == {DEFAULT_KEY: None} else columns
    return make_settings(schema=schema, time_columns=columns, unit=unit, **given)


def changes_of(form: SettingsForm) -> dict[str, Any]:
    """Return the settings that a request names, but for the schema, as `Stream.alter` takes them."""
    given: dict[str, Any] = {}
    for name in _DURATIONS:
        if name in form.model_fields_set:
            value = getattr(form, name)
            given[name] = None if value is None else timedelta(microseconds=value)
    if form.unit is not None:
        given["unit"] = form.unit
    if form.time_columns is not None:
        pairs = [(key, column) for key, column in form.time_columns]
        # What is named twice is refused where all time columns are checked, which a dict would hide.
        keys = [key for key, _ in pairs]
        given["time_columns"] = dict(pairs) if len(set(keys)) == len(keys) else keys
    return given


def _schema(text: str) -> Any:
    try:
        return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text, validate=True)))
    except (binascii.Error, pa.ArrowException, OSError, ValueError) as error:
        raise SchemaInvalid(
            "The Arrow schema cannot be read.",
            rule="It is what pyarrow.Schema.serialize() writes, in base64.",
            remedy="Give the schema as ddl, for example 'id BIGINT, at TIMESTAMP'.",
        ) from error
