"""JSON records as Arrow: the columns inferred from records, and the conversion of values to arrays of a type.

Columns that the schema does not name are inferred:

| values | column type |
|---|---|
| true and false | boolean |
| whole numbers | bigint; string if one of them is too large |
| numbers, some with fractions | double |
| texts | string, even if they look like times |
| objects | a struct of all names that occur |
| lists | a list of the type of all their elements |
| a mixture of these | string, with all but texts as JSON |
| only null, {} and [] | none: the column is left out |

A value is converted exactly, or refused:

| type | also accepts |
|---|---|
| numbers | texts of such a number; fractions only if nothing is lost, or if the type is double or float |
| boolean | the texts true and false |
| string | any value, as JSON |
| timestamp | texts in ISO 8601; texts and numbers in the source's `time_format` |
| date | texts such as 2020-01-31 |
| binary | texts in base64 |

A time without an offset is in the source's zone. Digits beyond microseconds are dropped.
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

_EXCERPT: Final = 60
_WALL_EPOCH: Final = EPOCH.replace(tzinfo=None)
_CONVERSION_ERRORS: Final = (ValueError, TypeError, ArithmeticError, LookupError)
_MICROS_PER_UNIT: Final = {"s": 1_000_000, "ms": 1_000, "us": 1}


@dataclass(frozen=True, slots=True)
class RecordTimes:
    """The format and the zone of times in records."""

    time_format: str = "iso"
    zone: str = "UTC"

    def parse(self, value: Any) -> tuple[int, bool]:
        """Return a time in microseconds, and whether it is a moment; otherwise it is a wall time in the zone.

        >>> RecordTimes().parse("1970-01-01T00:00:01Z"), RecordTimes("epoch-millis").parse(7)
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
            # fromisoformat would read seconds since the epoch as a date in the distant past.
            parsed = datetime.fromisoformat("" if is_digits else value)
        except ValueError:
            if "%" not in self.time_format:
                raise
            parsed = datetime.strptime(value, self.time_format)  # noqa: DTZ007 - the zone follows
        if parsed.tzinfo is not None:
            return (parsed - EPOCH) // MICROSECOND, True
        return (parsed - _WALL_EPOCH) // MICROSECOND, False

    def moment_micros(self, value: Any) -> int:
        """Return a time as a moment, in microseconds since the epoch."""
        micros, is_moment = self.parse(value)
        return micros if is_moment else wall_to_micros(_WALL_EPOCH + micros * MICROSECOND, zone_of(self.zone))

    def wall_micros(self, value: Any) -> int:
        """Return a time as wall time in the zone, in microseconds."""
        micros, is_moment = self.parse(value)
        return (micros_to_wall(micros, zone_of(self.zone)) - _WALL_EPOCH) // MICROSECOND if is_moment else micros


def to_array(values: Sequence[Any], kind: pa.DataType, name: str, times: RecordTimes) -> pa.Array:
    """Return values as an array of a type; refuse the first value that does not fit.

    >>> to_array([1, None, "2"], pa.int64(), "n", RecordTimes()).to_pylist()
    [1, None, 2]
    >>> to_array([1.5], pa.int64(), "n", RecordTimes())
    Traceback (most recent call last):
    floodmark.errors.SourceValueUnfit: The field 'n' of a record is 1.5, which is no int64. ...
    """
    if pa.types.is_struct(kind):
        return _struct_array(values, kind, name, times)
    if pa.types.is_map(kind):
        return _map_array(values, kind, name, times)
    if pa.types.is_list(kind):
        return _list_array(values, kind, name, times)
    python_types = set(map(type, values))
    python_types.discard(type(None))
    try:
        if python_types <= _exact_python_types(kind):
            return pa.array(values, kind)
        if pa.types.is_timestamp(kind) and python_types == {str}:
            return pa.array(values, pa.string()).cast(kind)
    except _CONVERSION_ERRORS:
        pass  # converting each value by itself succeeds, or finds the value that does not fit
    convert = _converter(kind, times)
    converted = []
    for value in values:
        try:
            converted.append(None if value is None else convert(value))
        except _CONVERSION_ERRORS:
            _refuse(value, kind, name)
    try:
        return pa.array(converted, kind)
    except _CONVERSION_ERRORS:
        for value, result in zip(values, converted, strict=True):
            try:
                pa.array([result], kind)
            except _CONVERSION_ERRORS:
                _refuse(value, kind, name)
        raise


