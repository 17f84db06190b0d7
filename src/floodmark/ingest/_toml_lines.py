"""On which line of a TOML text each key stands. The parser of the standard library does not tell."""

import re
from collections.abc import Mapping
from typing import Final

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
