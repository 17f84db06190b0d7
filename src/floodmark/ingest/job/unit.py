"""Units: what a job reads besides time, such as ids; listed, or from a secondary input. Time x units are cells."""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

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
    """One thing that is read: a few fields with their values. Its key is the same in whatever order they stand.

    >>> Unit.of({"region": "eu", "id": 7}).key
    '{"id":7,"region":"eu"}'
    >>> Unit.of({}) == Unit.of({})
    True
    """

    key: str
    fields: Mapping[str, Any]

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> Self:
        """Return the unit with these fields: texts, numbers, truth values or None.

        >>> Unit.of({"id": [1]})
        Traceback (most recent call last):
        floodmark.errors.JobInvalid: A unit has 'id' = [1]. ... [job-invalid]
        """
        for name, value in fields.items():
            is_plain = value is None or isinstance(value, str | int | float | bool)
            if not isinstance(name, str) or not is_plain or value != value or value in (float("inf"), -float("inf")):
                raise JobInvalid(
                    f"A unit has {name!r} = {value!r}.",
                    rule="A field has a name, and is a text, a finite number, a truth value or None.",
                    remedy="Convert it to text first.",
                    field=name,
                )
        key = json.dumps(dict(fields), sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        return cls(key, Frozen(fields))

    @classmethod
    def load(cls, key: str) -> Self:
        """Return the unit of a key."""
        return cls(key, Frozen(json.loads(key)))

    def __str__(self) -> str:
        return ", ".join(f"{name}={value}" for name, value in self.fields.items()) or "(all)"


SOLE_UNIT = Unit.of({})
"""The one unit of a job that has none."""


@dataclass(frozen=True, slots=True)
class UnitWatermark:
    """The units of a job: listed, or still to be read from a secondary input.

    >>> UnitWatermark.listed("id", ["a", "b"]).units[1].key
    '{"id":"b"}'
    """

    name: str
    units: tuple[Unit, ...] | None = None
    secondary: object = None
    """What says where the units come from; opaque here."""

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        if self.units is None and self.secondary is None:
            raise JobInvalid(
                f"The units {self.name!r} are neither listed nor read from anywhere.",
                rule="Units are listed, or come from a secondary input.",
                remedy="List them; leave units out if there are none.",
                name=self.name,
            )
        seen: set[str] = set()
        for unit in self.units or ():
            if unit.key in seen:
                raise DuplicateUnit(
                    f"The unit {unit.key} is listed twice.",
                    rule="Each unit is read once.",
                    remedy="Leave one of them out.",
                    unit=unit.key,
                )
            seen.add(unit.key)

    @classmethod
    def listed(cls, name: str, values: Iterable[object]) -> Self:
        """Return units of one field each."""
        return cls(name, tuple(Unit.of({name: value}) for value in values))


INPUT_FORMATS: Final = ("csv", "json", "parquet", "avro", "delta")


MAX_UNITS: Final = 100_000


@dataclass(frozen=True, slots=True)
class SecondaryInput:
    """Where units come from: rows of a file, a folder, a Delta table, or a table or query of a SQL database.

    >>> SecondaryInput(fields=("id",), path="ids.csv", filters={"status": "OK|Success"}).most
    100000
    """

    fields: tuple[str, ...]
    """The columns that make a unit."""
    path: str | None = None
    """A file, a folder of files, or a Delta table; or else a URL."""
    format: str | None = None
    url: str | Secret | None = None
    password: Secret | None = None
    table: str | None = None
    query: str | None = None
    filters: Mapping[str, str] = field(default_factory=dict)
    """Regular expressions by column, which must fit the whole value, all of them. NULL fits none."""
    distinct: bool = False
    """Whether rows that give the same unit are one; otherwise they are refused."""
    may_be_empty: bool = False
    most: int = MAX_UNITS
    """With more units than that, nothing is planned."""

    def __post_init__(self) -> None:
        """Refuse what gives no units."""
        if not self.fields or len(set(self.fields)) != len(self.fields):
            raise invalid_option(
                "fields",
                f"The fields are {list(self.fields)}.",
                "A unit has at least one field, and each once.",
                'Write for example fields = ["id"].',
            )
        if (self.path is None) == (self.url is None):
            raise invalid_option(
                "path" if self.path is not None else "url",
                "Units come from two places." if self.path is not None else "Units come from nowhere.",
                "They come from a file (path), or from a database (url).",
                "Keep the one that is meant.",
            )
        if self.url is not None and (self.table is None) == (self.query is None):
            raise invalid_option(
                "query" if self.query is not None else "table",
                "There are both a table and a query." if self.table is not None else "There is no table and no query.",
                "Of a database either a table or a query is read.",
                "Keep the one that is meant.",
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
        """What is read: the fields, and what filters look at."""
        return tuple(dict.fromkeys((*self.fields, *self.filters)))


def listed_units(name: str, value: object) -> tuple[Unit, ...]:
    """Return units that are written out: texts with commas between them, or a list of values or of tables.

    >>> [unit.key for unit in listed_units("id", "a, b ,c")]
    ['{"id":"a"}', '{"id":"b"}', '{"id":"c"}']
    >>> [unit.key for unit in listed_units("id", [{"region": "eu", "id": 8}])]
    ['{"id":8,"region":"eu"}']
    """
    if isinstance(value, str):
        value = _split_list(value)
    if not isinstance(value, list | tuple) or not value:
        raise UnitsInvalid(
            f"The units {name!r} are no list, or an empty one.",
            rule='They are written as "a, b, c", or as a list of values or of tables with the same fields.',
            remedy="List at least one, or leave units out if there are none.",
            units=name,
        )
    units = tuple(Unit.of(one if isinstance(one, dict) else {name: one}) for one in value)
    for unit, listed in zip(units, value, strict=True):
        is_blank = not unit.fields or any(isinstance(one, str) and not one for one in unit.fields.values())
        if unit.fields.keys() != units[0].fields.keys() or is_blank or listed is None:
            raise UnitsInvalid(
                f"The unit {unit.key} of {name!r} is blank, or has other fields than the first.",
                rule="All units of a job have the same fields, and each has a value.",
                remedy="Correct it, or take it out.",
                units=name,
                unit=unit.key,
            )
    return _require_unique(units, "Leave one of them out.")


def _split_list(text: str) -> list[Any]:
    """Return the parts of a text with commas, or of a JSON list that stands in a text."""
    if text.lstrip().startswith("["):
        try:
            return list(json.loads(text))
        except ValueError as error:
            raise UnitsInvalid(
                f"The units are no JSON list: {error}.",
                rule='They are written as "a, b, c", or as a list.',
                remedy="Close its quotes and brackets.",
            ) from error
    return [part.strip() for part in text.split(",")] if text.strip() else []


def _require_unique(units: tuple[Unit, ...], remedy: str) -> tuple[Unit, ...]:
    seen: set[str] = set()
    for unit in units:
        if unit.key in seen:
            raise duplicate_unit_error(unit, remedy)
        seen.add(unit.key)
    return units


def duplicate_unit_error(unit: Unit, remedy: str) -> DuplicateUnit:
    """Return the error for a unit that is listed twice."""
    return DuplicateUnit(
        f"The unit {unit.key} is there twice.", rule="Each unit is read once.", remedy=remedy, unit=unit.key
    )


def compile_filter(column: str, pattern: str) -> re.Pattern[str]:
    """Return the compiled filter of a column, or refuse what is no regular expression."""
    try:
        return re.compile(pattern)
    except re.error as error:
        raise invalid_option(
            "filters",
            f"The filter of {column!r} is no regular expression: {error}.",
            "It is one as Python writes them, and must fit the whole value.",
            "Write for example 'OK|Success'.",
        ) from error
