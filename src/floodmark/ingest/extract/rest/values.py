"""Records as Arrow: which columns they have, and their values as arrays of a given type.

Columns are found in the records themselves, unless the schema names them:

| found | becomes |
|---|---|
| true and false | boolean |
| whole numbers | bigint; a text if one of them is larger |
| numbers, some with fractions | double |
| texts | string, also if they look like times |
| objects | a struct of all names that occur |
| lists | a list of what all their elements are |
| any two of these | string, with what is no text written as JSON |
| nothing but null, {} and [] | nothing: such a column is left out |

Values become those of a type exactly, or not at all:

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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from itertools import accumulate, chain
from typing import Any, Final, NoReturn

import pyarrow as pa

from floodmark.errors import SourceValueUnfit
from floodmark.ingest.calendar.clock import EPOCH, MICROSECOND, micros_to_wall, wall_to_micros, zone_of
from floodmark.ingest.job.source import EPOCH_UNITS

_SHOWN: Final = 60
_WALL_EPOCH: Final = EPOCH.replace(tzinfo=None)
_UNFIT: Final = (ValueError, TypeError, ArithmeticError, LookupError)
_TICKS: Final = {"s": 1_000_000, "ms": 1_000, "us": 1}


@dataclass(frozen=True, slots=True)
class RecordTimes:
    """How times are written in records."""

    time_format: str = "iso"
    zone: str = "UTC"

    def micros(self, value: Any) -> tuple[int, bool]:
        """Return a time in microseconds, and whether it is a moment; else it is what a wall clock shows.

        >>> RecordTimes().micros("1970-01-01T00:00:01Z"), RecordTimes("epoch-millis").micros(7)
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
        return micros if is_moment else wall_to_micros(_WALL_EPOCH + micros * MICROSECOND, zone_of(self.zone))

    def shown_there(self, value: Any) -> int:
        """Return what a wall clock in the zone shows at a time."""
        micros, is_moment = self.micros(value)
        return (micros_to_wall(micros, zone_of(self.zone)) - _WALL_EPOCH) // MICROSECOND if is_moment else micros


