"""Edits of what is known: written down with what was before, so that they can be undone."""

from collections.abc import Mapping
from typing import Any

from floodmark.errors import Conflict
from floodmark.ingest._coverage import Failure, UnitCoverage
from floodmark.ingest._ranges import Range, merged, subtract, union, within


def before_edit(known: UnitCoverage, what: Range) -> dict[str, Any]:
    """Return what was known of a range, to be kept as JSON.

    >>> before_edit(UnitCoverage(covered=[Range(0, 9)]), Range(5, 20))
    {'covered': [[5, 9]], 'backfilled': [], 'wanted': [], 'failures': []}
    """
    kinds = ("covered", "backfilled", "wanted")
    kept: dict[str, Any] = {kind: [list(one) for one in within(getattr(known, kind), *what)] for kind in kinds}
    failures = [one for one in known.failures if one.range.lo < what.hi and what.lo < one.range.hi]
    kept["failures"] = [[*_cut(one.range, what), one.attempts, one.at, one.error] for one in failures]
    return kept


def undone(known: UnitCoverage, what: Range, before: Mapping[str, Any], *, is_covered: bool) -> UnitCoverage:
    """Return what is known once an edit is undone; refuse if something has changed the range since.

    >>> edited = UnitCoverage(covered=[Range(0, 9)]).edited(Range(0, 20), is_covered=True)
    >>> undone(edited, Range(0, 20), {"covered": [[0, 9]]}, is_covered=True).covered
    [Range(lo=0, hi=9)]
    """
    now = within(known.everything, *what)
    if now != ([what] if is_covered else []):
        raise Conflict(
            f"What is known from {what.lo} to {what.hi} has changed since it was edited.",
            rule="An edit can be undone as long as nothing else has changed its range.",
            remedy="Edit it again instead.",
            lo=what.lo,
            hi=what.hi,
        )
    edit = [what]
    old = {kind: merged((lo, hi) for lo, hi in before.get(kind, ())) for kind in ("covered", "backfilled", "wanted")}
    failures = [one for one in known.failures if not within([one.range], *what)]
    failures += [
        Failure(Range(lo, hi), attempts, at, error) for lo, hi, attempts, at, error in before.get("failures", ())
    ]
    return UnitCoverage(
        covered=union(subtract(known.covered, edit), old["covered"]),
        backfilled=union(subtract(known.backfilled, edit), old["backfilled"]),
        wanted=union(subtract(known.wanted, edit), old["wanted"]),
        failures=tuple(sorted(failures, key=lambda one: one.range)),
        fresh=known.fresh,
        known_from=known.known_from,
    )


def _cut(one: Range, what: Range) -> tuple[int, int]:
    return max(one.lo, what.lo), min(one.hi, what.hi)
