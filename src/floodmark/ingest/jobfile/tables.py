"""Tables of a job file, read with care: what is unknown, missing or of the wrong kind is refused with its line."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, datetime, time
from typing import Any, Final, TypeVar

from floodmark._util.text import did_you_mean
from floodmark._util.times import duration_micros
from floodmark.errors import FloodmarkError, JobFileInvalid

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class JobFileContext:
    """Where the words of a job stand: the name of a file, and a way to find the line of a path of keys."""

    file: str
    line_of: Callable[[tuple[str | int, ...]], int]
    environment: Mapping[str, str] | None = None
    """Where secrets must be found; None if nobody looks for them yet."""

    def at(self, path: tuple[str | int, ...]) -> str:
        """Return a place as a person reads it.

        >>> JobFileContext("jobs/orders.toml", lambda path: 7).at(("time", "from"))
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
class TomlTable:
    """One table of a job file.

    >>> table = TomlTable(
    ...     {"from": "2020-01-01", "grace_days": 3}, JobFileContext("orders.toml", lambda path: 2), ("time",)
    ... )
    >>> table.text("from"), table.number("grace_days", 0), table.flag("partial", True)
    ('2020-01-01', 3, True)
    >>> table.only("from", "grace")
    Traceback (most recent call last):
    floodmark.errors.JobFileInvalid: orders.toml, line 2: There is no key time.grace_days. ... Did you mean 'grace'? ...
    """

    values: Mapping[str, Any]
    origin: JobFileContext
    path: tuple[str | int, ...] = ()

    def __contains__(self, key: str) -> bool:
        return key in self.values

    def only(self, *known: str) -> "TomlTable":
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

    def table(self, key: str) -> "TomlTable | None":
        """Return a table within this one, or None if there is none."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self._wrong(key, "a table")
        return TomlTable(value, self.origin, (*self.path, key))

    def tables(self, key: str) -> "tuple[TomlTable, ...]":
        """Return an array of tables within this one."""
        value = self.values.get(key, [])
        if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
            raise self._wrong(key, "an array of tables")
        return tuple(TomlTable(one, self.origin, (*self.path, key, place)) for place, one in enumerate(value))

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
        shown = (
            repr(value) if isinstance(value, int | float | bool) else f"of the type {_TYPE_NAMES.get(type(value), '?')}"
        )
        if isinstance(value, str):
            shown = "a blank text" if not value.strip() else f"the text {value!r}"
        return self.refuse(
            key,
            f"{dotted((*self.path, key))} is {shown}.",
            rule=f"It is {what}.",
            remedy="Correct it, or leave it out where it may be missing.",
        )


_TYPE_NAMES = {dict: "table", list: "list", date: "date", datetime: "time", time: "time of day"}


KeyPath = tuple[str | int, ...]
"""Where a value is: the names of tables and keys, and the places in arrays."""

_BLANK: Final = re.compile(r"[ \t]*")
_GAP: Final = re.compile(r"(?:[\s]|#[^\n]*)*")
_STRING: Final = re.compile(
    r'"""(?:[^\\]|\\.)*?"{3,5}' r"|'''.*?'{3,5}" r'|"(?:[^"\\\n]|\\.)*"' r"|'[^'\n]*'",
    re.DOTALL,
)
_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")
_SCALAR: Final = re.compile(r"[^,\]}#\n]*")


def lines_of(text: str) -> Mapping[KeyPath, int]:
    r"""Return the line, from 1, of each table, key and element of an array, of a text that is valid TOML.

    >>> lines_of('[time]\nfrom = "2020-01-01"\n\n[[time.grid]]\ntype = "daily"\n')
    {('time',): 1, ('time', 'from'): 2, ('time', 'grid', 0): 4, ('time', 'grid', 0, 'type'): 5}
    """
    scan = _Scan(text.replace("\r\n", "\n"))
    scan.document()
    return scan.found


def line_of(lines: Mapping[KeyPath, int], path: KeyPath) -> int:
    """Return the line of a place, or of the nearest thing around it that has one; 1 if nothing has.

    >>> line_of({("time",): 4}, ("time", "from"))
    4
    """
    while path:
        if path in lines:
            return lines[path]
        path = path[:-1]
    return 1


class _Scan:
    """One pass over the text. It believes that the text is valid: a parser has read it before."""

    def __init__(self, text: str) -> None:
        self.found: dict[KeyPath, int] = {}
        self._text = text
        self._at = 0
        self._arrays: dict[KeyPath, int] = {}
        self._counted = (0, 1)

    def document(self) -> None:
        prefix: KeyPath = ()
        self._skip(_GAP)
        while self._at < len(self._text):
            if self._text[self._at] == "[":
                prefix = self._header()
            else:
                self._pair(prefix)
            self._skip(_GAP)

    def _header(self) -> KeyPath:
        is_array = self._text.startswith("[[", self._at)
        line = self._line()
        self._at += 2 if is_array else 1
        parts = self._dotted()
        self._at += 2 if is_array else 1
        path: KeyPath = ()
        for place, part in enumerate(parts):
            path += (part,)
            if is_array and place == len(parts) - 1:
                self._arrays[path] = self._arrays.get(path, 0) + 1
            if path in self._arrays:
                path += (self._arrays[path] - 1,)
        self.found.setdefault(path, line)
        return path

    def _pair(self, prefix: KeyPath) -> None:
        line = self._line()
        path = prefix
        for part in self._dotted():
            path += (part,)
            self.found.setdefault(path, line)
        self._at += 1  # the sign =
        self._skip(_BLANK)
        self._value(path)

    def _value(self, path: KeyPath) -> None:
        opening = self._text[self._at]
        if opening == "[":
            self._elements(path)
        elif opening == "{":
            self._at += 1
            self._skip(_GAP)
            while self._text[self._at] != "}":
                self._pair(path)
                self._next()
            self._at += 1
        elif opening in "\"'":
            self._skip(_STRING)
        else:
            self._skip(_SCALAR)

    def _elements(self, path: KeyPath) -> None:
        self._at += 1
        self._skip(_GAP)
        place = 0
        while self._text[self._at] != "]":
            self.found[(*path, place)] = self._line()
            self._value((*path, place))
            self._next()
            place += 1
        self._at += 1

    def _next(self) -> None:
        self._skip(_GAP)
        if self._text[self._at] == ",":
            self._at += 1
            self._skip(_GAP)

    def _dotted(self) -> list[str]:
        parts = []
        while True:
            self._skip(_BLANK)
            quoted = self._text[self._at] in "\"'"
            part = self._skip(_STRING if quoted else _BARE)
            parts.append(part[1:-1] if quoted else part)
            self._skip(_BLANK)
            if self._text[self._at] != ".":
                return parts
            self._at += 1

    def _skip(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self._text, self._at)
        if match is None:  # the scan has lost its way: better no line than a loop without an end
            raise ValueError(self._at)
        self._at = match.end()
        return match[0]

    def _line(self) -> int:
        place, line = self._counted
        line += self._text.count("\n", place, self._at)
        self._counted = (self._at, line)
        return line