def _struct_array(values: Sequence[Any], kind: pa.DataType, name: str, times: RecordTimes) -> pa.Array:
    _require_type(dict, values, kind, name)
    columns = [
        to_array([None if v is None else v.get(field.name) for v in values], field.type, f"{name}.{field.name}", times)
        for field in kind
    ]
    missing = pa.array([value is None for value in values], pa.bool_())
    return pa.StructArray.from_arrays(columns, fields=list(kind), mask=missing)


def _list_array(values: Sequence[Any], kind: pa.DataType, name: str, times: RecordTimes) -> pa.Array:
    _require_type(list, values, kind, name)
    elements = list(chain.from_iterable(value for value in values if value is not None))
    return pa.ListArray.from_arrays(
        _offsets(values),
        to_array(elements, kind.value_type, f"{name}[]", times),
        type=kind,
        mask=pa.array([value is None for value in values], pa.bool_()),
    )


def _map_array(values: Sequence[Any], kind: pa.DataType, name: str, times: RecordTimes) -> pa.Array:
    _require_type(dict, values, kind, name)
    present = [value for value in values if value is not None]
    keys = to_array(list(chain.from_iterable(present)), kind.key_type, f"{name} (its names)", times)
    items = to_array(list(chain.from_iterable(v.values() for v in present)), kind.item_type, f"{name}{{}}", times)
    missing = pa.array([value is None for value in values], pa.bool_())
    return pa.MapArray.from_arrays(_offsets(values), keys, items, type=kind, mask=missing)


def _offsets(values: Sequence[Any]) -> pa.Array:
    return pa.array([0, *accumulate(0 if value is None else len(value) for value in values)], pa.int32())


def _require_type(required: type, values: Sequence[Any], kind: pa.DataType, name: str) -> None:
    if set(map(type, values)) - {required, type(None)}:
        _refuse(next(v for v in values if v is not None and not isinstance(v, required)), kind, name)


def _exact_python_types(kind: pa.DataType) -> set[type]:
    """Return the Python types whose values Arrow converts to a type without loss."""
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
        to_micros = times.moment_micros if kind.tz is not None else times.wall_micros
        return lambda value: _micros_to_unit(to_micros(value), kind.unit)
    choices: tuple[tuple[Callable[[pa.DataType], bool], Callable[[Any], Any]], ...] = (
        (pa.types.is_integer, _to_int),
        (pa.types.is_floating, _to_float),
        (pa.types.is_boolean, _to_bool),
        (pa.types.is_string, _to_text),
        (pa.types.is_large_string, _to_text),
        (pa.types.is_decimal, _to_decimal),
        (pa.types.is_date, lambda value: date.fromisoformat(_check_is_text(value))),
        (pa.types.is_binary, lambda value: b64decode(_check_is_text(value), validate=True)),
        (pa.types.is_large_binary, lambda value: b64decode(_check_is_text(value), validate=True)),
    )
    for is_kind, convert in choices:
        if is_kind(kind):
            return convert
    return _refuse_type


def _micros_to_unit(micros: int, unit: str) -> int:
    if unit == "ns":
        return micros * 1_000
    whole, rest = divmod(micros, _MICROS_PER_UNIT[unit])
    if rest:
        raise ValueError("finer than the column")
    return whole


def _check_is_text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("no text")
    return value


def _to_int(value: Any) -> int:
    if isinstance(value, bool):
        raise TypeError("a boolean")
    if isinstance(value, str):
        return int(_check_number_text(value))
    whole = int(value)
    if whole != value:
        raise ValueError("a fraction")
    return whole


def _check_number_text(value: Any) -> Any:
    """Refuse texts that Python accepts as numbers and other systems do not: with underscores or blanks."""
    if isinstance(value, str) and ("_" in value or value.strip() != value):
        raise ValueError("no number")
    return value


def _to_float(value: Any) -> float:
    if isinstance(value, bool):
        raise TypeError("a boolean")
    result = float(_check_number_text(value))
    if isinstance(value, int) and int(result) != value:
        raise ValueError("more digits than a double has")
    return result


def _to_bool(value: Any) -> bool:
    return value if isinstance(value, bool) else {"true": True, "false": False}[_check_is_text(value)]


def _to_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=float)


def _to_decimal(value: Any) -> Decimal:
    if isinstance(value, bool):
        raise TypeError("a boolean")
    try:
        result = Decimal(str(_check_number_text(value)))
    except InvalidOperation:
        raise ValueError("no number") from None
    if not result.is_finite():
        raise ValueError("no number")
    return result


def _refuse_type(value: Any) -> NoReturn:
    raise TypeError("no such type in JSON")


