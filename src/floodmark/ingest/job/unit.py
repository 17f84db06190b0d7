"""Units: what a job reads per period, such as customer ids; listed, or read from a secondary input."""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

from floodmark._util.codec import parse_json
from floodmark.errors import DuplicateUnit, JobInvalid, UnitsInvalid
from floodmark.ingest.job.options import (
    Frozen,
    Secret,
    invalid_option,
    refuse_password,
    require_above_zero,
    require_one_of,
)


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit: named fields with values. Its key is canonical JSON, independent of the order of the fields.

    >>> Unit.of({"region": "eu", "id": 7}).key
    '{"id":7,"region":"eu"}'
    >>> Unit.of({}) == Unit.of({})
    True
    """

    key: str
    fields: Mapping[str, Any]

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> Self:
        """Return the unit with these fields: strings, finite numbers, booleans or None.

        >>> Unit.of({"id": [1]})
        Traceback (most recent call last):
        floodmark.errors.JobInvalid: A unit has 'id' = [1]. ... [job-invalid]
        """
        for name, value in fields.items():
            is_plain = value is None or isinstance(value, str | int | float | bool)
            if not isinstance(name, str) or not is_plain or value != value or value in (float("inf"), -float("inf")):
                raise JobInvalid(
                    f"A unit has {name!r} = {value!r}.",
                    rule="A field has a string as name, and a string, finite number, boolean or None as value.",
                    remedy="Convert the value to a string.",
                    field=name,
                )
        key = json.dumps(dict(fields), sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        return cls(key, Frozen(fields))

    @classmethod
    def load(cls, key: str) -> Self:
        """Return the unit with this key."""
        return cls(key, Frozen(json.loads(key)))

    def __str__(self) -> str:
        return ", ".join(f"{name}={value}" for name, value in self.fields.items()) or "(all)"


SOLE_UNIT = Unit.of({})
"""The single unit of a job without [units]."""


@dataclass(frozen=True, slots=True)
class UnitWatermark:
    """The units of a job: listed, or to be read from a secondary input.

    >>> UnitWatermark.listed("id", ["a", "b"]).units[1].key
    '{"id":"b"}'
    """

    name: str
    units: tuple[Unit, ...] | None = None
    secondary: object = None
    """The `SecondaryInput` that the units are read from."""

    def __post_init__(self) -> None:
        """Validate the units."""
        if self.units is None and self.secondary is None:
            raise JobInvalid(
                f"The units {self.name!r} have neither a list nor a secondary input.",
                rule="Units are listed, or read from a secondary input.",
                remedy="Set `units` or `secondary`; for a job without units, omit UnitWatermark.",
                name=self.name,
            )
        _require_unique(self.units or ())

    @classmethod
    def listed(cls, name: str, values: Iterable[object]) -> Self:
        """Return units with one field each."""
        return cls(name, tuple(Unit.of({name: value}) for value in values))


INPUT_FORMATS: Final = ("csv", "json", "parquet", "avro", "delta")


MAX_UNITS: Final = 100_000


@dataclass(frozen=True, slots=True)
class SecondaryInput:
    """The secondary input of a job: rows of a file, folder or Delta table, or of a SQL table or query, become units.

    >>> SecondaryInput(fields=("id",), path="ids.csv", filters={"status": "OK|Success"}).most
    100000
    """

    fields: tuple[str, ...]
    """The columns that become the fields of a unit."""
    path: str | None = None
    """A file, a folder of files, or a Delta table. Exactly one of `path` and `url` is set."""
    format: str | None = None
    url: str | Secret | None = None
    password: Secret | None = None
    table: str | None = None
    query: str | None = None
    filters: Mapping[str, str] = field(default_factory=dict)
    """Regular expressions by column; a row must match all, each with its whole value. NULL never matches."""
    distinct: bool = False
    """Whether duplicate units are dropped; otherwise they are an error."""
    may_be_empty: bool = False
    most: int = MAX_UNITS
    """More units than this are an error."""

    def __post_init__(self) -> None:
        """Validate the input."""
        if not self.fields or len(set(self.fields)) != len(self.fields):
            raise invalid_option(
                "fields",
                f"The fields are {list(self.fields)}.",
                "A unit needs at least one field, and each field once.",
                'Set for example fields = ["id"].',
            )
        if (self.path is None) == (self.url is None):
            raise invalid_option(
                "path" if self.path is not None else "url",
                "Both path and url are set." if self.path is not None else "Neither path nor url is set.",
                "Units are read from a file (path) or from a database (url).",
                "Set exactly one of path and url.",
            )
        if self.url is not None and (self.table is None) == (self.query is None):
            raise invalid_option(
                "query" if self.query is not None else "table",
                "Both table and query are set." if self.table is not None else "Neither table nor query is set.",
                "A database is read by a table or by a query.",
                "Set exactly one of table and query.",
            )
        if isinstance(self.url, str):
            refuse_password(self.url, "url")
        if self.format is not None:
            require_one_of("format", self.format, INPUT_FORMATS)
        require_above_zero("most", self.most)
        for column, pattern in self.filters.items():
            compile_filter(column, pattern)
        object.__setattr__(self, "filters", Frozen(self.filters))

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns to read: those of the fields and of the filters."""
        return tuple(dict.fromkeys((*self.fields, *self.filters)))


