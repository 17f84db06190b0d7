"""What people type about jobs, and what programs read: times, units, and answers as JSON."""

import getpass
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from floodmark._util.text import did_you_mean
from floodmark.errors import InvalidOption, UnknownUnit
from floodmark.ingest import Bound, Plan, Range, Status, Typical, Unit


def moment_of(text: str, zone: str, now: int, option: str) -> int:
    """Return a moment that somebody typed, as a job file would have it.

    >>> moment_of("1970-01-02", "UTC", 0, "--at"), moment_of("-", "UTC", 61_000_000, "--at")
    (86400000000, 60000000)
    """
    return Bound.parse(text, zone).resolve(now, zone)


def range_of(start: str | None, end: str | None, zone: str, now: int) -> Range | None:
    """Return the range between two moments that somebody typed, or None if neither is there.

    >>> range_of("1970-01-01", "1970-01-02", "UTC", 0)
    Range(lo=0, hi=86400000000)
    """
    if start is None and end is None:
        return None
    if start is None or end is None:
        raise InvalidOption(
            f"There is only {'--to' if start is None else '--from'}.",
            rule="A range has both ends.",
            remedy="Give --from and --to, or neither.",
            option="--from" if start is None else "--to",
        )
    found = Range(moment_of(start, zone, now, "--from"), moment_of(end, zone, now, "--to"))
    if found.lo >= found.hi:
        raise InvalidOption(
            f"The range goes from {start} to {end}.",
            rule="It ends after it begins.",
            remedy="Swap --from and --to, or name a later --to.",
            option="--to",
        )
    return found


def keys_of(texts: Sequence[str] | None, known: Sequence[str], job: str) -> list[str] | None:
    """Return the keys of units that somebody typed: as keys, as id=7, or by the value alone; None for all.

    >>> keys_of(["7", "id=8"], ['{"id":"7"}', '{"id":8}'], "orders")
    ['{"id":"7"}', '{"id":8}']
    """
    if texts is None:
        return None
    names: dict[str, list[str]] = {}
    for key in known:
        unit = Unit.load(key)
        short = {str(value) for value in unit.fields.values()} if len(unit.fields) == 1 else set()
        for name in {key, str(unit), *short}:
            names.setdefault(name, []).append(key)
    found = []
    for text in texts:
        keys = names.get(text, [])
        if len(keys) != 1:
            fact = f"The job {job!r} has no unit {text!r}." if not keys else f"{len(keys)} units are called {text!r}."
            guess = did_you_mean(text, names, otherwise="Look at `floodmark ingest plan --json`.")
            raise UnknownUnit(
                fact,
                rule='A unit is named by its key, as {"id":7}, as id=7, or by its value if it has one field.',
                remedy=guess if not keys else "Write the key.",
                job=job,
                unit=text,
            )
        found.append(keys[0])
    return found


def actor() -> str:
    """Return who acts, as it is written down.

    >>> "@" in actor()
    True
    """
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = f"uid-{os.getuid()}"
    return f"{user}@{socket.gethostname()}"


def saved(value: Any) -> Any:
    """Return an answer as JSON has it; a range is a pair, a unit its key and its fields.

    >>> saved({"unit": Unit.of({"id": 7}), "range": Range(0, 9)})
    {'unit': {'key': '{"id":7}', 'fields': {'id': 7}}, 'range': [0, 9]}
    """
    if isinstance(value, Range):
        return [value.lo, value.hi]
    if isinstance(value, Unit):
        return {"key": value.key, "fields": dict(value.fields)}
    if is_dataclass(value):
        return {one.name: saved(getattr(value, one.name)) for one in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): saved(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [saved(one) for one in value]
    return value


def saved_plan(plan: Plan, typical: Typical | None) -> dict[str, Any]:
    """Return a plan as JSON has it, with its estimate."""
    listed = ("rows", "held", "quarantined")
    return {
        **{name: one for name, one in saved(plan).items() if name not in listed},
        "due": plan.due,
        "waiting": plan.waiting,
        "estimate": estimate(plan, typical),
        **{name: [saved(row) for row in getattr(plan, name)] for name in listed},
    }


def saved_status(status: Status, grace: int | None) -> dict[str, Any]:
    """Return the status of a job as JSON has it; of its plan only the totals."""
    plan = status.plan
    told = {one.name: saved(getattr(status, one.name)) for one in fields(status) if one.name != "plan"}
    totals = {"reach": saved(plan.reach), "totals": dict(plan.totals), "due": plan.due, "expired": len(plan.expired)}
    return {**told, "plan": {**totals, "retired": list(plan.retired)}, "recommended_grace_days": grace}


def estimate(plan: Plan, typical: Typical | None) -> dict[str, float] | None:
    """Return about how many rows, and how many microseconds of work, a plan means; None if nothing like it was read.

    Both are averages of the rows of earlier plans, times the rows of this one.
    """
    if typical is None or not typical.cells:
        return None
    many = len(plan.rows)
    known = {"rows": typical.rows, "took": typical.took}
    return {"of": typical.cells, **{name: one * many for name, one in known.items() if one is not None}}
