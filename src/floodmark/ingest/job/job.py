"""A job: what is read, when, and where it goes. Frozen, checked as it is made, without clock and I/O.

    Job
      time    TimeWatermark: from, to (Bound), grid (Grid), partial, grace, abstinence, settle
      units   UnitWatermark: Unit, ...  or None, then there is one unit, `{}`
      source  SqlSource, FilesSource or RestSource; opaque to planning
      target  Landing; planning only looks at its mode
      limits  Limits: cells a run, attempts before quarantine

A `Grid` says how time is cut; its cells are made by `Job.cells(now)`, since a start may move.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, Self

from floodmark._util.names import check_id
from floodmark._util.text import did_you_mean
from floodmark.errors import JobInvalid, RangeInvalid
from floodmark.ingest.calendar.bound import Bound, floor_moment
from floodmark.ingest.calendar.clock import format_moment, zone_of
from floodmark.ingest.calendar.grid import Cells, Grid
from floodmark.ingest.calendar.ranges import Range
from floodmark.ingest.job.options import Frozen, invalid_option, plain_values, require_one_of, require_text
from floodmark.ingest.job.source import FilesSource, RestSource, SqlSource, watermark_column
from floodmark.ingest.job.unit import SOLE_UNIT, SecondaryInput, Unit, UnitWatermark
from floodmark.ingest.job.variables import variable_names

MODES: Final = ("append", "replace", "merge")
_MAX_DAYS: Final = 366 * 100


@dataclass(frozen=True, slots=True)
class TimeWatermark:
    """The time of a job: from when to when it reads, how that is cut, and what it reads again or later.

    >>> TimeWatermark("day", Bound.parse("2020-01-01", "UTC"), Bound.parse("P0D", "UTC"), Grid.plain("daily")).partial
    True
    """

    name: str
    from_: Bound
    to: Bound
    grid: Grid = field(default_factory=lambda: Grid.plain("none"))
    partial: bool = True
    """Whether the last cell is read before it is over."""
    grace_days: int = 0
    """How many calendar days, back from what a unit has reached, are read again in each run."""
    abstinence_days: int = 0
    """How many calendar days after a success a cell is left alone; today and that many more."""
    settle: int = 0
    """Microseconds before now that are not read yet, since a source may still add to them."""

    def __post_init__(self) -> None:
        """Refuse what can never be read."""
        if self.from_.text == "-":
            raise RangeInvalid(
                "`from` is -.",
                rule="What begins now holds nothing.",
                remedy="Write a date, or a duration such as P7D.",
                name=self.name,
            )
        if self.from_.at is not None and self.to.at is not None and self.from_.at >= self.to.at:
            raise RangeInvalid(
                f"`from` is {self.from_} and `to` is {self.to}.",
                rule="`to` lies after `from`.",
                remedy="Swap them." if self.from_.at > self.to.at else "Name a later `to`.",
                name=self.name,
            )
        if self.from_.moves and self.to.moves and (self.from_.zone, self.from_.floor) == (self.to.zone, self.to.floor):
            back, ahead = ((one.days, one.hours, one.minutes) for one in (self.from_, self.to))
            if back < ahead:
                raise RangeInvalid(
                    f"`from` is {self.from_}, and `to` is {self.to}, which is earlier.",
                    rule="`to` lies after `from`.",
                    remedy="Swap them.",
                    name=self.name,
                )
        for what, value in (("grace", self.grace_days), ("abstinence", self.abstinence_days)):
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MAX_DAYS:
                raise JobInvalid(
                    f"The {what} is {value!r} days.",
                    rule=f"It is a whole number of days from 0 to {_MAX_DAYS}.",
                    remedy="Write 0 for none.",
                    what=what,
                    value=value,
                )
        if isinstance(self.settle, bool) or not isinstance(self.settle, int) or self.settle < 0:
            raise JobInvalid(
                f"The settle delay is {self.settle!r}.",
                rule="It is a whole number of microseconds that is not negative.",
                remedy="Write 0 for none, 600_000_000 for ten minutes.",
                value=self.settle,
            )
        self._check_grid()

    def _check_grid(self) -> None:
        """Refuse parts that leave out something that is read. Where an end moves, each plan looks again."""
        first, last = self.grid.parts[0], self.grid.parts[-1]
        if first.start is None:
            return
        if self.from_.at is not None and first.start.at is not None and self.from_.at < first.start.at:
            raise RangeInvalid(
                f"`from` is {self.from_}, and the grid begins at {first.start}.",
                rule="The parts of a grid reach from the job's start to its end.",
                remedy="Begin the first part at `from`.",
                name=self.name,
            )
        if last.end is not None and last.end.at is not None and self.to.at is not None and self.to.at > last.end.at:
            raise RangeInvalid(
                f"`to` is {self.to}, and the grid ends at {last.end}.",
                rule="The parts of a grid reach from the job's start to its end.",
                remedy="Write - as the end of the last part.",
                name=self.name,
            )


@dataclass(frozen=True, slots=True)
class Limits:
    """How much a run may do, and how often a cell may fail.

    >>> Limits(cells=0)
    Traceback (most recent call last):
    floodmark.errors.JobInvalid: The limit of cells is 0. ... [job-invalid]
    """

    cells: int | None = 10_000
    """Cells a run; None for all there are, however many."""
    attempts: int | None = 5
    """Failures in a row after which a cell waits for somebody to look at it; None for never."""

    def __post_init__(self) -> None:
        """Refuse what would let nothing happen."""
        for what, value in (("cells", self.cells), ("attempts", self.attempts)):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise JobInvalid(
                    f"The limit of {what} is {value!r}.",
                    rule="It is a whole number of at least 1.",
                    remedy="Leave it out for the default.",
                    what=what,
                    value=value,
                )


@dataclass(frozen=True, slots=True)
class Job:
    """What is read and where it goes. Two jobs are equal if they say the same.

    >>> day = TimeWatermark("day", Bound.parse("2020-01-01", "UTC"), Bound.parse("-", "UTC"), Grid.plain("daily"))
    >>> Job("orders", "UTC", day).listed_units
    (Unit(key='{}', fields=Frozen({})),)
    """

    name: str
    zone: str
    time: TimeWatermark
    units: UnitWatermark | None = None
    source: Any = field(default_factory=lambda: Frozen({}))
    """Where rows come from: a mapping, or an object that says it in its own way."""
    target: Any = field(default_factory=lambda: Frozen({"mode": "replace"}))
    """Where rows go: a mapping with a `mode`, or an object with that attribute."""
    limits: Limits = Limits()
    compat: bool = False
    """Whether it is planned by the letter of what DIL does, which may leave holes for ever."""
    variables: Mapping[str, Any] = field(default_factory=lambda: Frozen({}))

    def __post_init__(self) -> None:
        """Refuse parts that do not fit together."""
        check_id("name of the job", self.name)
        zone_of(self.zone)
        for name in ("source", "target", "variables"):
            if isinstance(value := getattr(self, name), Mapping) and not isinstance(value, Frozen):
                object.__setattr__(self, name, Frozen(value))
        mode = mode_of(self.target)
        if mode not in MODES:
            raise JobInvalid(
                f"The mode of the target is {mode!r}.",
                rule=f"It is one of {', '.join(MODES)}.",
                remedy="Use replace for rows that are never changed, merge for rows that are.",
                mode=mode,
            )
        if self.time.grace_days and mode == "append":
            raise JobInvalid(
                f"The job {self.name!r} reads {self.time.grace_days} days again in each run, and appends them.",
                rule="What is read again replaces what was there, or is merged with it; else each row is there twice.",
                remedy="Set the target's mode to replace or merge, or the grace to 0.",
                job=self.name,
                grace_days=self.time.grace_days,
            )

    @property
    def listed_units(self) -> tuple[Unit, ...]:
        """The units that are read; one without fields where there are none."""
        if self.units is None:
            return (SOLE_UNIT,)
        if self.units.units is None:
            raise JobInvalid(
                f"The units {self.units.name!r} of the job {self.name!r} are not read yet.",
                rule="A plan is made for units that are known.",
                remedy="Read the secondary input first, then use Job.with_units.",
                job=self.name,
            )
        return self.units.units

    def with_units(self, units: tuple[Unit, ...]) -> Self:
        """Return the same job, with the units that its secondary input has given."""
        assert self.units is not None
        return replace(self, units=replace(self.units, units=units))

    def reach(self, now: int) -> Range:
        """Return from when to when it reads at this moment; `hi` is not above `lo` if there is nothing.

        What is not over is not read: `to` is at most now, less the time to settle, rounded down as `to` says.
        """
        lo = self.time.from_.resolve(now, self.zone)
        hi = self.time.to.resolve(now, self.zone)
        settled = now - self.time.settle
        if hi > settled:
            hi = min(hi, floor_moment(settled, self.time.to.floor, self.time.to.zone or self.zone))
        return Range(lo, hi)

    def cells(self, now: int) -> Cells:
        """Return the cells as they are at this moment."""
        return self.time.grid.cells_from(self.time.from_, now, self.zone)

    def described(self) -> dict[str, Any]:
        """Return what decides about when it reads what, to be kept and compared. No secret can be in it."""
        time = self.time
        grid: Any = [[part.period, str(part.start), str(part.end or "-")] for part in time.grid.parts]
        return {
            "zone": self.zone,
            "from": time.from_.text,
            "to": time.to.text,
            "grid": time.grid.parts[0].period if time.grid.is_plain else grid,
            "partial": time.partial,
            "grace_days": time.grace_days,
            "abstinence_days": time.abstinence_days,
            "settle": time.settle,
            "mode": mode_of(self.target),
            "cells": self.limits.cells,
            "attempts": self.limits.attempts,
            "compat": self.compat,
        }

    def shown(self, micros: int) -> str:
        """Return a moment as the job's own wall clock shows it."""
        return format_moment(micros, zone_of(self.zone))


