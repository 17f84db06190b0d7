"""Job files: a job read from TOML, and written as TOML. `load_job` says what can be written in one."""

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
"""What the names of properties files end with."""

_PLACE: Final = re.compile(r" \(at (?:line (\d+), column \d+|end of document)\)$")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class JobFile:
    """A job that was read from a file, and what its reader should know about it."""

    job: Job
    file: str
    notes: tuple[str, ...] = ()
    """What was assumed, or could not be translated, in sentences."""


def load_job(path: str | Path, *, environment: Mapping[str, str] | None = None, secrets: bool = True) -> JobFile:
    """Read a job file: TOML, or a properties file of DIL if its name ends with .properties, .pull or .job.

    Without an `environment` that of the process counts. With `secrets`, all that the job refers to must be there.

    A file:

        [job]
        name = "orders"
        zone = "Europe/Berlin"              # a job must name one
        after = "customers.toml"            # optional: a preceding job, see {{preceding.table}} and units
        rules = "floodmark"                 # or "dil": plan by the letter of what DIL does, holes and all

        [variables]                         # optional: {{shop}} in any text below
        shop = "north"

        [time]
        from = 2024-01-01                   # a date, a time, or a duration back from now (P7D, P0DT6H)
        to = "P0D"                          # the same, or "-" for now
        grid = "daily"                      # none, hourly, daily, weekly, monthly, yearly; or [[time.grid]], see below
        partial = true                      # whether the last cell is read before it is over
        grace_days = 3                      # read so many days again, each run
        abstinence_days = 0                 # leave a cell alone for so many days after a success
        settle = "15 minutes"               # never read what is newer than this

        [units]                             # optional
        name = "customer"
        list = ["c1", "c2"]                 # or "c1, c2", or tables; or instead of it:
        # [units.input]
        # path = "customers.csv"            # CSV, JSON lines, Parquet, Avro, a folder of them, a Delta table
        # url = "sqlite:///crm.db"          # or a database, with table = "..." or query = "..."
        # preceding = true                  # or the table that the preceding job has landed
        # fields = ["id"]
        # filters = { status = "OK|Success" }

        [source]
        kind = "sql"                        # sql, files or rest
        url = "postgresql://reader@db/shop"
        password = "env:SHOP_PASSWORD"      # secrets are referred to: env:NAME or file:PATH
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
        cells = 500                         # cells a run, or "all"
        attempts = 5                        # failures after which a cell waits for a person, or "unlimited"

    Several periods one after the other, without holes:

        [[time.grid]]
        period = "monthly"
        from = 2020-01-01
        to = 2024-01-01
        [[time.grid]]
        period = "daily"
        from = 2024-01-01
        to = "-"

    The keys of [source] are those of `SqlSource`, `FilesSource` and `RestSource`, those of [target] are in `Landing`,
    and those of [units.input] in `SecondaryInput`. Paths are relative to the folder of the file. What is wrong is
    refused with file, line and remedy before anything runs.

    | a variable in any text | stands for |
    |---|---|
    | `{{shop}}` | one of [variables] |
    | `{{job.name}}`, `{{job.zone}}`, `{{job.dir}}` | the job itself; `dir` is the folder of its file |
    | `{{env.NAME}}` | a variable of the environment |
    | `{{preceding.name}}`, `{{preceding.table}}`, `{{preceding.shop}}` | the preceding job, its table, its variables |
    | `{{range.from}}`, `{{range.to}}`, `{{unit.customer}}` | the cell that is extracted; in [source] only |

    >>> load_job("nowhere.toml")
    Traceback (most recent call last):
    floodmark.errors.JobFileMissing: There is no job file nowhere.toml. ... [job-file-missing]
    """
    return _load(Path(path), os.environ if environment is None else environment, secrets, ())


