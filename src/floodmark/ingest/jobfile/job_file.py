"""Reads and writes job files. `load_job` documents the format."""

import json
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any, Final

from floodmark.errors import JobFileInvalid, JobFileMissing
from floodmark.ingest.job.job import Job, Landing, Limits, TimeWatermark
from floodmark.ingest.job.options import plain_values
from floodmark.ingest.job.variables import Scalar, environment_variables, expand_variables, is_cell_variable
from floodmark.ingest.jobfile.dil_properties import read_properties_job
from floodmark.ingest.jobfile.sections import JOB_KEYS, build_job
from floodmark.ingest.jobfile.tables import JobFileContext, KeyPath, TomlTable, line_of, lines_of

SECTIONS: Final = ("job", "variables", "time", "units", "source", "target", "limits")
PROPERTIES: Final = (".properties", ".pull", ".job")
"""The suffixes of properties files."""

_MAX_DEPTH: Final = 30
_ERROR_POSITION: Final = re.compile(r" \(at (?:line (\d+), column \d+|end of document)\)$")
_VARIABLE_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class JobFile:
    """A job read from a file, with notes for the user."""

    job: Job
    file: str
    notes: tuple[str, ...] = ()
    """Sentences about assumed values and settings that could not be translated."""


def load_job(path: str | Path, *, environment: Mapping[str, str] | None = None, secrets: bool = True) -> JobFile:
    """Read a job file: TOML, or a properties file of DIL if its name ends with .properties, .pull or .job.

    `environment` has the environment variables, by default those of the process. With `secrets`, all secrets of the
    job must exist.

    An example with all tables:

        [job]
        name = "orders"
        zone = "Europe/Berlin"              # required
        after = "customers.toml"            # optional: the preceding job, see {{preceding.table}} and units
        rules = "floodmark"                 # or "dil": plan exactly as DIL does, including its gaps

        [variables]                         # optional: {{shop}} in any string below
        shop = "north"

        [time]
        from = 2024-01-01                   # a date, a time, or a duration before now (P7D, P0DT6H)
        to = "P0D"                          # the same, or "-" for now
        grid = "daily"                      # none, hourly, daily, weekly, monthly, yearly; or [[time.grid]], see below
        partial = true                      # whether the last cell is read before its period is over
        grace_days = 3                      # read the newest 3 days again in each run
        abstinence_days = 0                 # days after a success in which a cell is not read again
        settle = "15 minutes"               # do not read rows newer than this

        [units]                             # optional
        name = "customer"
        list = ["c1", "c2"]                 # or "c1, c2", or tables; or instead:
        # [units.input]
        # path = "customers.csv"            # CSV, JSON lines, Parquet, Avro, a folder of them, a Delta table
        # url = "sqlite:///crm.db"          # or a database, with table = "..." or query = "..."
        # preceding = true                  # or the table of the preceding job
        # fields = ["id"]
        # filters = { status = "OK|Success" }

        [source]
        kind = "sql"                        # sql, files or rest
        url = "postgresql://reader@db/shop"
        password = "env:SHOP_PASSWORD"      # a reference to a secret: env:NAME or file:PATH
        table = "orders"
        watermark = "updated_at"
        watermark_type = "timestamp"
        zone = "UTC"
        nulls = "skip"

        [target]
        path = "landed/orders"              # a Delta table; or stream = "orders"
        mode = "merge"                      # append, replace or merge
        keys = ["id"]
        newest_by = "updated_at"
        drift = "evolve"                    # evolve, freeze or rescue

        [limits]
        cells = 500                         # cells per run, or "all"
        attempts = 5                        # failures before a cell is quarantined, or "unlimited"

    A grid of several periods, without gaps between them:

        [[time.grid]]
        period = "monthly"
        from = 2020-01-01
        to = 2024-01-01
        [[time.grid]]
        period = "daily"
        from = 2024-01-01
        to = "-"

    The keys of [source] are the fields of `SqlSource`, `FilesSource` or `RestSource`, those of [target] the fields of
    `Landing`, those of [units.input] the fields of `SecondaryInput`. Paths are relative to the folder of the file.
    Errors name the file and line, and are raised before anything runs.

    | variable in any string | value |
    |---|---|
    | `{{shop}}` | an entry of [variables] |
    | `{{job.name}}`, `{{job.zone}}`, `{{job.dir}}` | the job itself; `dir` is the folder of its file |
    | `{{env.NAME}}` | an environment variable |
    | `{{preceding.name}}`, `{{preceding.table}}`, `{{preceding.shop}}` | the preceding job, its table, its variables |
    | `{{range.from}}`, `{{range.to}}`, `{{unit.customer}}` | the current cell; only in [source] |

    >>> load_job("nowhere.toml")
    Traceback (most recent call last):
    floodmark.errors.JobFileMissing: There is no job file nowhere.toml. ... [job-file-missing]
    """
    return _load_file(Path(path), os.environ if environment is None else environment, secrets, ())