def mode_of(target: Any) -> object:
    """Return how rows get into a target.

    >>> mode_of({"mode": "merge"})
    'merge'
    """
    return target.get("mode") if isinstance(target, Mapping) else getattr(target, "mode", None)


Mode = Literal["append", "replace", "merge"]
LANDING_MODES: Final = ("append", "replace", "merge")
Drift = Literal["evolve", "freeze", "rescue"]
DRIFTS: Final = ("evolve", "freeze", "rescue")


@dataclass(frozen=True, slots=True)
class Landing:
    """A Delta table or a stream of Floodmark's.

    >>> Landing(path="landed/orders", mode="merge", keys=("id",), newest_by="updated_at").kind
    'delta'
    """

    mode: Mode
    """append adds rows; replace puts them in place of those of the same range; merge keeps the newest of each key."""
    path: str | None = None
    """The directory of a Delta table."""
    stream: str | None = None
    """The name of a stream in the home. One of the two."""
    keys: tuple[str, ...] = ()
    """For merge: the columns that name a row."""
    newest_by: str | None = None
    """For merge: of two rows with the same key the one with the larger value is kept; by default the watermark.

    That of files is `_file_time`, unless it is a column of theirs.
    """
    range_column: str | None = None
    """For replace: the column of the table whose range is replaced; by default the watermark, as in `newest_by`."""
    partition_by: tuple[str, ...] = ()
    drift: Drift = "freeze"
    """Columns that the table does not have: it gets them, the cell fails, or they are kept aside as JSON."""

    @property
    def kind(self) -> Literal["delta", "stream"]:
        """What it is."""
        return "delta" if self.path is not None else "stream"

    def __post_init__(self) -> None:
        """Refuse what cannot be landed."""
        require_one_of("mode", self.mode, LANDING_MODES)
        require_one_of("drift", self.drift, DRIFTS)
        if (self.path is None) == (self.stream is None):
            raise invalid_option(
                "path",
                "The target has both a path and a stream." if self.path else "The target has neither path nor stream.",
                "It is a Delta table, named by its path, or a stream, named by its name.",
                'Write path = "landed/orders" or stream = "orders".',
            )
        require_text("path" if self.path is not None else "stream", self.path or self.stream)
        if (self.mode == "merge") != bool(self.keys):
            raise invalid_option(
                "keys",
                f"The mode is {self.mode!r}, and there are {len(self.keys) or 'no'} keys.",
                "Merging needs the keys of a row, and nothing else has them.",
                'Add keys = ["id"].' if self.mode == "merge" else "Leave keys out, or merge.",
            )
        if len(set(self.keys)) != len(self.keys):
            raise invalid_option("keys", "A key is named twice.", "Each is named once.", "Leave one of them out.")
        for name, mode in (("newest_by", "merge"), ("range_column", "replace")):
            if getattr(self, name) is not None and self.mode != mode:
                raise invalid_option(
                    name, f"The mode is {self.mode!r}, and there is {name}.", f"It belongs to {mode}.", "Leave it out."
                )
        if self.stream is not None and (self.mode == "replace" or self.partition_by):
            raise invalid_option(
                "mode" if self.mode == "replace" else "partition_by",
                f"The target is a stream, and its mode is {self.mode!r}."
                if self.mode == "replace"
                else "The target is a stream, and has partition_by.",
                "What is in a stream stays: events are appended, or newer ones of a key follow. It has segments.",
                'Write mode = "append" or "merge".' if self.mode == "replace" else "Leave partition_by out.",
            )


