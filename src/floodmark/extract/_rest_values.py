"""Values of JSON as Arrow arrays of a given type: exactly, or not at all.

| type | takes besides its own values |
|---|---|
| numbers | texts that are such a number; fractions only where nothing is lost, or the type is double or float |
| boolean | the texts true and false |
| string | anything, as JSON writes it |
| timestamp | ISO texts, and what `time_format` says: texts by strftime, numbers by epoch-* |
| date | texts such as 2020-01-31 |
| binary | texts in base64 |

A time without an offset is one of the source's zone. What a text says beyond microseconds is left out.
"""

import json
from base64 import b64decode
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from itertools import accumulate, chain
from typing import Any, Final, NoReturn

import pyarrow as pa

from floodmark.errors import SourceValueUnfit
from floodmark.ingest._calendar import EPOCH, MICROSECOND, moment, wall, zone_of
from floodmark.ingest._edges import EPOCH_UNITS

_SHOWN: Final = 60
_WALL_EPOCH: Final = EPOCH.replace(tzinfo=None)
_UNFIT: Final = (ValueError, TypeError, ArithmeticError, LookupError)
_TICKS: Final = {"s": 1_000_000, "ms": 1_000, "us": 1}


@dataclass(frozen=True, slots=True)
class Times:
    """How times are written in records."""

    time_format: str = "iso"
    zone: str = "UTC"

    def micros(self, value: Any) -> tuple[int, bool]:
        """Return a time in microseconds, and whether it is a moment; else it is what a wall clock shows.

        >>> Times().micros("1970-01-01T00:00:01Z"), Times("epoch-millis").micros(7)
        ((1000000, True), (7000, True))
        """
        is_digits = isinstance(value, str) and value.isascii() and value.isdigit()
        if is_digits and self.time_format in EPOCH_UNITS:
            value = int(value)
        if isinstance(value, int | float | Decimal) and not isinstance(value, bool):
            micros = Decimal(str(value)) * EPOCH_UNITS[self.time_format]
            if micros != micros.to_integral_value():
                raise ValueError("finer than a microsecond")
            return int(micros), True
        if not isinstance(value, str):
            raise TypeError("no time")
        try:
            # Python would read seconds since the epoch as a day of the Middle Ages.
            read = datetime.fromisoformat("" if is_digits else value)
        except ValueError:
            if "%" not in self.time_format:
                raise
            read = datetime.strptime(value, self.time_format)  # noqa: DTZ007 - the zone follows
        if read.tzinfo is not None:
            return (read - EPOCH) // MICROSECOND, True
        return (read - _WALL_EPOCH) // MICROSECOND, False

    def moment(self, value: Any) -> int:
        """Return the moment of a time."""
        micros, is_moment = self.micros(value)
        return micros if is_moment else moment(_WALL_EPOCH + micros * MICROSECOND, zone_of(self.zone))

    def shown_there(self, value: Any) -> int:
        """Return what a wall clock in the zone shows at a time."""
        micros, is_moment = self.micros(value)
        return (wall(micros, zone_of(self.zone)) - _WALL_EPOCH) // MICROSECOND if is_moment else micros


def array_of(values: Sequence[Any], kind: pa.DataType, name: str, times: Times) -> pa.Array:
    """Return values as an array of a type, or name the field of the first that does not fit.

    >>> array_of([1, None, "2"], pa.int64(), "n", Times()).to_pylist()
    [1, None, 2]
    >>> array_of([1.5], pa.int64(), "n", Times())
    Traceback (most recent call last):
    floodmark.errors.SourceValueUnfit: The field 'n' of a record is 1.5, which is no int64. ...
    """
    if pa.types.is_struct(kind):
        return _structs(values, kind, name, times)
    if pa.types.is_map(kind):
        return _maps(values, kind, name, times)
    if pa.types.is_list(kind):
        return _lists(values, kind, name, times)
    kinds = set(map(type, values))
    kinds.discard(type(None))
    try:
        if kinds <= _own(kind):
            return pa.array(values, kind)
        if pa.types.is_timestamp(kind) and kinds == {str}:
            return pa.array(values, pa.string()).cast(kind)
    except _UNFIT:
        pass  # the slow way finds another reading, or which value it is
    convert = _converter(kind, times)
    converted = []
    for value in values:
        try:
            converted.append(None if value is None else convert(value))
        except _UNFIT:
            _refuse(value, kind, name)
    try:
        return pa.array(converted, kind)
    except _UNFIT:
        for value, one in zip(values, converted, strict=True):
            try:
                pa.array([one], kind)
            except _UNFIT:
                _refuse(value, kind, name)
        raise


def _structs(values: Sequence[Any], kind: pa.DataType, name: str, times: Times) -> pa.Array:
    _require(dict, values, kind, name)
    columns = [
        array_of([None if v is None else v.get(field.name) for v in values], field.type, f"{name}.{field.name}", times)
        for field in kind
    ]
    missing = pa.array([value is None for value in values], pa.bool_())
    return pa.StructArray.from_arrays(columns, fields=list(kind), mask=missing)


