"""The values of records as rows of columns: what a decoder gives back, whatever the format."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from floodmark.errors import SchemaInvalid, ValueUndecodable

EXCERPT: Final = 80
"""How many characters of a value a reason may quote: payloads do not belong into logs."""


@dataclass(frozen=True, slots=True)
class BadValue:
    """A value that could not be decoded: its place among the values, and why."""

    place: int
    reason: str

    def error(self) -> ValueUndecodable:
        """Return the error for a caller that chooses to fail.

        >>> BadValue(3, "'id' is missing").error().fields
        {'place': 3, 'reason': "'id' is missing"}
        """
        return ValueUndecodable(
            f"The value at place {self.place} cannot be decoded: {self.reason}.",
            rule="A value has the format and the schema of its stream.",
            remedy="Correct its producer, or choose to set such values aside.",
            place=self.place,
            reason=self.reason,
        )


@dataclass(frozen=True, slots=True)
class Decoded:
    """Values as rows: `batch` has one for each value, in their order; that of a bad or a null value is all null."""

    batch: Any
    bad: tuple[BadValue, ...] = ()


class Unfit(Exception):
    """A single value does not fit; it never leaves the decoders."""


def excerpt(value: object) -> str:
    """Return what a reason may quote of a value.

    >>> excerpt("abc"), len(excerpt("x" * 1000))
    ("'abc'", 80)
    """
    text = repr(value[: EXCERPT + 1] if isinstance(value, bytes | str) else value)
    return text if len(text) <= EXCERPT else text[: EXCERPT - 3] + "..."


def result_schema(schema: Any) -> Any:
    """Return the schema of decoded rows: every column may be null, since the row of a bad value is.

    >>> print(result_schema(pa.schema([pa.field("id", pa.int64(), nullable=False)])))
    id: int64
    """
    return pa.schema([field.with_nullable(True) for field in schema])


def rows_to_batch(rows: Sequence[Sequence[Any] | None], schema: Any) -> Any:
    """Return rows of plain values as a batch; a row that is None is all null.

    >>> rows_to_batch([(1,), None], pa.schema([("id", pa.int64())])).to_pylist()
    [{'id': 1}, {'id': None}]
    """
    columns = [
        pa.array([None if row is None else row[place] for row in rows], field.type)
        for place, field in enumerate(schema)
    ]
    return pa.record_batch(columns, schema=result_schema(schema))


def check_columns(schema: Any) -> None:
    """Refuse columns that have no form as the value of a record.

    >>> check_columns(pa.schema([("id", pa.uint64())]))
    Traceback (most recent call last):
    floodmark.errors.SchemaInvalid: The column 'id' has the Arrow type uint64. ... [schema-invalid]
    """
    _check_names(schema.names)
    for field in schema:
        for kind in kinds_inside(field.type):
            if not _is_known(kind):
                raise SchemaInvalid(
                    f"The column {field.name!r} has the Arrow type {kind}.",
                    rule="A column of a record's value has a type that Spark has too.",
                    remedy="Convert the column.",
                    schema=str(schema),
                )


def _check_names(names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise SchemaInvalid(
                f"The schema has the column {name!r} twice.",
                rule="Columns are taken from a value by name.",
                remedy="Give each column a name of its own.",
                schema=name,
            )
        seen.add(name)


def kinds_inside(kind: Any) -> Iterable[Any]:
    """Return a type and all types inside it."""
    yield kind
    if pa.types.is_struct(kind):
        inside = [kind.field(place).type for place in range(kind.num_fields)]
        _check_names(kind.field(place).name for place in range(kind.num_fields))
    elif pa.types.is_map(kind):
        inside = [kind.key_type, kind.item_type]
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        inside = [kind.value_type]
    else:
        inside = []
    for inner in inside:
        yield from kinds_inside(inner)


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


def _is_known(kind: Any) -> bool:
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
