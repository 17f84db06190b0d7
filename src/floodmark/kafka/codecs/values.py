"""What the codecs share: the result of decoding, the supported column types, and dates and timestamps as ISO-8601 text.

Years with more than four digits and years before 0 have a sign, as in ISO-8601 and Spark.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any, Final

import pyarrow as pa

from floodmark.errors import SchemaInvalid, ValueUndecodable

MAX_EXCERPT: Final = 80
"""Maximum number of characters that an error quotes of a value, to keep payloads out of logs."""


@dataclass(frozen=True, slots=True)
class BadValue:
    """A value that could not be decoded: its index among the values, and why."""

    index: int
    reason: str

    def error(self) -> ValueUndecodable:
        """Return the error for a caller that chooses to fail.

        >>> BadValue(3, "'id' is missing").error().fields
        {'place': 3, 'reason': "'id' is missing"}
        """
        return ValueUndecodable(
            f"The value at index {self.index} cannot be decoded: {self.reason}.",
            rule="A value must have the format and schema of its stream.",
            remedy="Correct the producer, or send such values to a dead-letter topic.",
            place=self.index,
            reason=self.reason,
        )


@dataclass(frozen=True, slots=True)
class Decoded:
    """Decoded values: `batch` has one row per value, in order; the row of a bad or null value is all null."""

    batch: Any
    bad: tuple[BadValue, ...] = ()


class Unfit(Exception):
    """A value does not fit its column. Used only inside the decoders."""


def excerpt(value: object) -> str:
    """Return a short quotation of a value for an error message.

    >>> excerpt("abc"), len(excerpt("x" * 1000))
    ("'abc'", 80)
    """
    text = repr(value[: MAX_EXCERPT + 1] if isinstance(value, bytes | str) else value)
    return text if len(text) <= MAX_EXCERPT else text[: MAX_EXCERPT - 3] + "..."


def result_schema(schema: Any) -> Any:
    """Return the schema of decoded rows: all columns are nullable, since the row of a bad value is all null.

    >>> print(result_schema(pa.schema([pa.field("id", pa.int64(), nullable=False)])))
    id: int64
    """
    return pa.schema([field.with_nullable(True) for field in schema])


def rows_to_batch(rows: Sequence[Sequence[Any] | None], schema: Any) -> Any:
    """Return rows of Python values as a batch; a row that is None becomes all null.

    >>> rows_to_batch([(1,), None], pa.schema([("id", pa.int64())])).to_pylist()
    [{'id': 1}, {'id': None}]
    """
    columns = [
        pa.array([None if row is None else row[index] for row in rows], field.type)
        for index, field in enumerate(schema)
    ]
    return pa.record_batch(columns, schema=result_schema(schema))


def check_columns(schema: Any) -> None:
    """Raise an error if a column's type is not supported in record values.

    >>> check_columns(pa.schema([("id", pa.uint64())]))
    Traceback (most recent call last):
    floodmark.errors.SchemaInvalid: The column 'id' has the Arrow type uint64. ... [schema-invalid]
    """
    _check_names(schema.names)
    for field in schema:
        for kind in nested_types(field.type):
            if not _is_supported(kind):
                raise SchemaInvalid(
                    f"The column {field.name!r} has the Arrow type {kind}.",
                    rule="Columns of record values have types that Spark also has.",
                    remedy="Cast the column to a supported type, such as int64, decimal128 or string.",
                    schema=str(schema),
                )


def _check_names(names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise SchemaInvalid(
                f"The schema has the column {name!r} twice.",
                rule="Columns are looked up by name, so names must be unique.",
                remedy=f"Rename one of the columns {name!r}.",
                schema=name,
            )
        seen.add(name)


def nested_types(kind: Any) -> Iterable[Any]:
    """Return a type and all types inside it."""
    yield kind
    if pa.types.is_struct(kind):
        inside = [kind.field(index).type for index in range(kind.num_fields)]
        _check_names(kind.field(index).name for index in range(kind.num_fields))
    elif pa.types.is_map(kind):
        inside = [kind.key_type, kind.item_type]
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        inside = [kind.value_type]
    else:
        inside = []
    for inner in inside:
        yield from nested_types(inner)


def is_text(kind: Any) -> bool:
    """Return whether a column of this type holds text."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def is_bytes(kind: Any) -> bool:
    """Return whether a column of this type holds bytes."""
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def is_list(kind: Any) -> bool:
    """Return whether a column of this type holds lists."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def is_float(kind: Any) -> bool:
    """Return whether a column of this type holds floating-point numbers."""
    return bool(pa.types.is_float32(kind) or pa.types.is_float64(kind))


def _is_supported(kind: Any) -> bool:
    return bool(
        pa.types.is_boolean(kind)
        or pa.types.is_signed_integer(kind)
        or is_float(kind)
        or is_text(kind)
        or is_bytes(kind)
        or is_list(kind)
        or pa.types.is_date32(kind)
        or (pa.types.is_timestamp(kind) and kind.unit != "ns")
        or pa.types.is_decimal128(kind)
        or pa.types.is_map(kind)
        or pa.types.is_struct(kind)
    )


PER_SECOND: Final = {"s": 1, "ms": 1_000, "us": 1_000_000}
"""Number of a timestamp's units in a second."""
DIGITS: Final = {"s": 0, "ms": 3, "us": 6}
"""Number of digits of the fraction of a second."""