def _lists(values: Sequence[Any], kind: pa.DataType, name: str, times: Times) -> pa.Array:
    _require(list, values, kind, name)
    inner = list(chain.from_iterable(value for value in values if value is not None))
    return pa.ListArray.from_arrays(
        _offsets(values),
        array_of(inner, kind.value_type, f"{name}[]", times),
        type=kind,
        mask=pa.array([value is None for value in values], pa.bool_()),
    )


def _maps(values: Sequence[Any], kind: pa.DataType, name: str, times: Times) -> pa.Array:
    _require(dict, values, kind, name)
    there = [value for value in values if value is not None]
    keys = array_of(list(chain.from_iterable(there)), kind.key_type, f"{name} (its names)", times)
    items = array_of(list(chain.from_iterable(v.values() for v in there)), kind.item_type, f"{name}{{}}", times)
    missing = pa.array([value is None for value in values], pa.bool_())
    return pa.MapArray.from_arrays(_offsets(values), keys, items, type=kind, mask=missing)


def _offsets(values: Sequence[Any]) -> pa.Array:
    return pa.array([0, *accumulate(0 if value is None else len(value) for value in values)], pa.int32())


def _require(wanted: type, values: Sequence[Any], kind: pa.DataType, name: str) -> None:
    if set(map(type, values)) - {wanted, type(None)}:
        _refuse(next(v for v in values if v is not None and not isinstance(v, wanted)), kind, name)


def _own(kind: pa.DataType) -> set[type]:
    """Return the types whose values Arrow takes as they are, losing nothing."""
    if pa.types.is_integer(kind):
        return {int}
    if pa.types.is_floating(kind):
        return {int, float} if kind == pa.float64() else {float}
    if pa.types.is_boolean(kind):
        return {bool}
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return {str}
    return {int, Decimal} if pa.types.is_decimal(kind) else set()


def _converter(kind: pa.DataType, times: Times) -> Callable[[Any], Any]:
    if pa.types.is_timestamp(kind):
        read = times.moment if kind.tz is not None else times.shown_there
        return lambda value: _in_ticks(read(value), kind.unit)
    choices: tuple[tuple[Callable[[pa.DataType], bool], Callable[[Any], Any]], ...] = (
        (pa.types.is_integer, _whole),
        (pa.types.is_floating, _fraction),
        (pa.types.is_boolean, _truth),
        (pa.types.is_string, _text),
        (pa.types.is_large_string, _text),
        (pa.types.is_decimal, _decimal),
        (pa.types.is_date, lambda value: date.fromisoformat(_only(str, value))),
        (pa.types.is_binary, lambda value: b64decode(_only(str, value), validate=True)),
        (pa.types.is_large_binary, lambda value: b64decode(_only(str, value), validate=True)),
    )
    for is_kind, convert in choices:
        if is_kind(kind):
            return convert
    return _nothing


def _in_ticks(micros: int, unit: str) -> int:
    if unit == "ns":
        return micros * 1_000
    ticks, rest = divmod(micros, _TICKS[unit])
    if rest:
        raise ValueError("finer than the column")
    return ticks


def _only(wanted: type, value: Any) -> Any:
    if type(value) is not wanted:
        raise TypeError("another kind")
    return value


def _whole(value: Any) -> int:
    if isinstance(value, bool):
        raise TypeError("a truth value")
    if isinstance(value, str):
        return int(_plain(value))
    whole = int(value)
    if whole != value:
        raise ValueError("a fraction")
    return whole


def _plain(value: Any) -> Any:
    """Refuse what only Python takes for a number."""
    if isinstance(value, str) and ("_" in value or value.strip() != value):
        raise ValueError("no number")
    return value


def _fraction(value: Any) -> float:
    if isinstance(value, bool):
        raise TypeError("a truth value")
    made = float(_plain(value))
    if isinstance(value, int) and int(made) != value:
        raise ValueError("more digits than a double has")
    return made


def _truth(value: Any) -> bool:
    return value if isinstance(value, bool) else {"true": True, "false": False}[_only(str, value)]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=float)


def _decimal(value: Any) -> Decimal:
    if isinstance(value, bool):
        raise TypeError("a truth value")
    try:
        made = Decimal(str(_plain(value)))
    except InvalidOperation:
        raise ValueError("no number") from None
    if not made.is_finite():
        raise ValueError("no number")
    return made


def _nothing(value: Any) -> NoReturn:
    raise TypeError("no such type in JSON")


def _refuse(value: Any, kind: pa.DataType, name: str) -> NoReturn:
    shown = value if isinstance(value, str) else json.dumps(value, default=str)
    shown = repr(shown[:_SHOWN]) if isinstance(value, str) else shown[:_SHOWN]
    raise SourceValueUnfit(
        f"The field {name!r} of a record is {shown}, which is no {kind}.",
        rule="Each value becomes one of its column, exactly.",
        remedy=f"Give {name.partition('.')[0].partition('[')[0]!r} a wider type in schema, such as string.",
        column=name,
        type=str(kind),
    ) from None