def read_job(
    text: str,
    *,
    file: str = "job.toml",
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
    secrets: bool = True,
) -> JobFile:
    """Read a job that is written as TOML; `file` is what errors call it.

    >>> told = read_job('''
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
    known = os.environ if environment is None else environment
    return _read(text, file, folder or Path(), known, secrets, ())


def _load(path: Path, environment: Mapping[str, str], secrets: bool, seen: tuple[Path, ...]) -> JobFile:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeError) as error:
        is_missing = isinstance(error, FileNotFoundError)
        raise JobFileMissing(
            f"There is no job file {path}." if is_missing else f"The job file {path} cannot be read: {error}.",
            rule="A job is described by a file of text, in UTF-8.",
            remedy="Correct the path." if isinstance(error, OSError) else "Save it as UTF-8.",
            file=str(path),
        ) from error
    if path.resolve() in seen:
        raise JobFileInvalid(
            f"The job file {path} comes after itself.",
            rule="What precedes a job does not come after it.",
            remedy="Take one `after` out.",
            file=str(path),
        )
    folder = path.resolve().parent
    if path.suffix.lower() in PROPERTIES:
        job, notes = read_properties_job(text, file=str(path), folder=folder, environment=environment)
        return JobFile(job, str(path), notes)
    return _read(text, str(path), folder, environment, secrets, (*seen, path.resolve()))


def _read(
    text: str, file: str, folder: Path, environment: Mapping[str, str], secrets: bool, seen: tuple[Path, ...]
) -> JobFile:
    tree = _parsed(text, file)
    lines = _key_lines(text)
    origin = JobFileContext(file, lambda path: line_of(lines, path), environment if secrets else None)
    root = TomlTable(tree, origin).only(*SECTIONS)
    for section in ("job", "time"):
        if root.table(section) is None:
            raise root.missing(section, f"A job file has [{section}].")
    head = root.table("job")
    assert head is not None
    for key in ("name", "zone"):
        head.only(*JOB_KEYS).text(key)
    preceding = _preceding(head, folder, environment, seen)
    tree, variables = _expanded(root, folder, environment, preceding)
    job = build_job(TomlTable(tree, origin), folder, variables, None if preceding is None else preceding.job)
    return JobFile(job, file)


def _parsed(text: str, file: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        place = _PLACE.search(str(error))
        line = int(place[1]) if place and place[1] else text.rstrip().count("\n") + 1
        raise JobFileInvalid(
            f"{file}, line {line}: It is no TOML: {_PLACE.sub('', str(error))}.",
            rule="A job file is written in TOML.",
            remedy="Write texts in quotes, and one key = value a line.",
            file=file,
            line=line,
        ) from error


def _key_lines(text: str) -> Mapping[KeyPath, int]:
    try:
        return lines_of(text)
    except (ValueError, IndexError):
        return {}


def _preceding(head: TomlTable, folder: Path, environment: Mapping[str, str], seen: tuple[Path, ...]) -> JobFile | None:
    written = head.optional_text("after")
    if written is None:
        return None
    known = {**environment_variables(environment), "job.dir": str(folder)}
    path = expand_variables(written, known, at=("job", "after"), locate=head.origin.located)
    with head.locating("after"):
        return _load(folder / str(path), environment, False, seen)


def _expanded(
    root: TomlTable, folder: Path, environment: Mapping[str, str], preceding: JobFile | None
) -> tuple[dict[str, Any], dict[str, Scalar]]:
    """Return the tree with all variables in place, and the job's own variables."""
    locate = root.origin.located
    known: dict[str, Scalar] = {"job.dir": str(folder), **_preceding_variables(preceding)}
    outside = environment_variables(environment)
    own: dict[str, Scalar] = {}
    table = root.table("variables")
    for name, value in {} if table is None else table.values.items():
        assert table is not None
        if not _VARIABLE.fullmatch(name) or not isinstance(value, str | int | float | bool):
            raise table.refuse(
                name,
                f"The variable {name!r} has a name or a value that none has.",
                rule="Its name has letters, digits and _; its value is a text, a number, true or false.",
                remedy="Rename it, or write its value as a text.",
            )
        own[name] = expand_variables(value, {**own, **known, **outside}, at=("variables", name), locate=locate)
    tree: dict[str, Any] = {}
    known = {**own, **known}
    for section in ("job", *(one for one in root.values if one not in ("job", "variables"))):
        is_late = is_cell_variable if section == "source" else _never
        tree[section] = expand_variables(
            root.values[section], {**known, **outside}, is_late=is_late, at=(section,), locate=locate
        )
        if section == "job":
            known.update({f"job.{key}": tree["job"][key] for key in ("name", "zone") if key in tree["job"]})
    return tree, own


def _preceding_variables(preceding: JobFile | None) -> dict[str, Scalar]:
    if preceding is None:
        return {}
    job = preceding.job
    known: dict[str, Scalar] = {f"preceding.{name}": value for name, value in job.variables.items()}
    known.update({"preceding.name": job.name, "preceding.zone": job.zone})
    if isinstance(job.target, Landing):
        known["preceding.table"] = job.target.path or job.target.stream or ""
    return known


def _never(name: str) -> bool:
    return False


_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")
_DURATIONS: Final = {"timeout", "settle"}
"""What is kept as microseconds, and written as a length of time."""


def job_text(job: Job) -> str:
    """Return a job as TOML, such as one that was read from a properties file. Defaults are left out.

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
    found = {"name": time.name, "from": str(time.from_), "to": str(time.to), "grid": grid}
    for name, default in (("partial", True), ("grace_days", 0), ("abstinence_days", 0), ("settle", 0)):
        if getattr(time, name) != default:
            found[name] = getattr(time, name)
    return found


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
    """Return what of a spec is not as it is by default."""
    found: dict[str, Any] = {"kind": spec.kind} if kind else {}
    for one in fields(spec):
        value = getattr(spec, one.name)
        default = one.default_factory() if one.default_factory is not MISSING else one.default
        if value is None or value == default:
            continue
        is_spec = hasattr(value, "__dataclass_fields__") and not isinstance(plain_values(value), str)
        found[one.name] = _spec_table(value) if is_spec else plain_values(value)
    return found


def _toml_lines(name: str, table: Mapping[str, Any]) -> Iterator[str]:
    yield f"[{name}]"
    for key, value in table.items():
        written = f"{value} microseconds" if key in _DURATIONS and isinstance(value, int) else value
        yield f"{_toml_key(key)} = {_toml_value(written)}"
    yield ""


def _toml_value(value: Any) -> str:
    if isinstance(value, Mapping):
        inner = ", ".join(f"{_toml_key(key)} = {_toml_value(one)}" for key, one in value.items())
        return f"{{ {inner} }}"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml_value, value))}]"
    # The texts of JSON are texts of TOML, but for one character.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _toml_key(key: str) -> str:
    return key if _BARE.fullmatch(key) else _toml_value(key)
