"""Properties files as Java writes them: comments, three kinds of separators, escapes, lines that go on."""

import re
from dataclasses import dataclass
from typing import Final

from floodmark.errors import JobFileInvalid

_ESCAPES: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_UNICODE: Final = re.compile(r"[0-9a-fA-F]{4}")


@dataclass(frozen=True, slots=True)
class Property:
    """One entry: its text, and the line on which it begins."""

    value: str
    line: int


def read_properties(text: str, file: str = "the text") -> dict[str, Property]:
    r"""Return the entries of a properties file by key; of a key that is there twice the last one counts.

    >>> found = read_properties("# a job\nms.grace.period.days = 3\njob.name: the \\\n    orders\n")
    >>> {key: (entry.value, entry.line) for key, entry in found.items()}
    {'ms.grace.period.days': ('3', 2), 'job.name': ('the orders', 3)}
    """
    found = {}
    for line, logical in _logical_lines(text):
        key, value = _split(logical)
        found[_unescaped(key, file, line)] = Property(_unescaped(value, file, line), line)
    return found


def _logical_lines(text: str) -> list[tuple[int, str]]:
    lines = re.split(r"\r\n|\r|\n", text)
    found, at = [], 0
    while at < len(lines):
        begin, line = at + 1, lines[at].lstrip(" \t\f")
        at += 1
        if not line or line[0] in "#!":
            continue
        while _goes_on(line):
            line = line[:-1] + (lines[at].lstrip(" \t\f") if at < len(lines) else "")
            at += 1
        found.append((begin, line))
    return found


def _goes_on(line: str) -> bool:
    # Two backslashes are one that was escaped.
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _split(line: str) -> tuple[str, str]:
    at = 0
    while at < len(line) and line[at] not in "=: \t\f":
        at += 2 if line[at] == "\\" else 1
    rest = line[at:].lstrip(" \t\f")
    if rest[:1] in ("=", ":"):
        rest = rest[1:].lstrip(" \t\f")
    return line[:at], rest


def _unescaped(text: str, file: str, line: int) -> str:
    if "\\" not in text:
        return text
    found, at = [], 0
    while at < len(text):
        one = text[at]
        at += 1
        if one == "\\" and at < len(text):
            one, at = text[at], at + 1
            if one == "u":
                digits = text[at : at + 4]
                if not _UNICODE.fullmatch(digits):
                    raise JobFileInvalid(
                        f"{file}, line {line}: The escape \\u{digits} is none.",
                        rule="After \\u come four hexadecimal digits.",
                        remedy="Write the character itself, or a backslash as two.",
                        file=file,
                        line=line,
                    )
                one, at = chr(int(digits, 16)), at + 4
            else:
                one = _ESCAPES.get(one, one)
        found.append(one)
    # Characters beyond the first plane are written as two escapes.
    return "".join(found).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