def to_array(values: Sequence[Any], kind: pa.DataType, name: str, times: RecordTimes) -> pa.Array:
    """Return values as an array of a type, or name the field of the first that does not fit.

    >>> to_array([1, None, "2"], pa.int64(), "n", RecordTimes()).to_pylist()
    [1, None, 2]
    >>> to_array([1.5], pa.int64(), "n", RecordTimes())
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


def _structs(values: Sequence[Any], kind: pa.DataType, name: str, times: RecordTimes) -> pa.Array:
    _require(dict, values, kind, name)
    columns = [
        to_array([None if v is None else v.get(field.name) for v in values], field.type, f"{name}.{field.name}", times)
        for field in kind
    ]
    missing = pa.array([value is None for value in values], pa.bool_())
    return pa.StructArray.from_arrays(columns, fields=list(kind), mask=missing)


def _lists(values: Sequence[Any], kind: pa.DataType, name: str, times: RecordTimes) -> pa.Array:
    _require(list, values, kind, name)
    inner = list(chain.from_iterable(value for value in values if value is not None))
    return pa.ListArray.from_arrays(
        _offsets(values),
        to_array(inner, kind.value_type, f"{name}[]", times),
        type=kind,
        mask=pa.array([value is None for value in values], pa.bool_()),
    )


def _maps(values: Sequence[Any], kind: pa.DataType, name: str, times: RecordTimes) -> pa.Array:
    _require(dict, values, kind, name)
    there = [value for value in values if value is not None]
    keys = to_array(list(chain.from_iterable(there)), kind.key_type, f"{name} (its names)", times)
    items = to_array(list(chain.from_iterable(v.values() for v in there)), kind.item_type, f"{name}{{}}", times)
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


def _converter(kind: pa.DataType, times: RecordTimes) -> Callable[[Any], Any]:
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


_NULL: Final = pa.null()
_BOOL: Final = pa.bool_()
_INT: Final = pa.int64()
_FLOAT: Final = pa.float64()
_TEXT: Final = pa.string()
_SMALLEST: Final = -(1 << 63)
_LARGEST: Final = (1 << 63) - 1

Columns = Mapping[str, pa.DataType]


def infer_columns(records: Sequence[Mapping[str, Any]]) -> dict[str, pa.DataType]:
    """Return the columns of records, in the order in which they first occur; also those that say nothing yet.

    >>> {
    ...     name: str(kind)
    ...     for name, kind in infer_columns([{"id": 1, "x": None}, {"id": 2.5, "of": {"a": ["b"]}}]).items()
    ... }
    {'id': 'double', 'x': 'null', 'of': 'struct<a: list<item: string>>'}
    """
    names = dict.fromkeys(chain.from_iterable(records))
    return {name: infer_type([record.get(name) for record in records]) for name in names}


def infer_type(values: Sequence[Any]) -> pa.DataType:
    """Return the type that holds all values: the same, however they are divided and united again."""
    kinds = set(map(type, values))
    kinds.discard(type(None))
    if not kinds:
        return _NULL
    if kinds == {str}:
        return _TEXT
    if kinds == {dict}:
        return pa.struct(list(infer_columns([value for value in values if value is not None]).items()))
    if kinds == {list}:
        return pa.list_(infer_type(list(chain.from_iterable(value for value in values if value is not None))))
    if kinds == {bool}:
        return _BOOL
    if kinds <= {int, float}:
        whole = [value for value in values if type(value) is int]
        if whole and (min(whole) < _SMALLEST or max(whole) > _LARGEST):
            return _TEXT
        return _FLOAT if float in kinds else _INT
    return _TEXT


def without_unknown(kind: pa.DataType) -> pa.DataType | None:
    """Return a type without what says nothing, or None if nothing is left.

    >>> without_unknown(pa.struct([("a", pa.null()), ("b", pa.int64())])), without_unknown(pa.list_(pa.null()))
    (StructType(struct<b: int64>), None)
    """
    if pa.types.is_struct(kind):
        fields = {name: without_unknown(inner) for name, inner in _fields(kind).items()}
        kept = [(name, inner) for name, inner in fields.items() if inner is not None]
        return pa.struct(kept) if kept else None
    if pa.types.is_list(kind):
        inner = without_unknown(kind.value_type)
        return None if inner is None else pa.list_(inner)
    return None if pa.types.is_null(kind) else kind


def common_type(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """Return the type that holds what either holds.

    >>> common_type(pa.int64(), pa.float64()), common_type(pa.int64(), pa.string())
    (DataType(double), DataType(string))
    """
    if one == other:
        return one
    if pa.types.is_null(one) or pa.types.is_null(other):
        return other if pa.types.is_null(one) else one
    if {one, other} == {_INT, _FLOAT}:
        return _FLOAT
    if pa.types.is_struct(one) and pa.types.is_struct(other):
        fields = common_columns(_fields(one), _fields(other))
        return pa.struct(list(fields.items()))
    if pa.types.is_list(one) and pa.types.is_list(other):
        return pa.list_(common_type(one.value_type, other.value_type))
    return _TEXT


def common_columns(one: Columns, other: Columns) -> dict[str, pa.DataType]:
    """Return the columns that hold what either have."""
    found = dict(one)
    for name, kind in other.items():
        found[name] = common_type(found[name], kind) if name in found else kind
    return found


def with_found_fields(given: pa.DataType, found: pa.DataType) -> pa.DataType:
    """Return a given type, with the fields of objects in it that were found and that it does not name.

    >>> with_found_fields(pa.struct([("a", pa.int32())]), pa.struct([("a", pa.int64()), ("b", pa.string())]))
    StructType(struct<a: int32, b: string>)
    """
    if pa.types.is_struct(given) and pa.types.is_struct(found):
        others = _fields(found)
        known = {n: with_found_fields(kind, others[n]) if n in others else kind for n, kind in _fields(given).items()}
        return pa.struct(list({**known, **{n: kind for n, kind in others.items() if n not in known}}.items()))
    if pa.types.is_list(given) and pa.types.is_list(found):
        return pa.list_(with_found_fields(given.value_type, found.value_type))
    return given


def _fields(kind: pa.DataType) -> dict[str, pa.DataType]:
    return {field.name: field.type for field in kind}
