"""Tables of a job file, read with care: what is unknown, missing or of the wrong kind is refused with its line."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, datetime, time
from typing import Any, TypeVar

from floodmark._util.text import did_you_mean
from floodmark._util.times import duration_micros
from floodmark.errors import FloodmarkError, JobFileInvalid

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Origin:
    """Where the words of a job stand: the name of a file, and a way to find the line of a path of keys."""

    file: str
    line_of: Callable[[tuple[str | int, ...]], int]
    environment: Mapping[str, str] | None = None
    """Where secrets must be found; None if nobody looks for them yet."""

    def at(self, path: tuple[str | int, ...]) -> str:
        """Return a place as a person reads it.

        >>> Origin("jobs/orders.toml", lambda path: 7).at(("time", "from"))
        'jobs/orders.toml, line 7'
        """
        return f"{self.file}, line {self.line_of(path)}"

    def located(self, error: FloodmarkError, path: tuple[str | int, ...]) -> FloodmarkError:
        """Return an error of the same kind that also says where; one that says it already is left alone."""
        if "line" in error.fields:
            return error
        place = {"file": self.file, "line": self.line_of(path), "key": dotted(path)}
        fields = {**error.fields, **place}
        return type(error)(f"{self.at(path)}: {error.fact}", rule=error.rule, remedy=error.remedy, **fields)


def dotted(path: Sequence[str | int]) -> str:
    """Return a path as it is written in TOML.

    >>> dotted(("time", "grid", 0, "type"))
    'time.grid[0].type'
    """
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


@dataclass(frozen=True, slots=True)
class Table:
    """One table of a job file.

    >>> table = Table({"from": "2020-01-01", "grace_days": 3}, Origin("orders.toml", lambda path: 2), ("time",))
    >>> table.text("from"), table.number("grace_days", 0), table.flag("partial", True)
    ('2020-01-01', 3, True)
    >>> table.only("from", "grace")
    Traceback (most recent call last):
    floodmark.errors.JobFileInvalid: orders.toml, line 2: There is no key time.grace_days. ... Did you mean 'grace'? ...
    """

    values: Mapping[str, Any]
    origin: Origin
    path: tuple[str | int, ...] = ()

    def __contains__(self, key: str) -> bool:
        return key in self.values

    def only(self, *known: str) -> "Table":
        """Refuse keys that are not among the known ones; return the table."""
        for key in self.values:
            if key not in known:
                raise self.refuse(
                    key,
                    f"There is no key {dotted((*self.path, key))}.",
                    rule=f"The keys of {self.name} are {', '.join(known)}.",
                    remedy=did_you_mean(key, known, otherwise="Leave it out."),
                )
        return self

    @property
    def name(self) -> str:
        """The table as a person calls it."""
        return f"[{dotted(self.path)}]" if self.path else "a job file"

    def text(self, key: str) -> str:
        """Return a text that must be there. Dates and times of TOML count as the text they are written as."""
        found = self.optional_text(key)
        if found is None:
            raise self.missing(key)
        return found

    def optional_text(self, key: str) -> str | None:
        """Return a text, or None if there is none."""
        value = self.values.get(key)
        if isinstance(value, date | datetime | time):
            value = value.isoformat()
        if value is None or (isinstance(value, str) and value.strip()):
            return value
        raise self._wrong(key, "a text that is not blank")

    def number(self, key: str, default: _T, *, least: int = 0) -> int | _T:
        """Return a whole number, or the default if there is none."""
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise self._wrong(key, f"a whole number from {least} on")
        return value

    def flag(self, key: str, default: bool) -> bool:
        """Return true or false."""
        value = self.values.get(key, default)
        if not isinstance(value, bool):
            raise self._wrong(key, "true or false")
        return value

    def micros(self, key: str, default: _T) -> int | _T:
        """Return a length of time in microseconds, or the default if there is none."""
        if key not in self.values:
            return default
        with self.locating(key):
            return duration_micros(self.values[key], dotted((*self.path, key)))

    def choice(self, key: str, known: Sequence[str], default: str | None = None) -> str:
        """Return one of the known words."""
        value = self.values.get(key, default)
        if value is None:
            raise self.missing(key, f"It is one of {', '.join(map(repr, known))}.")
        if value not in known:
            raise self.refuse(
                key,
                f"{dotted((*self.path, key))} is {value!r}.",
                rule=f"It is one of {', '.join(map(repr, known))}.",
                remedy=did_you_mean(str(value), known, otherwise=f"Write for example {known[0]!r}."),
            )
        return str(value)

    def texts(self, key: str) -> tuple[str, ...]:
        """Return a list of texts; a single text counts as a list of one, and nothing as an empty one."""
        value = self.values.get(key, [])
        listed = [value] if isinstance(value, str) else value
        if not isinstance(listed, list) or not all(isinstance(one, str) and one.strip() for one in listed):
            raise self._wrong(key, "a text, or a list of texts")
        return tuple(listed)

    def mapping(self, key: str) -> Mapping[str, str]:
        """Return a table of texts, or an empty one. Numbers and truths count as the text they are written as."""
        value = self.values.get(key, {})
        if not isinstance(value, dict) or not all(isinstance(one, str | int | float) for one in value.values()):
            raise self._wrong(key, "a table of texts")
        return {name: str(one).lower() if isinstance(one, bool) else str(one) for name, one in value.items()}

    def table(self, key: str) -> "Table | None":
        """Return a table within this one, or None if there is none."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self._wrong(key, "a table")
        return Table(value, self.origin, (*self.path, key))

    def tables(self, key: str) -> "tuple[Table, ...]":
        """Return an array of tables within this one."""
        value = self.values.get(key, [])
        if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
            raise self._wrong(key, "an array of tables")
        return tuple(Table(one, self.origin, (*self.path, key, place)) for place, one in enumerate(value))

    @contextmanager
    def locating(self, *key: str | int, by_field: Mapping[str, str] | None = None) -> Iterator[None]:
        """Let errors that are raised inside say where they come from.

        `by_field` names the keys that belong to what an error calls its `option`, or `what` it is about.
        """
        try:
            yield
        except FloodmarkError as error:
            named = (by_field or {}).get(str(error.fields.get("option", error.fields.get("what"))))
            path = (*self.path, *key) if named is None else (*self.path, named)
            raise self.origin.located(error, path) from error

    def missing(self, key: str, what: str = "") -> JobFileInvalid:
        """Return the error of a key that must be there."""
        return self.refuse(
            key,
            f"{dotted((*self.path, key))} is missing.",
            rule=what or f"{self.name} must have it.",
            remedy=f"Add a line that begins with {key} = under {self.name}." if self.path else f"Add [{key}].",
        )

    def refuse(self, key: str, fact: str, *, rule: str, remedy: str) -> JobFileInvalid:
        """Return an error with the line of a key."""
        path = (*self.path, key) if key else self.path
        place = {"file": self.origin.file, "line": self.origin.line_of(path), "key": dotted(path)}
        return JobFileInvalid(f"{self.origin.at(path)}: {fact}", rule=rule, remedy=remedy, **place)

    def _wrong(self, key: str, what: str) -> JobFileInvalid:
        value = self.values[key]
        shown = repr(value) if isinstance(value, int | float | bool) else f"of the type {_TYPES.get(type(value), '?')}"
        if isinstance(value, str):
            shown = "a blank text" if not value.strip() else f"the text {value!r}"
        return self.refuse(
            key,
            f"{dotted((*self.path, key))} is {shown}.",
            rule=f"It is {what}.",
            remedy="Correct it, or leave it out where it may be missing.",
        )


_TYPES = {dict: "table", list: "list", date: "date", datetime: "time", time: "time of day"}