def listed_units(name: str, value: object) -> tuple[Unit, ...]:
    """Parse listed units: a comma-separated string, or a list of values or tables.

    >>> [unit.key for unit in listed_units("id", "a, b ,c")]
    ['{"id":"a"}', '{"id":"b"}', '{"id":"c"}']
    >>> [unit.key for unit in listed_units("id", [{"region": "eu", "id": 8}])]
    ['{"id":8,"region":"eu"}']
    """
    if isinstance(value, str):
        value = _split_list(value)
    if not isinstance(value, list | tuple) or not value:
        raise UnitsInvalid(
            f"The units {name!r} are not a list, or an empty one.",
            rule='Units are written as "a, b, c", or as a list of values or of tables with the same fields.',
            remedy="List at least one unit, or remove [units].",
            units=name,
        )
    units = tuple(Unit.of(item if isinstance(item, dict) else {name: item}) for item in value)
    for unit, item in zip(units, value, strict=True):
        is_blank = not unit.fields or any(field_value == "" for field_value in unit.fields.values())
        if unit.fields.keys() != units[0].fields.keys() or is_blank or item is None:
            raise UnitsInvalid(
                f"The unit {unit.key} of {name!r} is blank, or has other fields than the first.",
                rule="All units of a job have the same fields, and every field has a value.",
                remedy="Give it the fields of the first unit, or remove it.",
                units=name,
                unit=unit.key,
            )
    return _require_unique(units)


def _split_list(text: str) -> list[Any]:
    """Split a comma-separated string, or parse a string that is a JSON list."""
    if text.lstrip().startswith("["):
        try:
            return list(parse_json(text))
        except ValueError as error:
            raise UnitsInvalid(
                f"The units are not valid JSON: {error}.",
                rule='Units are written as "a, b, c", or as a JSON list.',
                remedy="Close all quotes and brackets of the list.",
            ) from error
    return [item.strip() for item in text.split(",")] if text.strip() else []


def _require_unique(units: tuple[Unit, ...]) -> tuple[Unit, ...]:
    seen: set[str] = set()
    for unit in units:
        if unit.key in seen:
            raise duplicate_unit_error(unit, "Remove the duplicate.")
        seen.add(unit.key)
    return units


def duplicate_unit_error(unit: Unit, remedy: str) -> DuplicateUnit:
    """Return the error for a duplicate unit."""
    return DuplicateUnit(
        f"The unit {unit.key} is listed twice.", rule="Units must be unique.", remedy=remedy, unit=unit.key
    )


def compile_filter(column: str, pattern: str) -> re.Pattern[str]:
    """Compile the filter of a column."""
    try:
        return re.compile(pattern)
    except re.error as error:
        raise invalid_option(
            "filters",
            f"The filter of {column!r} is not a regular expression: {error}.",
            "A filter is a Python regular expression that must match the whole value.",
            "Use for example 'OK|Success'.",
        ) from error
