"""The units of a job: listed in words, or read from a secondary input, which is any file, table or query."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

from floodmark.errors import DuplicateUnit, SecondaryInputFailed, UnitsInvalid
from floodmark.ingest._frozen import Frozen
from floodmark.ingest._job import Job
from floodmark.ingest._secrets import Secret, refuse_password
from floodmark.ingest._spec_checks import refused, require_above_zero, require_one_of
from floodmark.ingest._unit import Unit
from floodmark.ingest._unit_query import rows_of_query
from floodmark.ingest._unit_rows import FORMATS, UnitRow, rows_of_files

MOST_UNITS: Final = 100_000


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
    most: int = MOST_UNITS
    """With more units than that, nothing is planned."""

    def __post_init__(self) -> None:
        """Refuse what gives no units."""
        if not self.fields or len(set(self.fields)) != len(self.fields):
            raise refused(
                "fields",
                f"The fields are {list(self.fields)}.",
                "A unit has at least one field, and each once.",
                'Write for example fields = ["id"].',
            )
        if (self.path is None) == (self.url is None):
            raise refused(
                "path" if self.path is not None else "url",
                "Units come from two places." if self.path is not None else "Units come from nowhere.",
                "They come from a file (path), or from a database (url).",
                "Keep the one that is meant.",
            )
        if self.url is not None and (self.table is None) == (self.query is None):
            raise refused(
                "query" if self.query is not None else "table",
                "There are both a table and a query." if self.table is not None else "There is no table and no query.",
                "Of a database either a table or a query is read.",
                "Keep the one that is meant.",
            )
        if isinstance(self.url, str):
            refuse_password(self.url, "url")
        if self.format is not None:
            require_one_of("format", self.format, FORMATS)
        require_above_zero("most", self.most)
        for column, pattern in self.filters.items():
            _compiled(column, pattern)
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
        value = _parts_of(value)
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
    return _once(units, "Leave one of them out.")


def read_units(secondary: SecondaryInput, environment: Mapping[str, str] | None = None) -> tuple[Unit, ...]:
    """Return the units that a secondary input gives now, in the order of their keys.

    The order is that of the keys, because a table gives its rows in any.
    """
    found: dict[str, Unit] = {}
    for row in chosen(_rows(secondary, environment), secondary):
        unit = Unit.of(row)
        if unit.key in found and not secondary.distinct:
            raise _twice(unit, "Write distinct = true if one of them is enough, or choose more fields.")
        found[unit.key] = unit
        if len(found) > secondary.most:
            raise UnitsInvalid(
                f"There are more than {secondary.most} units.",
                rule="A secondary input gives a bounded number of units.",
                remedy="Filter it, or raise most if so many are meant.",
                most=secondary.most,
            )
    if not found and not secondary.may_be_empty:
        raise SecondaryInputFailed(
            "The secondary input gives no units.",
            rule="Without units every unit would count as retired.",
            remedy="See what it reads and filters; write may_be_empty = true if that is as it should be.",
        )
    return tuple(found[key] for key in sorted(found))


def with_units(job: Job, environment: Mapping[str, str] | None = None) -> Job:
    """Return the job with its units read, if they come from a secondary input and are not read yet.

    >>> listed = Job("a", "UTC", TimeWatermark("t", Bound.parse("2020-01-01", "UTC"), Bound.parse("-", "UTC")))
    >>> with_units(listed) is listed
    True
    """
    if job.units is None or job.units.units is not None or not isinstance(job.units.secondary, SecondaryInput):
        return job
    return job.with_units(read_units(job.units.secondary, environment))


def chosen(rows: Iterable[UnitRow], secondary: SecondaryInput) -> Iterator[Mapping[str, Any]]:
    """Yield the fields of the rows that pass all filters.

    >>> rows = [{"id": 1, "ok": "yes"}, {"id": 2, "ok": None}, {"id": 3, "ok": "yes, no"}]
    >>> list(chosen(rows, SecondaryInput(fields=("id",), path="x.csv", filters={"ok": "yes"})))
    [{'id': 1}]
    """
    filters = [(column, _compiled(column, pattern)) for column, pattern in secondary.filters.items()]
    for row in rows:
        if all(row[column] is not None and fits.fullmatch(_text(row[column])) for column, fits in filters):
            yield {name: _value(name, row[name]) for name in secondary.fields}


def _rows(secondary: SecondaryInput, environment: Mapping[str, str] | None) -> Iterator[UnitRow]:
    if secondary.path is not None:
        return rows_of_files(secondary.path, secondary.columns, secondary.format)
    url = secondary.url.value(environment) if isinstance(secondary.url, Secret) else str(secondary.url)
    password = None if secondary.password is None else secondary.password.value(environment)
    return rows_of_query(url, secondary.columns, table=secondary.table, query=secondary.query, password=password)


def _parts_of(text: str) -> list[Any]:
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


def _once(units: tuple[Unit, ...], remedy: str) -> tuple[Unit, ...]:
    seen: set[str] = set()
    for unit in units:
        if unit.key in seen:
            raise _twice(unit, remedy)
        seen.add(unit.key)
    return units


def _twice(unit: Unit, remedy: str) -> DuplicateUnit:
    return DuplicateUnit(
        f"The unit {unit.key} is there twice.", rule="Each unit is read once.", remedy=remedy, unit=unit.key
    )


def _compiled(column: str, pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise refused(
            "filters",
            f"The filter of {column!r} is no regular expression: {error}.",
            "It is one as Python writes them, and must fit the whole value.",
            "Write for example 'OK|Success'.",
        ) from error


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(_value("", value))


def _value(name: str, value: Any) -> Any:
    """Return a value as a unit can have it."""
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, Decimal | UUID):
        return str(value)
    raise UnitsInvalid(
        f"The field {name!r} of a unit is of the type {type(value).__name__}.",
        rule="It is a text, a number, a truth value, a time or NULL.",
        remedy="Choose another field, or a query that turns it into text.",
        field=name,
    )