def check_job(job: Job) -> None:
    """Refuse a job whose parts contradict each other."""
    source, target = job.source, job.target
    if not isinstance(source, SqlSource | FilesSource | RestSource):
        return
    _check_fields(job, source)
    _check_used(job, source)
    if not isinstance(target, Landing):
        return
    if isinstance(source, SqlSource) and source.nulls == "read" and target.mode != "merge":
        raise invalid_option(
            "source.nulls",
            f"Rows without a watermark are read in each run, and the target's mode is {target.mode!r}.",
            "What is read again and again must be merged by its key; else it is there again and again.",
            'Write nulls = "skip", name a fallback column, or merge.',
        )
    if target.mode == "merge" and target.newest_by is None and watermark_column(source) is None:
        raise invalid_option(
            "target.newest_by",
            "Nothing says which of two rows with the same key is newer.",
            "Merging keeps the newest; without a watermark column a column must be named.",
            'Add newest_by = "COLUMN" to [target].',
        )
    if target.mode == "replace" and target.range_column is None and watermark_column(source) is None:
        raise invalid_option(
            "target.range_column",
            "Nothing says which column of the table has the range that is replaced.",
            "Rows of the range that was read are replaced; without a watermark column a column must be named.",
            'Add range_column = "COLUMN" to [target].',
        )


