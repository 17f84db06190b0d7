"""Typed access to the tables of a job file; errors for unknown, missing and wrong keys name the line."""

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
    """The file of a job, and a function that finds the line of a key: for error messages."""

    file: str
    line_of: Callable[[tuple[str | int, ...]], int]
    environment: Mapping[str, str] | None = None
    """The environment in which secrets must exist; None if they are not checked."""

    def at(self, path: tuple[str | int, ...]) -> str:
        """Return the file and line of a key, for messages.

        >>> JobFileContext("jobs/orders.toml", lambda path: 7).at(("time", "from"))
        'jobs/orders.toml, line 7'
        """
        return f"{self.file}, line {self.line_of(path)}"

    def located(self, error: FloodmarkError, path: tuple[str | int, ...]) -> FloodmarkError:
        """Return the error with file and line added, unless it already has a line."""
        if "line" in error.fields:
            return error
        location = {"file": self.file, "line": self.line_of(path), "key": dotted_key(path)}
        fields = {**error.fields, **location}
        return type(error)(f"{self.at(path)}: {error.fact}", rule=error.rule, remedy=error.remedy, **fields)


def dotted_key(path: Sequence[str | int]) -> str:
    """Return the path of a key in TOML notation.

    >>> dotted_key(("time", "grid", 0, "type"))
    'time.grid[0].type'
    """
    text = ""
    for key in path:
        text += f"[{key}]" if isinstance(key, int) else f".{key}" if text else key
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
    floodmark.errors.JobFileInvalid: orders.toml, line 2: The key time.grace_days is unknown. ...
    """

    values: Mapping[str, Any]
    origin: JobFileContext
    path: tuple[str | int, ...] = ()

    def __contains__(self, key: str) -> bool:
        return key in self.values

    def only(self, *allowed: str) -> "TomlTable":
        """Raise `JobFileInvalid` for a key that is not listed; return the table."""
        for key in self.values:
            if key not in allowed:
                raise self.refuse(
                    key,
                    f"The key {dotted_key((*self.path, key))} is unknown.",
                    rule=f"The keys of {self.name} are {', '.join(allowed)}.",
                    remedy=did_you_mean(key, allowed, otherwise="Remove it."),
                )
        return self

    @property
    def name(self) -> str:
        """The table in messages, such as [time]."""
        return f"[{dotted_key(self.path)}]" if self.path else "a job file"

    def text(self, key: str) -> str:
        """Return a required string; TOML dates and times become ISO strings."""
        value = self.optional_text(key)
        if value is None:
            raise self.missing(key)
        return value

    def optional_text(self, key: str) -> str | None:
        """Return a string, or None if the key is missing."""
        value = self.values.get(key)
        if isinstance(value, date | datetime | time):
            value = value.isoformat()
        if value is None or (isinstance(value, str) and value.strip()):
            return value
        raise self._wrong_type(key, "a string that is not blank")

    def number(self, key: str, default: _T, *, least: int = 0) -> int | _T:
        """Return an integer, or the default if the key is missing."""
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise self._wrong_type(key, f"an integer of at least {least}")
        return value

    def flag(self, key: str, default: bool) -> bool:
        """Return a boolean, or the default if the key is missing."""
        value = self.values.get(key, default)
        if not isinstance(value, bool):
            raise self._wrong_type(key, "true or false")
        return value

    def micros(self, key: str, default: _T) -> int | _T:
        """Return a duration in microseconds, or the default if the key is missing."""
        if key not in self.values:
            return default
        with self.locating(key):
            return duration_micros(self.values[key], dotted_key((*self.path, key)))

    def choice(self, key: str, choices: Sequence[str], default: str | None = None) -> str:
        """Return a value that must be one of the choices."""
        value = self.values.get(key, default)
        if value is None:
            raise self.missing(key, f"It must be one of {', '.join(map(repr, choices))}.")
        if value not in choices:
            raise self.refuse(
                key,
                f"{dotted_key((*self.path, key))} is {value!r}.",
                rule=f"It must be one of {', '.join(map(repr, choices))}.",
                remedy=did_you_mean(str(value), choices, otherwise=f"Use for example {choices[0]!r}."),
            )
        return str(value)

    def texts(self, key: str) -> tuple[str, ...]:
        """Return a list of strings; a single string is a list of one, a missing key an empty list."""
        value = self.values.get(key, [])
        listed = [value] if isinstance(value, str) else value
        if not isinstance(listed, list) or not all(isinstance(item, str) and item.strip() for item in listed):
            raise self._wrong_type(key, "a string, or a list of strings")
        return tuple(listed)

    def mapping(self, key: str) -> Mapping[str, str]:
        """Return a table of strings, or an empty one; numbers and booleans become strings."""
        value = self.values.get(key, {})
        if not isinstance(value, dict) or not all(isinstance(item, str | int | float) for item in value.values()):
            raise self._wrong_type(key, "a table of strings")
        return {name: str(item).lower() if isinstance(item, bool) else str(item) for name, item in value.items()}

    def table(self, key: str) -> "TomlTable | None":
        """Return a nested table, or None if the key is missing."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self._wrong_type(key, "a table")
        return TomlTable(value, self.origin, (*self.path, key))

    def tables(self, key: str) -> "tuple[TomlTable, ...]":
        """Return a nested array of tables."""
        value = self.values.get(key, [])
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise self._wrong_type(key, "an array of tables")
        return tuple(TomlTable(item, self.origin, (*self.path, key, index)) for index, item in enumerate(value))

    @contextmanager
    def locating(self, *key: str | int, by_field: Mapping[str, str] | None = None) -> Iterator[None]:
        """Add file and line to errors that are raised inside.

        `by_field` maps the field `option` or `what` of an error to the key whose line is shown.
        """
        try:
            yield
        except FloodmarkError as error:
            own_key = (by_field or {}).get(str(error.fields.get("option", error.fields.get("what"))))
            path = (*self.path, *key) if own_key is None else (*self.path, own_key)
            raise self.origin.located(error, path) from error

    def missing(self, key: str, what: str = "") -> JobFileInvalid:
        """Return the error for a missing key."""
        return self.refuse(
            key,
            f"{dotted_key((*self.path, key))} is missing.",
            rule=what or f"{self.name} needs this key.",
            remedy=f"Add {key} = ... under {self.name}." if self.path else f"Add [{key}].",
        )

    def refuse(self, key: str, fact: str, *, rule: str, remedy: str) -> JobFileInvalid:
        """Return an error with file, line and key."""
        path = (*self.path, key) if key else self.path
        location = {"file": self.origin.file, "line": self.origin.line_of(path), "key": dotted_key(path)}
        return JobFileInvalid(f"{self.origin.at(path)}: {fact}", rule=rule, remedy=remedy, **location)

    def _wrong_type(self, key: str, what: str) -> JobFileInvalid:
        value = self.values[key]
        shown = (
            repr(value)
            if isinstance(value, int | float | bool)
            else f"a {_TYPE_NAMES.get(type(value), type(value).__name__)}"
        )
        if isinstance(value, str):
            shown = "a blank string" if not value.strip() else f"the string {value!r}"
        return self.refuse(
            key,
            f"{dotted_key((*self.path, key))} is {shown}.",
            rule=f"It must be {what}.",
            remedy=f"Set {key} to {what}, or remove it if it is optional.",
        )