def _refuse(value: Any, kind: pa.DataType, name: str) -> NoReturn:
    shown = value if isinstance(value, str) else json.dumps(value, default=str)
    shown = repr(shown[:_EXCERPT]) if isinstance(value, str) else shown[:_EXCERPT]
    raise SourceValueUnfit(
        f"The field {name!r} of a record is {shown}, which is no {kind}.",
        rule="Each value is converted to the type of its column without loss.",
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
    """Return the columns of records, in order of first occurrence; columns with only nulls have the type null.

    >>> {
    ...     name: str(kind)
    ...     for name, kind in infer_columns([{"id": 1, "x": None}, {"id": 2.5, "of": {"a": ["b"]}}]).items()
    ... }
    {'id': 'double', 'x': 'null', 'of': 'struct<a: list<item: string>>'}
    """
    names = dict.fromkeys(chain.from_iterable(records))
    return {name: infer_type([record.get(name) for record in records]) for name in names}


def infer_type(values: Sequence[Any]) -> pa.DataType:
    """Return the type that holds all values. It does not depend on how the values are divided into pages."""
    python_types = set(map(type, values))
    python_types.discard(type(None))
    if not python_types:
        return _NULL
    if python_types == {str}:
        return _TEXT
    if python_types == {dict}:
        return pa.struct(list(infer_columns([value for value in values if value is not None]).items()))
    if python_types == {list}:
        return pa.list_(infer_type(list(chain.from_iterable(value for value in values if value is not None))))
    if python_types == {bool}:
        return _BOOL
    if python_types <= {int, float}:
        integers = [value for value in values if type(value) is int]
        if integers and (min(integers) < _SMALLEST or max(integers) > _LARGEST):
            return _TEXT
        return _FLOAT if float in python_types else _INT
    return _TEXT


def without_null_types(kind: pa.DataType) -> pa.DataType | None:
    """Return a type without its null-typed parts, or None if nothing is left.

    >>> without_null_types(pa.struct([("a", pa.null()), ("b", pa.int64())])), without_null_types(pa.list_(pa.null()))
    (StructType(struct<b: int64>), None)
    """
    if pa.types.is_struct(kind):
        fields = {name: without_null_types(inner) for name, inner in _fields(kind).items()}
        kept = [(name, inner) for name, inner in fields.items() if inner is not None]
        return pa.struct(kept) if kept else None
    if pa.types.is_list(kind):
        inner = without_null_types(kind.value_type)
        return None if inner is None else pa.list_(inner)
    return None if pa.types.is_null(kind) else kind


def common_type(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    """Return the type that holds the values of both types.

    >>> common_type(pa.int64(), pa.float64()), common_type(pa.int64(), pa.string())
    (DataType(double), DataType(string))
    """
    if left == right:
        return left
    if pa.types.is_null(left) or pa.types.is_null(right):
        return right if pa.types.is_null(left) else left
    if {left, right} == {_INT, _FLOAT}:
        return _FLOAT
    if pa.types.is_struct(left) and pa.types.is_struct(right):
        fields = common_columns(_fields(left), _fields(right))
        return pa.struct(list(fields.items()))
    if pa.types.is_list(left) and pa.types.is_list(right):
        return pa.list_(common_type(left.value_type, right.value_type))
    return _TEXT


def common_columns(left: Columns, right: Columns) -> dict[str, pa.DataType]:
    """Return the columns that hold the values of both."""
    columns = dict(left)
    for name, kind in right.items():
        columns[name] = common_type(columns[name], kind) if name in columns else kind
    return columns


def with_inferred_fields(declared: pa.DataType, inferred: pa.DataType) -> pa.DataType:
    """Return a declared type whose structs also have the inferred fields that they do not name.

    >>> with_inferred_fields(pa.struct([("a", pa.int32())]), pa.struct([("a", pa.int64()), ("b", pa.string())]))
    StructType(struct<a: int32, b: string>)
    """
    if pa.types.is_struct(declared) and pa.types.is_struct(inferred):
        others = _fields(inferred)
        fields = {
            name: with_inferred_fields(kind, others[name]) if name in others else kind
            for name, kind in _fields(declared).items()
        }
        added = {name: kind for name, kind in others.items() if name not in fields}
        return pa.struct(list({**fields, **added}.items()))
    if pa.types.is_list(declared) and pa.types.is_list(inferred):
        return pa.list_(with_inferred_fields(declared.value_type, inferred.value_type))
    return declared


def _fields(kind: pa.DataType) -> dict[str, pa.DataType]:
    return {field.name: field.type for field in kind}