_DATE: Final = r"([+-]?\d{4,12})-(\d\d)-(\d\d)"
_ZONE: Final = r"(Z|[+-]\d\d(?::?\d\d)?)"
_TIME: Final = rf"(\d\d)(?::(\d\d)(?::(\d\d)(?:\.(\d{{1,9}}))?)?)?{_ZONE}?"
_IS_DATE: Final = re.compile(_DATE, re.ASCII)
_IS_TIMESTAMP: Final = re.compile(f"{_DATE}(?:[T ]{_TIME})?", re.ASCII)
# The Gregorian calendar repeats every 400 years; dates are computed in the cycle from 2000 on.
_CYCLE_YEARS: Final = 400
_CYCLE_DAYS: Final = 146_097
_CYCLE_START: Final = 2000
_EPOCH: Final = date(1970, 1, 1).toordinal()
_START_DAY: Final = date(_CYCLE_START, 1, 1).toordinal() - _EPOCH
_DAY: Final = 86_400


def read_date(text: str) -> int:
    """Return a date as days since 1970, or raise ValueError.

    >>> read_date("2026-01-01"), read_date("-0001-12-31")
    (20454, -719529)
    """
    match = _IS_DATE.fullmatch(text)
    if match is None:
        raise ValueError("not a date like 2026-01-31")
    return _check_bits(_days_since_1970(match[1], match[2], match[3]), 31)


def read_timestamp(text: str, unit: str, *, has_zone: bool) -> int:
    """Return a timestamp as units since 1970, or raise ValueError.

    For a column with a zone, the text's offset counts, by default UTC; for one without, an offset is an error. Digits
    finer than the unit are cut off, as in Spark.

    >>> read_timestamp("1970-01-01T02:00:01.5+02:00", "ms", has_zone=True)
    1500
    >>> read_timestamp("1970-01-01T00:00:00Z", "us", has_zone=False)
    Traceback (most recent call last):
    ValueError: has a zone offset, the column has none
    """
    match = _IS_TIMESTAMP.fullmatch(text)
    if match is None:
        raise ValueError("not a timestamp like 2026-01-31T10:00:00Z")
    year, month, day, hour, minute, second, fraction, zone = match.groups()
    clock = [int(part or 0) for part in (hour, minute, second)]
    if clock[0] > 23 or clock[1] > 59 or clock[2] > 59:
        raise ValueError("no such time of day")
    if zone is not None and not has_zone:
        raise ValueError("has a zone offset, the column has none")
    seconds = (
        _days_since_1970(year, month, day) * _DAY + clock[0] * 3600 + clock[1] * 60 + clock[2] - _zone_seconds(zone)
    )
    digits = DIGITS[unit]
    parts = int((fraction or "").ljust(digits, "0")[:digits] or 0)
    return _check_bits(seconds * PER_SECOND[unit] + parts, 63)


def write_date(days: int) -> str:
    """Return a date as text.

    >>> write_date(20454), write_date(2932897)
    ('2026-01-01', '+10000-01-01')
    """
    cycles, rest = divmod(days - _START_DAY, _CYCLE_DAYS)
    day = date.fromordinal(rest + _START_DAY + _EPOCH)
    year = day.year + cycles * _CYCLE_YEARS
    return f"{'-' if year < 0 else '+' if year > 9999 else ''}{abs(year):04}-{day.month:02}-{day.day:02}"


def write_timestamp(value: int, unit: str, *, has_zone: bool) -> str:
    """Return a timestamp as text with all digits of its unit, in UTC if it has a zone.

    >>> write_timestamp(1500, "ms", has_zone=True), write_timestamp(-1, "us", has_zone=False)
    ('1970-01-01T00:00:01.500Z', '1969-12-31T23:59:59.999999')
    """
    seconds, parts = divmod(value, PER_SECOND[unit])
    days, second = divmod(seconds, _DAY)
    fraction = f".{parts:0{DIGITS[unit]}}" if DIGITS[unit] else ""
    clock = f"{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}"
    return f"{write_date(days)}T{clock}{fraction}{'Z' if has_zone else ''}"


def _days_since_1970(year: str, month: str, day: str) -> int:
    cycles, rest = divmod(int(year) - _CYCLE_START, _CYCLE_YEARS)
    try:
        in_cycle = date(_CYCLE_START + rest, int(month), int(day))
    except ValueError:
        raise ValueError("no such day") from None
    return in_cycle.toordinal() - _EPOCH + cycles * _CYCLE_DAYS


def _zone_seconds(zone: str | None) -> int:
    """Return the offset of a zone from UTC in seconds."""
    if zone is None or zone == "Z":
        return 0
    hours, minutes = int(zone[1:3]), int(zone[3:].removeprefix(":") or 0)
    if hours > 23 or minutes > 59:
        raise ValueError("no such zone offset")
    return (-1 if zone[0] == "-" else 1) * (hours * 3600 + minutes * 60)


def _check_bits(value: int, bits: int) -> int:
    if not -(2**bits) <= value < 2**bits:
        raise ValueError("too far from 1970")
    return value
