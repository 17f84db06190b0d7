"""Properties files of LinkedIn's DIL, translated to the same jobs that TOML describes."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from floodmark.errors import FloodmarkError, JobFileInvalid
from floodmark.ingest.calendar.bound import Bound
from floodmark.ingest.calendar.clock import zone_of
from floodmark.ingest.calendar.grid import Grid
from floodmark.ingest.job.job import Job, Limits, TimeWatermark
from floodmark.ingest.job.unit import SecondaryInput, UnitWatermark, listed_units
from floodmark.ingest.job.variables import Scalar, environment_variables, substitute_shell_variables
from floodmark.ingest.jobfile.tables import JobFileContext

DIL_ZONE: Final = "America/Los_Angeles"
_DEFAULT_CELLS: Final = 500
_MOST_CELLS: Final = 5_000
_WATERMARK: Final = "ms.watermark"
_SECONDARY: Final = "ms.secondary.input"
_PARTITION: Final = "ms.work.unit.partition"
_PARTIAL: Final = "ms.work.unit.partial.partition"
_GRACE: Final = "ms.grace.period.days"
_ABSTINENCE: Final = "ms.abstinent.period.days"
_CAP: Final = "ms.work.unit.parallelism.max"
_ZONE: Final = "source.timezone"
_RULES: Final = "floodmark.rules"
_NAMES: Final = ("job.name", "extract.table.name")
_KNOWN: Final = {_WATERMARK, _SECONDARY, _PARTITION, _PARTIAL, _GRACE, _ABSTINENCE, _CAP, _ZONE, _RULES, *_NAMES}
_INSTEAD: Final = {
    "ms.backfill": "use `floodmark ingest backfill`, which leaves the frontier where it is",
    "state.store.enabled": "what a job has read is always kept",
    "job.commit.policy": "each cell succeeds or fails for itself, and what failed is planned again",
}


def read_properties_job(
    text: str,
    *,
    file: str = "job.properties",
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> tuple[Job, tuple[str, ...]]:
    r"""Return the job that a properties file describes, and notes on what was assumed or not translated.

    | property | becomes |
    |---|---|
    | job.name, extract.table.name | the name of the job; without both, that of the file |
    | source.timezone | its zone; without it America/Los_Angeles, which a note says |
    | ms.watermark | time and units |
    | ms.secondary.input | units, of the category activation |
    | ms.work.unit.partition, ms.work.unit.partial.partition | the grid, also a composite one |
    | ms.grace.period.days, ms.abstinent.period.days | grace and abstinence |
    | ms.work.unit.parallelism.max | cells a run: none means all, 0 means 500, -1 all |

    A job is planned by Floodmark's rules, not by the letter of DIL's, unless it says floodmark.rules=dil. `${name}` is
    replaced by another property or, as `${env.NAME}`, by the environment. What is not translated is named in a note,
    and nothing is left out in silence.

    >>> job, notes = read_properties_job("ms.work.unit.partition=daily\nms.grace.period.days=3")
    >>> job.zone, job.time.from_.text, job.time.grace_days, job.units
    ('America/Los_Angeles', '2019-01-01', 3, None)
    >>> print(*notes, sep="\n")
    It names no zone: America/Los_Angeles is meant, as in DIL. Add source.timezone to name one.
    It names no time to read: 2019-01-01 to now is meant, as in DIL.
    """
    reader = _PropertiesReader(read_properties(text, file), file, folder or Path(), environment or {})
    try:
        return reader.job()
    except FloodmarkError as error:
        raise reader.origin.located(error, (reader.at,)) from error


@dataclass(frozen=True, slots=True)
class Property:
    """One entry: its text, and the line on which it begins."""

    value: str
    line: int


@dataclass(slots=True)
class _PropertiesReader:
    """Reads one file, property by property; `at` is the one that an error is about."""

    entries: Mapping[str, Property]
    file: str
    folder: Path
    environment: Mapping[str, str]
    at: str = ""

    @property
    def origin(self) -> JobFileContext:
        return JobFileContext(self.file, lambda path: self.entries[str(path[0])].line if path[0] in self.entries else 1)

    def job(self) -> tuple[Job, tuple[str, ...]]:
        notes: list[str] = []
        name = self._text(_NAMES[0]) or self._text(_NAMES[1]) or Path(self.file).stem
        zone = self._text(_ZONE)
        if zone is None:
            zone = DIL_ZONE
            notes.append(f"It names no zone: {DIL_ZONE} is meant, as in DIL. Add {_ZONE} to name one.")
        zone_of(zone)
        time, listed = self._watermarks(zone, notes)
        secondary = self._secondary(notes)
        if listed is not None and secondary is not None:
            raise self._refused(
                "The units are listed, and read from a secondary input too.",
                "Units are either listed or read.",
                "Take the unit out of ms.watermark, or the activation out of ms.secondary.input.",
            )
        units = listed if secondary is None else UnitWatermark("activation", secondary=secondary)
        cells, is_dil = self._cells(), self._is_dil()
        notes.extend(self._untranslated())
        return Job(name, zone, time, units, limits=Limits(cells=cells), compat=is_dil), tuple(notes)

    def _watermarks(self, zone: str, notes: list[str]) -> tuple[TimeWatermark, UnitWatermark | None]:
        items = self._json(_WATERMARK, list)
        if items is not None and not items:
            raise self._refused("It is an empty list.", "It has one item or two.", "Take the property out.")
        found: dict[str, dict[str, Any]] = {}
        for item in items or []:
            kind = item.get("type") if isinstance(item, dict) else None
            if kind not in ("datetime", "unit") or not isinstance(item.get("name"), str) or not item["name"].strip():
                raise self._refused(
                    f"It has the item {json.dumps(item)}.",
                    "Each item is an object with a name, and a type that is datetime or unit.",
                    'Write for example {"name": "system", "type": "datetime", "range": {"from": ..., "to": ...}}.',
                )
            if kind in found:
                raise self._refused(
                    f"It has two items of the type {kind}.", "It has one of each, at most.", "Take one out."
                )
            found[kind] = item
        if "datetime" not in found:
            notes.append("It names no time to read: 2019-01-01 to now is meant, as in DIL.")
        start, end = self._range(found.get("datetime"))
        time = TimeWatermark(
            found.get("datetime", {}).get("name", "datetime"),
            Bound.parse(start, zone, dil=True),
            Bound.parse(end, zone, dil=True),
        )
        units = None if "unit" not in found else self._listed(found["unit"])
        grid, partial = self._grid(zone), self._flag(_PARTIAL, True)
        grace, abstinence = self._days(_GRACE), self._days(_ABSTINENCE)
        self.at = _PARTITION if _PARTITION in self.entries else _WATERMARK
        whole = TimeWatermark(
            time.name, time.from_, time.to, grid, partial=partial, grace_days=grace, abstinence_days=abstinence
        )
        return whole, units

    def _range(self, item: dict[str, Any] | None) -> tuple[str, str]:
        if item is None:
            return "2019-01-01", "-"
        ends = item.get("range")
        if not isinstance(ends, dict) or not {"from", "to"} <= ends.keys():
            raise self._refused(
                f"The item {item['name']!r} has no range with from and to.",
                "A datetime has both.",
                'Write "range": {"from": "2020-01-01", "to": "-"}.',
            )
        return ends["from"], ends["to"]

    def _listed(self, item: dict[str, Any]) -> UnitWatermark:
        if "units" not in item:
            raise self._refused(
                f"The item {item['name']!r} has no units.", "A unit lists them.", 'Write "units": "id1, id2".'
            )
        return UnitWatermark(item["name"], listed_units(item["name"], item["units"]))

    def _grid(self, zone: str) -> Grid:
        text = self._text(_PARTITION)
        if text is None:
            return Grid.plain("none")
        if not text.startswith("{"):
            return Grid.plain(text)
        parts = []
        for period, ends in (self._json(_PARTITION, dict) or {}).items():
            if not isinstance(ends, list) or len(ends) != 2:
                raise self._refused(
                    f"The range of {period} is {json.dumps(ends)}.",
                    "It is a list of a start and an end.",
                    'Write for example {"daily": ["2020-01-01", "-"]}.',
                )
            parts.append((period, Bound.parse(ends[0], zone, dil=True), Bound.parse(ends[1], zone, dil=True)))
        return Grid.composite(parts)

    def _secondary(self, notes: list[str]) -> SecondaryInput | None:
        found = []
        for item in self._json(_SECONDARY, list) or []:
            if not isinstance(item, dict) or not isinstance(item.get("path"), str):
                raise self._refused(
                    f"It has the item {json.dumps(item)}.",
                    "Each item is an object with a path.",
                    'Write for example {"path": "/data/ids", "fields": ["id"]}.',
                )
            category = item.get("category", "activation")
            if category != "activation":
                notes.append(f"Not translated: the item {item['path']!r} of {_SECONDARY}; its category is {category}.")
                continue
            lost = sorted(item.keys() - {"path", "fields", "filters", "category"})
            if lost:
                notes.append(f"Not translated: {', '.join(lost)} of the item {item['path']!r} of {_SECONDARY}.")
            found.append(self._activation(item))
        if len(found) > 1:
            raise self._refused(
                f"It has {len(found)} items of the category activation.",
                "The units of a job come from one place.",
                "Put them into one folder, or into two jobs.",
            )
        return found[0] if found else None

    def _activation(self, item: dict[str, Any]) -> SecondaryInput:
        fields, filters = item.get("fields", []), item.get("filters", {})
        is_right = isinstance(fields, list) and isinstance(filters, dict)
        if not is_right or not all(isinstance(one, str) for one in (*fields, *filters.values())):
            raise self._refused(
                f"The item {item['path']!r} has fields or filters that are no texts.",
                "Fields are a list of names, filters an object of regular expressions.",
                'Write for example "fields": ["id"], "filters": {"status": "OK|Success"}.',
            )
        # DIL makes a unit of each row; two of the same would be one cell here.
        path = str(self.folder / item["path"])
        return SecondaryInput(tuple(fields), path, filters=filters, distinct=True)

    def _cells(self) -> int | None:
        cells = self._number(_CAP, -1, least=-1)
        if cells > _MOST_CELLS:
            raise self._refused(
                f"It is {cells}.", f"It is at most {_MOST_CELLS}, as in DIL.", "Write -1 for all there are."
            )
        return None if cells == -1 else cells or _DEFAULT_CELLS

    def _is_dil(self) -> bool:
        rules = self._text(_RULES) or "floodmark"
        if rules not in ("floodmark", "dil"):
            raise self._refused(f"It is {rules!r}.", "It is floodmark or dil.", "Correct it, or take it out.")
        return rules == "dil"

    def _untranslated(self) -> list[str]:
        others = sorted(set(self.entries) - _KNOWN)
        told = [f"Not translated: {name}; {_INSTEAD[name]}." for name in others if name in _INSTEAD]
        rest = [name for name in others if name not in _INSTEAD and not self._is_used(name)]
        return told + ([f"Not translated: {', '.join(rest)}."] if rest else [])

    def _is_used(self, name: str) -> bool:
        """Return whether a property is a variable of one that is translated."""
        return any(f"${{{name}}}" in self.entries[key].value for key in _KNOWN & self.entries.keys())

    def _text(self, name: str) -> str | None:
        self.at = name
        entry = self.entries.get(name)
        if entry is None or not entry.value.strip():
            return None
        known: dict[str, Scalar] = {"job.dir": str(self.folder), **environment_variables(self.environment)}
        known.update({key: one.value for key, one in self.entries.items()})
        return substitute_shell_variables(entry.value.strip(), known)

    def _json(self, name: str, kind: type) -> Any:
        text = self._text(name)
        if text is None:
            return None
        try:
            value = json.loads(text)
        except ValueError as error:
            raise self._refused(f"It is no JSON: {error}.", "It is written in JSON.", "Close what is open.") from error
        if not isinstance(value, kind):
            what = "list" if kind is list else "object"
            raise self._refused(f"It is no {what}.", f"It is a JSON {what}.", "Put brackets around it.")
        return value

    def _flag(self, name: str, default: bool) -> bool:
        text = self._text(name)
        if text is None:
            return default
        if text.lower() not in ("true", "false"):
            raise self._refused(f"It is {text!r}.", "It is true or false.", "Correct it, or take it out.")
        return text.lower() == "true"

    def _days(self, name: str) -> int:
        return self._number(name, 0, least=0)

    def _number(self, name: str, default: int, *, least: int) -> int:
        text = self._text(name)
        if text is None:
            return default
        try:
            number = int(text)
        except ValueError:
            number = least - 1
        if number < least:
            raise self._refused(f"It is {text!r}.", f"It is a whole number from {least} on.", "Correct it.")
        return number

    def _refused(self, fact: str, rule: str, remedy: str) -> JobFileInvalid:
        return JobFileInvalid(f"{self.at}: {fact}", rule=rule, remedy=remedy, property=self.at)


_ESCAPES: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_UNICODE: Final = re.compile(r"[0-9a-fA-F]{4}")


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