def read_job(
    text: str,
    *,
    file: str = "job.toml",
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
    secrets: bool = True,
) -> JobFile:
    """Read a job from TOML text; `file` is its name in errors.

    >>> read_job('''
    ... [job]
    ... name = "orders"
    ... zone = "UTC"
    ... [time]
    ... from = 2020-01-01
    ... to = "P0D"
    ... grid = "dayly"
    ... ''')
    Traceback (most recent call last):
    floodmark.errors.GridInvalid: job.toml, line 8: There is no period 'dayly'. ... Did you mean 'daily'? [grid-invalid]
    """
    variables = os.environ if environment is None else environment
    return _read_toml(text, file, folder or Path(), variables, secrets, ())


def _load_file(path: Path, environment: Mapping[str, str], secrets: bool, seen: tuple[Path, ...]) -> JobFile:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeError) as error:
        is_missing = isinstance(error, FileNotFoundError)
        raise JobFileMissing(
            f"There is no job file {path}." if is_missing else f"The job file {path} cannot be read: {error}.",
            rule="A job file must be a readable text file in UTF-8.",
            remedy="Check the path and its permissions." if isinstance(error, OSError) else "Save it as UTF-8.",
            file=str(path),
        ) from error
    if path.resolve() in seen:
        raise JobFileInvalid(
            f"The job file {path} precedes itself.",
            rule="The `after` keys of job files must not form a cycle.",
            remedy="Remove one of the `after` keys.",
            file=str(path),
        )
    folder = path.resolve().parent
    if path.suffix.lower() in PROPERTIES:
        job, notes = read_properties_job(text, file=str(path), folder=folder, environment=environment)
        return JobFile(job, str(path), notes)
    return _read_toml(text, str(path), folder, environment, secrets, (*seen, path.resolve()))


def _read_toml(
    text: str, file: str, folder: Path, environment: Mapping[str, str], secrets: bool, seen: tuple[Path, ...]
) -> JobFile:
    tree = _parse_toml(text, file)
    lines = _key_lines(text)
    origin = JobFileContext(file, lambda path: line_of(lines, path), environment if secrets else None)
    root = TomlTable(tree, origin).only(*SECTIONS)
    for section in ("job", "time"):
        if root.table(section) is None:
            raise root.missing(section, f"A job file needs [{section}].")
    head = root.table("job")
    assert head is not None
    for key in ("name", "zone"):
        head.only(*JOB_KEYS).text(key)
    preceding = _load_preceding(head, folder, environment, seen)
    tree, variables = _expand(root, folder, environment, preceding)
    job = build_job(TomlTable(tree, origin), folder, variables, None if preceding is None else preceding.job)
    return JobFile(job, file)


