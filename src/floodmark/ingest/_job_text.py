"""A job written as a job file: what `read_job` reads back to the same job."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields
from typing import Any, Final

from floodmark.ingest._job import Job, Limits, TimeWatermark
from floodmark.ingest._spec_checks import plain

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
        "time": _time(job.time),
        "units": _units(job),
        "source": {} if isinstance(job.source, Mapping) else _spec(job.source, kind=True),
        "target": {} if isinstance(job.target, Mapping) else _spec(job.target),
        "limits": _limits(job.limits),
    }
    return "\n".join(line for name, table in tables.items() if table for line in _lines(name, table))


def _time(time: TimeWatermark) -> dict[str, Any]:
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


def _units(job: Job) -> dict[str, Any]:
    units = job.units
    if units is None:
        return {}
    if units.secondary is not None:
        return {"name": units.name, "input": _spec(units.secondary)}
    listed = [dict(unit.fields) for unit in units.units or ()]
    is_short = all(unit.keys() == {units.name} for unit in listed)
    return {"name": units.name, "list": [unit[units.name] for unit in listed] if is_short else listed}


def _limits(limits: Limits) -> dict[str, Any]:
    words = {"cells": "all", "attempts": "unlimited"}
    default = Limits()
    return {
        name: word if getattr(limits, name) is None else getattr(limits, name)
        for name, word in words.items()
        if getattr(limits, name) != getattr(default, name)
    }


def _spec(spec: Any, *, kind: bool = False) -> dict[str, Any]:
    """Return what of a spec is not as it is by default."""
    found: dict[str, Any] = {"kind": spec.kind} if kind else {}
    for one in fields(spec):
        value = getattr(spec, one.name)
        default = one.default_factory() if one.default_factory is not MISSING else one.default
        if value is None or value == default:
            continue
        is_spec = hasattr(value, "__dataclass_fields__") and not isinstance(plain(value), str)
        found[one.name] = _spec(value) if is_spec else plain(value)
    return found


def _lines(name: str, table: Mapping[str, Any]) -> Iterator[str]:
    yield f"[{name}]"
    for key, value in table.items():
        written = f"{value} microseconds" if key in _DURATIONS and isinstance(value, int) else value
        yield f"{_key(key)} = {_value(written)}"
    yield ""


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        inner = ", ".join(f"{_key(key)} = {_value(one)}" for key, one in value.items())
        return f"{{ {inner} }}"
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    # The texts of JSON are texts of TOML, but for one character.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else _value(key)
