"""Translates properties files of LinkedIn's DIL into jobs."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from floodmark._util.codec import parse_json
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
_CELL_LIMIT: Final = "ms.work.unit.parallelism.max"
_ZONE: Final = "source.timezone"
_RULES: Final = "floodmark.rules"
_NAMES: Final = ("job.name", "extract.table.name")
_TRANSLATED: Final = {
    _WATERMARK,
    _SECONDARY,
    _PARTITION,
    _PARTIAL,
    _GRACE,
    _ABSTINENCE,
    _CELL_LIMIT,
    _ZONE,
    _RULES,
    *_NAMES,
}
_REPLACEMENTS: Final = {
    "ms.backfill": "use `floodmark ingest backfill`, which does not move the frontier",
    "state.store.enabled": "coverage is always stored",
    "job.commit.policy": "each cell succeeds or fails on its own, and failed cells are planned again",
}


def read_properties_job(
    text: str,
    *,
    file: str = "job.properties",
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> tuple[Job, tuple[str, ...]]:
    r"""Return the job of a properties file, and notes about assumed values and properties that are not translated.

    | property | translated to |
    |---|---|
    | job.name, extract.table.name | the name of the job; by default the name of the file |
    | source.timezone | its zone; by default America/Los_Angeles, with a note |
    | ms.watermark | time and units |
    | ms.secondary.input | units, from inputs of the category activation |
    | ms.work.unit.partition, ms.work.unit.partial.partition | the grid, plain or composite |
    | ms.grace.period.days, ms.abstinent.period.days | grace and abstinence |
    | ms.work.unit.parallelism.max | cells per run; 0 means 500, -1 or no value means all |

    A job is planned by Floodmark's rules unless the file sets floodmark.rules=dil. `${name}` is replaced by another
    property, `${env.NAME}` by an environment variable. Every property that is not translated is named in a note.

    >>> job, notes = read_properties_job("ms.work.unit.partition=daily\nms.grace.period.days=3")
    >>> job.zone, job.time.from_.text, job.time.grace_days, job.units
    ('America/Los_Angeles', '2019-01-01', 3, None)
    >>> print(*notes, sep="\n")
    No zone is set: using America/Los_Angeles, as DIL does. Set source.timezone to choose another.
    No time range is set: using 2019-01-01 to now, as DIL does.
    """
    reader = _PropertiesReader(read_properties(text, file), file, folder or Path(), environment or {})
    try:
        return reader.job()
    except FloodmarkError as error:
        raise reader.origin.located(error, (reader.at,)) from error


@dataclass(frozen=True, slots=True)
class Property:
    """A property: its value, and its first line."""

    value: str
    line: int


@dataclass(slots=True)
class _PropertiesReader:
    """Reads the properties of a file; `at` is the current property, for error messages."""

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
            notes.append(f"No zone is set: using {DIL_ZONE}, as DIL does. Set {_ZONE} to choose another.")
        zone_of(zone)
        time, listed = self._watermarks(zone, notes)
        secondary = self._secondary(notes)
        if listed is not None and secondary is not None:
            raise self._invalid(
                "Units are listed in ms.watermark and read from ms.secondary.input.",
                "Units are either listed or read from a secondary input.",
                "Remove the unit from ms.watermark, or the activation from ms.secondary.input.",
            )
        units = listed if secondary is None else UnitWatermark("activation", secondary=secondary)
        cells, is_dil = self._cells(), self._is_dil()
        notes.extend(self._untranslated())
        return Job(name, zone, time, units, limits=Limits(cells=cells), compat=is_dil), tuple(notes)

    def _watermarks(self, zone: str, notes: list[str]) -> tuple[TimeWatermark, UnitWatermark | None]:
        items = self._json(_WATERMARK, list)
        if items is not None and not items:
            raise self._invalid("The list is empty.", "It must have one or two items.", "Remove the property.")
        by_type: dict[str, dict[str, Any]] = {}
        for item in items or []:
            kind = item.get("type") if isinstance(item, dict) else None
            if kind not in ("datetime", "unit") or not isinstance(item.get("name"), str) or not item["name"].strip():
                raise self._invalid(
                    f"The item {json.dumps(item)} is invalid.",
                    "Each item is an object with a name, and the type datetime or unit.",
                    'Write for example {"name": "system", "type": "datetime", "range": {"from": ..., "to": ...}}.',
                )
            if kind in by_type:
                raise self._invalid(
                    f"There are two items of the type {kind}.",
                    "There is at most one item per type.",
                    "Remove one of them.",
                )
            by_type[kind] = item
        if "datetime" not in by_type:
            notes.append("No time range is set: using 2019-01-01 to now, as DIL does.")
        start, end = self._range(by_type.get("datetime"))
        time = TimeWatermark(
            by_type.get("datetime", {}).get("name", "datetime"),
            Bound.parse(start, zone, dil=True),
            Bound.parse(end, zone, dil=True),
        )
        units = None if "unit" not in by_type else self._listed_units(by_type["unit"])
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
            raise self._invalid(
                f"The item {item['name']!r} has no range with from and to.",
                "An item of the type datetime needs both.",
                'Write "range": {"from": "2020-01-01", "to": "-"}.',
            )
        return ends["from"], ends["to"]

    def _listed_units(self, item: dict[str, Any]) -> UnitWatermark:
        if "units" not in item:
            raise self._invalid(
                f"The item {item['name']!r} has no units.",
                "An item of the type unit must list them.",
                'Write "units": "id1, id2".',
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
                raise self._invalid(
                    f"The range of {period} is {json.dumps(ends)}.",
                    "It must be a list of start and end.",
                    'Write for example {"daily": ["2020-01-01", "-"]}.',
                )
            parts.append((period, Bound.parse(ends[0], zone, dil=True), Bound.parse(ends[1], zone, dil=True)))
        return Grid.composite(parts)

    def _secondary(self, notes: list[str]) -> SecondaryInput | None:
        inputs = []
        for item in self._json(_SECONDARY, list) or []:
            if not isinstance(item, dict) or not isinstance(item.get("path"), str):
                raise self._invalid(
                    f"The item {json.dumps(item)} is invalid.",
                    "Each item is an object with a path.",
                    'Write for example {"path": "/data/ids", "fields": ["id"]}.',
                )
            category = item.get("category", "activation")
            if category != "activation":
                notes.append(f"Not translated: the item {item['path']!r} of {_SECONDARY}; its category is {category}.")
                continue
            ignored = sorted(item.keys() - {"path", "fields", "filters", "category"})
            if ignored:
                notes.append(f"Not translated: {', '.join(ignored)} of the item {item['path']!r} of {_SECONDARY}.")
            inputs.append(self._activation(item))
        if len(inputs) > 1:
            raise self._invalid(
                f"There are {len(inputs)} items of the category activation.",
                "The units of a job are read from one input.",
                "Put their files into one folder, or split the job.",
            )
        return inputs[0] if inputs else None

    def _activation(self, item: dict[str, Any]) -> SecondaryInput:
        fields, filters = item.get("fields", []), item.get("filters", {})
        is_valid = isinstance(fields, list) and isinstance(filters, dict)
        if not is_valid or not all(isinstance(text, str) for text in (*fields, *filters.values())):
            raise self._invalid(
                f"The item {item['path']!r} has fields or filters that are not strings.",
                "`fields` is a list of names, `filters` an object of regular expressions.",
                'Write for example "fields": ["id"], "filters": {"status": "OK|Success"}.',
            )
        # DIL creates a work unit per row, so duplicate rows are allowed.
        path = str(self.folder / item["path"])
        return SecondaryInput(tuple(fields), path, filters=filters, distinct=True)

    def _cells(self) -> int | None:
        cells = self._number(_CELL_LIMIT, -1, least=-1)
        if cells > _MOST_CELLS:
            raise self._invalid(
                f"The value is {cells}.", f"It must be at most {_MOST_CELLS}, as in DIL.", "Use -1 for no limit."
            )
        return None if cells == -1 else cells or _DEFAULT_CELLS

    def _is_dil(self) -> bool:
        rules = self._text(_RULES) or "floodmark"
        if rules not in ("floodmark", "dil"):
            raise self._invalid(
                f"The value is {rules!r}.", "It must be floodmark or dil.", "Set it to dil, or remove it."
            )
        return rules == "dil"

    def _untranslated(self) -> list[str]:
        others = sorted(set(self.entries) - _TRANSLATED)
        notes = [f"Not translated: {name}; {_REPLACEMENTS[name]}." for name in others if name in _REPLACEMENTS]
        rest = [name for name in others if name not in _REPLACEMENTS and not self._is_used(name)]
        return notes + ([f"Not translated: {', '.join(rest)}."] if rest else [])

    def _is_used(self, name: str) -> bool:
        """Return whether a translated property uses this property as a variable."""
        return any(f"${{{name}}}" in self.entries[key].value for key in _TRANSLATED & self.entries.keys())

    def _text(self, name: str) -> str | None:
        self.at = name
        entry = self.entries.get(name)
        if entry is None or not entry.value.strip():
            return None
        variables: dict[str, Scalar] = {"job.dir": str(self.folder), **environment_variables(self.environment)}
        variables.update({key: other.value for key, other in self.entries.items()})
        return substitute_shell_variables(entry.value.strip(), variables)

    def _json(self, name: str, kind: type) -> Any:
        text = self._text(name)
        if text is None:
            return None
        try:
            value = parse_json(text)
        except ValueError as error:
            raise self._invalid(
                f"The value is not JSON: {error}.", "It must be valid JSON.", "Close all quotes, brackets and braces."
            ) from error
        if not isinstance(value, kind):
            expected, brackets = ("list", "[ ]") if kind is list else ("object", "{ }")
            raise self._invalid(
                f"The value is not a JSON {expected}.", f"It must be a JSON {expected}.", f"Put {brackets} around it."
            )
        return value

    def _flag(self, name: str, default: bool) -> bool:
        text = self._text(name)
        if text is None:
            return default
        if text.lower() not in ("true", "false"):
            raise self._invalid(
                f"The value is {text!r}.", "It must be true or false.", "Set it to true or false, or remove it."
            )
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
            raise self._invalid(
                f"The value is {text!r}.",
                f"It must be an integer of at least {least}.",
                f"Set it to {default}, the default, or more.",
            )
        return number

    def _invalid(self, fact: str, rule: str, remedy: str) -> JobFileInvalid:
        return JobFileInvalid(f"{self.at}: {fact}", rule=rule, remedy=remedy, property=self.at)


_ESCAPES: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_UNICODE: Final = re.compile(r"[0-9a-fA-F]{4}")


def read_properties(text: str, file: str = "the text") -> dict[str, Property]:
    r"""Parse a properties file; of a duplicate key the last entry is used.

    >>> entries = read_properties("# a job\nms.grace.period.days = 3\njob.name: the \\\n    orders\n")
    >>> {key: (entry.value, entry.line) for key, entry in entries.items()}
    {'ms.grace.period.days': ('3', 2), 'job.name': ('the orders', 3)}
    """
    entries = {}
    for line, logical in _logical_lines(text):
        key, value = _split(logical)
        entries[_unescaped(key, file, line)] = Property(_unescaped(value, file, line), line)
    return entries


def _logical_lines(text: str) -> list[tuple[int, str]]:
    lines = re.split(r"\r\n|\r|\n", text)
    result, at = [], 0
    while at < len(lines):
        first, line = at + 1, lines[at].lstrip(" \t\f")
        at += 1
        if not line or line[0] in "#!":
            continue
        while _is_continued(line):
            line = line[:-1] + (lines[at].lstrip(" \t\f") if at < len(lines) else "")
            at += 1
        result.append((first, line))
    return result


def _is_continued(line: str) -> bool:
    # An even number of backslashes is escaped backslashes.
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
    result, at = [], 0
    while at < len(text):
        character = text[at]
        at += 1
        if character == "\\" and at < len(text):
            character, at = text[at], at + 1
            if character == "u":
                digits = text[at : at + 4]
                if not _UNICODE.fullmatch(digits):
                    raise JobFileInvalid(
                        f"{file}, line {line}: Invalid escape \\u{digits}.",
                        rule="\\u must be followed by four hexadecimal digits.",
                        remedy="Write the character itself, or double the backslash.",
                        file=file,
                        line=line,
                    )
                character, at = chr(int(digits, 16)), at + 4
            else:
                character = _ESCAPES.get(character, character)
        result.append(character)
    # Join surrogate pairs, which are written as two escapes.
    return "".join(result).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