def _parse_toml(text: str, file: str) -> dict[str, Any]:
    try:
        tree = tomllib.loads(text)
    except RecursionError:
        tree = None
    except tomllib.TOMLDecodeError as error:
        position = _ERROR_POSITION.search(str(error))
        line = int(position[1]) if position and position[1] else text.rstrip().count("\n") + 1
        raise JobFileInvalid(
            f"{file}, line {line}: Invalid TOML: {_ERROR_POSITION.sub('', str(error))}.",
            rule="A job file must be valid TOML.",
            remedy="Put strings in quotes, and write one key = value per line.",
            file=file,
            line=line,
        ) from error
    if tree is None or _is_deep(tree):
        raise JobFileInvalid(
            f"{file}, line 1: Tables and lists are nested in more than {_MAX_DEPTH} levels.",
            rule=f"A job file has at most {_MAX_DEPTH} levels.",
            remedy="Remove brackets and dots that are not needed.",
            file=file,
            line=1,
        )
    return tree


def _is_deep(tree: Any) -> bool:
    """Return whether tables and lists are nested too deeply for functions that call themselves."""
    level = [tree]
    for _ in range(_MAX_DEPTH):
        inner = (value.values() if isinstance(value, dict) else value for value in level)
        level = [item for values in inner for item in values if isinstance(item, dict | list)]
    return bool(level)


def _key_lines(text: str) -> Mapping[KeyPath, int]:
    try:
        return lines_of(text)
    except (ValueError, IndexError):
        return {}


def _load_preceding(
    head: TomlTable, folder: Path, environment: Mapping[str, str], seen: tuple[Path, ...]
) -> JobFile | None:
    after = head.optional_text("after")
    if after is None:
        return None
    variables = {**environment_variables(environment), "job.dir": str(folder)}
    path = expand_variables(after, variables, at=("job", "after"), locate=head.origin.located)
    with head.locating("after"):
        return _load_file(folder / str(path), environment, False, seen)


def _expand(
    root: TomlTable, folder: Path, environment: Mapping[str, str], preceding: JobFile | None
) -> tuple[dict[str, Any], dict[str, Scalar]]:
    """Return the tree with variables substituted, and the job's own variables."""
    locate = root.origin.located
    variables: dict[str, Scalar] = {"job.dir": str(folder), **_preceding_variables(preceding)}
    from_environment = environment_variables(environment)
    own: dict[str, Scalar] = {}
    table = root.table("variables")
    for name, value in {} if table is None else table.values.items():
        assert table is not None
        if not _VARIABLE_NAME.fullmatch(name) or not isinstance(value, str | int | float | bool):
            raise table.refuse(
                name,
                f"The variable {name!r} has an invalid name or value.",
                rule="A name has letters, digits and _ and no leading digit; a value is a string, number or boolean.",
                remedy="Rename it, or put its value in quotes.",
            )
        own[name] = expand_variables(
            value, {**own, **variables, **from_environment}, at=("variables", name), locate=locate
        )
    tree: dict[str, Any] = {}
    variables = {**own, **variables}
    for section in ("job", *(section for section in root.values if section not in ("job", "variables"))):
        is_late = is_cell_variable if section == "source" else _never
        tree[section] = expand_variables(
            root.values[section], {**variables, **from_environment}, is_late=is_late, at=(section,), locate=locate
        )
        if section == "job":
            variables.update({f"job.{key}": tree["job"][key] for key in ("name", "zone") if key in tree["job"]})
    return tree, own


def _preceding_variables(preceding: JobFile | None) -> dict[str, Scalar]:
    if preceding is None:
        return {}
    job = preceding.job
    variables: dict[str, Scalar] = {f"preceding.{name}": value for name, value in job.variables.items()}
    variables.update({"preceding.name": job.name, "preceding.zone": job.zone})
    if isinstance(job.target, Landing):
        variables["preceding.table"] = job.target.path or job.target.stream or ""
    return variables


def _never(name: str) -> bool:
    return False


_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")
_DURATIONS: Final = {"timeout", "settle"}
"""Keys whose values are microseconds in a job and durations in a file."""