def unit_fields(job: Job) -> tuple[str, ...]:
    """Return the fields that each unit of a job has.

    >>> unit_fields(Job("a", "UTC", TimeWatermark("t", Bound.parse("2020-01-01", "UTC"), Bound.parse("-", "UTC"))))
    ()
    """
    if job.units is None:
        return ()
    if isinstance(job.units.secondary, SecondaryInput):
        return job.units.secondary.fields
    return tuple(job.units.units[0].fields) if job.units.units else ()


def _check_fields(job: Job, source: SqlSource | FilesSource | RestSource) -> None:
    known = unit_fields(job)
    named = [name.removeprefix("unit.") for name in _variables_in(plain_values(source)) if name.startswith("unit.")]
    if isinstance(source, SqlSource):
        named += list(source.units)
    for name in named:
        if name not in known:
            raise invalid_option(
                "source",
                f"The source names the field {name!r} of a unit.",
                f"A unit has the fields {', '.join(known)}." if known else "The job has no units.",
                did_you_mean(name, known, otherwise="Leave it out, or add the field to the units."),
            )


def _check_used(job: Job, source: SqlSource | FilesSource | RestSource) -> None:
    """Refuse a source that would read the same for every cell."""
    named = set(_variables_in(plain_values(source)))
    is_cut = not job.time.grid.is_plain or job.time.grid.parts[0].period != "none"
    if isinstance(source, RestSource) and is_cut and not named & {"range.from", "range.to"}:
        raise invalid_option(
            "source",
            "The source names neither {{range.from}} nor {{range.to}}, and time is cut into cells.",
            "Each cell reads its own range; else each would read everything.",
            'Write for example params = { since = "{{range.from}}" }, or grid = "none".',
        )
    by_column = isinstance(source, SqlSource)  # a field that is not named in a query is a column of its rows
    if unit_fields(job) and not by_column and not any(name.startswith("unit.") for name in named):
        raise invalid_option(
            "source",
            "The source names no field of a unit, and there are units.",
            "Each unit reads its own rows; else each would read the same.",
            f"Write {{{{unit.{unit_fields(job)[0]}}}}} where the unit belongs, or take [units] out.",
        )


def _variables_in(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield from variable_names(value)
    elif isinstance(value, dict):
        for one in value.values():
            yield from _variables_in(one)
    elif isinstance(value, list):
        for one in value:
            yield from _variables_in(one)