_TYPE_NAMES = {dict: "table", list: "list", date: "date", datetime: "time", time: "time of day"}


KeyPath = tuple[str | int, ...]
"""The path of a value: names of tables and keys, and indexes in arrays."""

_SPACE: Final = re.compile(r"[ \t]*")
_SPACE_OR_COMMENT: Final = re.compile(r"(?:[\s]|#[^\n]*)*")
_STRING: Final = re.compile(
    r'"""(?:[^\\]|\\.)*?"{3,5}' r"|'''.*?'{3,5}" r'|"(?:[^"\\\n]|\\.)*"' r"|'[^'\n]*'",
    re.DOTALL,
)
_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")
_SCALAR: Final = re.compile(r"[^,\]}#\n]*")


def lines_of(text: str) -> Mapping[KeyPath, int]:
    r"""Return the line number of each table, key and array element of a valid TOML document.

    >>> lines_of('[time]\nfrom = "2020-01-01"\n\n[[time.grid]]\ntype = "daily"\n')
    {('time',): 1, ('time', 'from'): 2, ('time', 'grid', 0): 4, ('time', 'grid', 0, 'type'): 5}
    """
    scanner = _LineScanner(text.replace("\r\n", "\n"))
    scanner.scan()
    return scanner.lines


def line_of(lines: Mapping[KeyPath, int], path: KeyPath) -> int:
    """Return the line of a path, or of its nearest ancestor that has one, else 1.

    >>> line_of({("time",): 4}, ("time", "from"))
    4
    """
    while path:
        if path in lines:
            return lines[path]
        path = path[:-1]
    return 1