def job_text(job: Job) -> str:
    """Return a job as TOML, without default values; use it to convert a properties file.

    >>> times = TimeWatermark("day", Bound.parse("2020-01-01", "UTC"), Bound.parse("P0D", "UTC"), Grid.plain("daily"))
    >>> print(job_text(Job("orders", "UTC", times, limits=Limits(cells=None))))
    [job]
    name = "orders"
    zone = "UTC"
    <BLANKLINE>
    [time]
    name = "day"
    from = "2020-01-01"
    to = "P0D"
    grid = "daily"
    <BLANKLINE>
    [limits]
    cells = "all"
    <BLANKLINE>
    >>> read_job(job_text(Job("orders", "UTC", times))).job == Job("orders", "UTC", times)
    True
    """
    tables = {
        "job": {"name": job.name, "zone": job.zone, **({"rules": "dil"} if job.compat else {})},
        "variables": dict(job.variables),
        "time": _time_table(job.time),
        "units": _units_table(job),
        "source": {} if isinstance(job.source, Mapping) else _spec_table(job.source, kind=True),
        "target": {} if isinstance(job.target, Mapping) else _spec_table(job.target),
        "limits": _limits_table(job.limits),
    }
    return "\n".join(line for name, table in tables.items() if table for line in _toml_lines(name, table))


def _time_table(time: TimeWatermark) -> dict[str, Any]:
    grid: Any = time.grid.parts[0].period
    if not time.grid.is_plain:
        ends = (("from", "start"), ("to", "end"))
        grid = [
            {"period": part.period, **{key: str(end) for key, name in ends if (end := getattr(part, name)) is not None}}
            for part in time.grid.parts
        ]
    table = {"name": time.name, "from": str(time.from_), "to": str(time.to), "grid": grid}
    for name, default in (("partial", True), ("grace_days", 0), ("abstinence_days", 0), ("settle", 0)):
        if getattr(time, name) != default:
            table[name] = getattr(time, name)
    return table


def _units_table(job: Job) -> dict[str, Any]:
    units = job.units
    if units is None:
        return {}
    if units.secondary is not None:
        return {"name": units.name, "input": _spec_table(units.secondary)}
    listed = [dict(unit.fields) for unit in units.units or ()]
    is_short = all(unit.keys() == {units.name} for unit in listed)
    return {"name": units.name, "list": [unit[units.name] for unit in listed] if is_short else listed}


def _limits_table(limits: Limits) -> dict[str, Any]:
    words = {"cells": "all", "attempts": "unlimited"}
    default = Limits()
    return {
        name: word if getattr(limits, name) is None else getattr(limits, name)
        for name, word in words.items()
        if getattr(limits, name) != getattr(default, name)
    }


def _spec_table(spec: Any, *, kind: bool = False) -> dict[str, Any]:
    """Return the fields of a spec that differ from their defaults."""
    table: dict[str, Any] = {"kind": spec.kind} if kind else {}
    for spec_field in fields(spec):
        value = getattr(spec, spec_field.name)
        default = spec_field.default_factory() if spec_field.default_factory is not MISSING else spec_field.default
        if value is None or value == default:
            continue
        is_spec = hasattr(value, "__dataclass_fields__") and not isinstance(plain_values(value), str)
        table[spec_field.name] = _spec_table(value) if is_spec else plain_values(value)
    return table


def _toml_lines(name: str, table: Mapping[str, Any]) -> Iterator[str]:
    yield f"[{name}]"
    for key, value in table.items():
        text = f"{value} microseconds" if key in _DURATIONS and isinstance(value, int) else value
        yield f"{_toml_key(key)} = {_toml_value(text)}"
    yield ""


def _toml_value(value: Any) -> str:
    if isinstance(value, Mapping):
        inner = ", ".join(f"{_toml_key(key)} = {_toml_value(item)}" for key, item in value.items())
        return f"{{ {inner} }}"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml_value, value))}]"
    # A JSON string is a TOML string, except for the character DEL.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _toml_key(key: str) -> str:
    return key if _BARE.fullmatch(key) else _toml_value(key)
