"""Units: what a job reads besides time, such as ids. Time x units are its cells."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from floodmark.errors import DuplicateUnit, JobInvalid
from floodmark.ingest._frozen import Frozen


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


EVERYTHING = Unit.of({})
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