class _LineScanner:
    """Scans a TOML document once for line numbers. The document must be valid: tomllib has parsed it before."""

    def __init__(self, text: str) -> None:
        self.lines: dict[KeyPath, int] = {}
        self._text = text
        self._at = 0
        self._arrays: dict[KeyPath, int] = {}
        self._line_cache = (0, 1)

    def scan(self) -> None:
        prefix: KeyPath = ()
        self._skip(_SPACE_OR_COMMENT)
        while self._at < len(self._text):
            if self._text[self._at] == "[":
                prefix = self._header()
            else:
                self._pair(prefix)
            self._skip(_SPACE_OR_COMMENT)

    def _header(self) -> KeyPath:
        is_array = self._text.startswith("[[", self._at)
        line = self._line()
        self._at += 2 if is_array else 1
        keys = self._read_key()
        self._at += 2 if is_array else 1
        path: KeyPath = ()
        for index, key in enumerate(keys):
            path += (key,)
            if is_array and index == len(keys) - 1:
                self._arrays[path] = self._arrays.get(path, 0) + 1
            if path in self._arrays:
                path += (self._arrays[path] - 1,)
        self.lines.setdefault(path, line)
        return path

    def _pair(self, prefix: KeyPath) -> None:
        line = self._line()
        path = prefix
        for key in self._read_key():
            path += (key,)
            self.lines.setdefault(path, line)
        self._at += 1  # the sign =
        self._skip(_SPACE)
        self._value(path)

    def _value(self, path: KeyPath) -> None:
        opening = self._text[self._at]
        if opening == "[":
            self._elements(path)
        elif opening == "{":
            self._at += 1
            self._skip(_SPACE_OR_COMMENT)
            while self._text[self._at] != "}":
                self._pair(path)
                self._skip_separator()
            self._at += 1
        elif opening in "\"'":
            self._skip(_STRING)
        else:
            self._skip(_SCALAR)

    def _elements(self, path: KeyPath) -> None:
        self._at += 1
        self._skip(_SPACE_OR_COMMENT)
        index = 0
        while self._text[self._at] != "]":
            self.lines[(*path, index)] = self._line()
            self._value((*path, index))
            self._skip_separator()
            index += 1
        self._at += 1

    def _skip_separator(self) -> None:
        self._skip(_SPACE_OR_COMMENT)
        if self._text[self._at] == ",":
            self._at += 1
            self._skip(_SPACE_OR_COMMENT)

    def _read_key(self) -> list[str]:
        keys = []
        while True:
            self._skip(_SPACE)
            quoted = self._text[self._at] in "\"'"
            key = self._skip(_STRING if quoted else _BARE)
            keys.append(key[1:-1] if quoted else key)
            self._skip(_SPACE)
            if self._text[self._at] != ".":
                return keys
            self._at += 1

    def _skip(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self._text, self._at)
        if match is None:  # unexpected syntax: give up instead of looping
            raise ValueError(self._at)
        self._at = match.end()
        return match[0]

    def _line(self) -> int:
        position, line = self._line_cache
        line += self._text.count("\n", position, self._at)
        self._line_cache = (self._at, line)
        return line
