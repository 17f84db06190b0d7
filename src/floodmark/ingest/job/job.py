"""A job: what is read, when, and where it goes. Immutable, validated when created, without clock or I/O.

    Job
      time    TimeWatermark: from, to (Bound), grid (Grid), partial, grace, abstinence, settle
      units   UnitWatermark: Unit, ...  or None for a single unit `{}`
      source  SqlSource, FilesSource or RestSource; planning does not look at it
      target  Landing; planning only looks at its mode
      limits  Limits: cells per run, attempts before quarantine

A `Grid` describes how time is cut; `Job.cells(now)` computes the cells, because a start may be relative to now.
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
    """The time of a job: its bounds, its grid, and what it reads again or delays.

    >>> TimeWatermark("day", Bound.parse("2020-01-01", "UTC"), Bound.parse("P0D", "UTC"), Grid.plain("daily")).partial
    True
    """

    name: str
    from_: Bound
    to: Bound
    grid: Grid = field(default_factory=lambda: Grid.plain("none"))
    partial: bool = True
    """Whether the last cell is read before its period is over."""
    grace_days: int = 0
    """How many calendar days before a unit's frontier are read again in each run."""
    abstinence_days: int = 0
    """How many calendar days after the day of a success a cell is not read again."""
    settle: int = 0
    """The newest microseconds before now that are not read yet, because the source may still add rows."""

    def __post_init__(self) -> None:
        """Validate the bounds, the delays and the grid."""
        if self.from_.text == "-":
            raise RangeInvalid(
                "`from` is -.",
                rule="A range that starts now is empty.",
                remedy="Use a date, or a duration such as P7D.",
                name=self.name,
            )
        if self.from_.at is not None and self.to.at is not None and self.from_.at >= self.to.at:
            raise RangeInvalid(
                f"`from` is {self.from_} and `to` is {self.to}.",
                rule="`to` must be after `from`.",
                remedy="Swap `from` and `to`." if self.from_.at > self.to.at else "Use a later `to`.",
                name=self.name,
            )
        if self.from_.moves and self.to.moves and (self.from_.zone, self.from_.floor) == (self.to.zone, self.to.floor):
            from_age, to_age = ((bound.days, bound.hours, bound.minutes) for bound in (self.from_, self.to))
            if from_age < to_age:
                raise RangeInvalid(
                    f"`from` is {self.from_}, and `to` is {self.to}, which is earlier.",
                    rule="`to` must be after `from`.",
                    remedy="Swap `from` and `to`.",
                    name=self.name,
                )
        for what, value in (("grace", self.grace_days), ("abstinence", self.abstinence_days)):
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MAX_DAYS:
                raise JobInvalid(
                    f"The {what} is {value!r} days.",
                    rule=f"It must be an integer from 0 to {_MAX_DAYS}.",
                    remedy=f"Set {what}_days to 0 for none.",
                    what=what,
                    value=value,
                )
        if isinstance(self.settle, bool) or not isinstance(self.settle, int) or self.settle < 0:
            raise JobInvalid(
                f"The settle delay is {self.settle!r}.",
                rule="It must be an integer number of microseconds, 0 or more.",
                remedy="Use 0 for none, 600_000_000 for ten minutes.",
                value=self.settle,
            )
        self._check_grid()

    def _check_grid(self) -> None:
        """Require that the grid covers the fixed bounds; relative bounds are checked by each plan."""
        first, last = self.grid.parts[0], self.grid.parts[-1]
        if first.start is None:
            return
        if self.from_.at is not None and first.start.at is not None and self.from_.at < first.start.at:
            raise RangeInvalid(
                f"`from` is {self.from_}, and the grid starts at {first.start}.",
                rule="The parts of a grid must cover the job from `from` to `to`.",
                remedy="Start the first part at `from`.",
                name=self.name,
            )
        if last.end is not None and last.end.at is not None and self.to.at is not None and self.to.at > last.end.at:
            raise RangeInvalid(
                f"`to` is {self.to}, and the grid ends at {last.end}.",
                rule="The parts of a grid must cover the job from `from` to `to`.",
                remedy="Set the end of the last part to -.",
                name=self.name,
            )


@dataclass(frozen=True, slots=True)
class Limits:
    """How many cells a run may read, and how often a cell may fail.

    >>> Limits(cells=0)
    Traceback (most recent call last):
    floodmark.errors.JobInvalid: The limit of cells is 0. ... [job-invalid]
    """

    cells: int | None = 10_000
    """Cells per run; None for no limit."""
    attempts: int | None = 5
    """Consecutive failures after which a cell is quarantined until a manual retry; None for never."""

    def __post_init__(self) -> None:
        """Validate the limits."""
        for what, value, word in (("cells", self.cells, "all"), ("attempts", self.attempts, "unlimited")):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise JobInvalid(
                    f"The limit of {what} is {value!r}.",
                    rule="It must be an integer of at least 1.",
                    remedy=f"Omit it for the default; [limits] also takes {what} = {word!r} for no limit.",
                    what=what,
                    value=value,
                )


@dataclass(frozen=True, slots=True)
class Job:
    """A job: what is read, when, and where it goes.

    >>> day = TimeWatermark("day", Bound.parse("2020-01-01", "UTC"), Bound.parse("-", "UTC"), Grid.plain("daily"))
    >>> Job("orders", "UTC", day).listed_units
    (Unit(key='{}', fields=Frozen({})),)
    """

    name: str
    zone: str
    time: TimeWatermark
    units: UnitWatermark | None = None
    source: Any = field(default_factory=lambda: Frozen({}))
    """Where rows come from: a source object, or a mapping for a job that is only planned."""
    target: Any = field(default_factory=lambda: Frozen({"mode": "replace"}))
    """Where rows go: a `Landing`, or a mapping with a `mode` for a job that is only planned."""
    limits: Limits = Limits()
    compat: bool = False
    """Whether it is planned exactly as DIL does, which may leave gaps that are never read."""
    variables: Mapping[str, Any] = field(default_factory=lambda: Frozen({}))

    def __post_init__(self) -> None:
        """Validate the job as a whole."""
        check_id("name of the job", self.name)
        zone_of(self.zone)
        for name in ("source", "target", "variables"):
            if isinstance(value := getattr(self, name), Mapping) and not isinstance(value, Frozen):
                object.__setattr__(self, name, Frozen(value))
        mode = mode_of(self.target)
        if mode not in MODES:
            raise JobInvalid(
                f"The mode of the target is {mode!r}.",
                rule=f"It must be one of {', '.join(MODES)}.",
                remedy="Use replace for rows that never change, merge for rows that do.",
                mode=mode,
            )
        if self.time.grace_days and mode == "append":
            raise JobInvalid(
                f"The job {self.name!r} reads {self.time.grace_days} days again in each run, in the mode append.",
                rule="Reading a range again needs the mode replace or merge; append would duplicate its rows.",
                remedy='Set mode = "replace" or mode = "merge" in [target], or grace_days = 0.',
                job=self.name,
                grace_days=self.time.grace_days,
            )

    @property
    def listed_units(self) -> tuple[Unit, ...]:
        """The units of the job; a single unit without fields if it has no [units]."""
        if self.units is None:
            return (SOLE_UNIT,)
        if self.units.units is None:
            raise JobInvalid(
                f"The units {self.units.name!r} of the job {self.name!r} are not read yet.",
                rule="A plan needs the units of the secondary input.",
                remedy="Call floodmark.ingest.with_units(job) first.",
                job=self.name,
            )
        return self.units.units

    def with_units(self, units: tuple[Unit, ...]) -> Self:
        """Return the job with the units of its secondary input."""
        assert self.units is not None
        return replace(self, units=replace(self.units, units=units))

    def reach(self, now: int) -> Range:
        """Return the range that the job reads at the time `now`; it is empty if `hi` is not above `lo`.

        The end is at most now minus the settle delay, rounded down to the unit of `to`.
        """
        lo = self.time.from_.resolve(now, self.zone)
        hi = self.time.to.resolve(now, self.zone)
        settled = now - self.time.settle
        if hi > settled:
            hi = min(hi, floor_moment(settled, self.time.to.floor, self.time.to.zone or self.zone))
        return Range(lo, hi)

    def cells(self, now: int) -> Cells:
        """Return the cells of the grid as of `now`."""
        return self.time.grid.cells_from(self.time.from_, now, self.zone)

    def described(self) -> dict[str, Any]:
        """Return the settings that affect planning, as JSON without secrets, to be stored and compared."""
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
        """Format a moment in the job's zone."""
        return format_moment(micros, zone_of(self.zone))


def mode_of(target: Any) -> object:
    """Return the mode of a target.

    >>> mode_of({"mode": "merge"})
    'merge'
    """
    return target.get("mode") if isinstance(target, Mapping) else getattr(target, "mode", None)


Mode = Literal["append", "replace", "merge"]
Drift = Literal["evolve", "freeze", "rescue"]
DRIFTS: Final = ("evolve", "freeze", "rescue")


@dataclass(frozen=True, slots=True)
class Landing:
    """The target of a job: a Delta table, or a Floodmark stream.

    >>> Landing(path="landed/orders", mode="merge", keys=("id",), newest_by="updated_at").kind
    'delta'
    """

    mode: Mode
    """append adds rows; replace overwrites the rows of the same range; merge keeps the newest row of each key."""
    path: str | None = None
    """The directory of a Delta table."""
    stream: str | None = None
    """The name of a stream in the home. Exactly one of `path` and `stream` is set."""
    keys: tuple[str, ...] = ()
    """For merge: the key columns of a row."""
    newest_by: str | None = None
    """For merge: of two rows with the same key, the one with the larger value in this column is kept.

    The default is the watermark column; for files, `_file_time` unless the time is in a column.
    """
    range_column: str | None = None
    """For replace: the column whose range is overwritten; the default is as for `newest_by`."""
    partition_by: tuple[str, ...] = ()
    drift: Drift = "freeze"
    """What to do with columns that the table lacks: add them, fail the cell, or keep them in a JSON column."""

    @property
    def kind(self) -> Literal["delta", "stream"]:
        """Whether the target is a Delta table or a stream."""
        return "delta" if self.path is not None else "stream"

    def __post_init__(self) -> None:
        """Validate the target."""
        require_one_of("mode", self.mode, MODES)
        require_one_of("drift", self.drift, DRIFTS)
        if (self.path is None) == (self.stream is None):
            raise invalid_option(
                "path",
                "The target has both a path and a stream." if self.path else "The target has neither path nor stream.",
                "A target is either a Delta table (path) or a stream (stream).",
                'Set either path = "landed/orders" or stream = "orders".',
            )
        require_text("path" if self.path is not None else "stream", self.path or self.stream)
        if (self.mode == "merge") != bool(self.keys):
            raise invalid_option(
                "keys",
                f"The mode is {self.mode!r}, and there are {len(self.keys) or 'no'} keys.",
                "The mode merge needs keys; other modes do not take them.",
                'Add keys = ["id"].' if self.mode == "merge" else 'Remove keys, or set mode = "merge".',
            )
        if len(set(self.keys)) != len(self.keys):
            raise invalid_option("keys", "A key is listed twice.", "Each key is listed once.", "Remove the duplicate.")
        for name, mode in (("newest_by", "merge"), ("range_column", "replace")):
            if getattr(self, name) is not None and self.mode != mode:
                raise invalid_option(
                    name,
                    f"The mode is {self.mode!r}, and {name} is set.",
                    f"{name} is only for the mode {mode}.",
                    f"Remove {name}.",
                )
        if self.stream is not None and (self.mode == "replace" or self.partition_by):
            raise invalid_option(
                "mode" if self.mode == "replace" else "partition_by",
                f"The target is a stream, and its mode is {self.mode!r}."
                if self.mode == "replace"
                else "The target is a stream, and partition_by is set.",
                "A stream is append-only and partitioned by its segments: its modes are append and merge.",
                'Set mode = "append" or mode = "merge".' if self.mode == "replace" else "Remove partition_by.",
            )


def check_job(job: Job) -> None:
    """Raise `InvalidOption` if source, units and target of a job contradict each other."""
    source, target = job.source, job.target
    if not isinstance(source, SqlSource | FilesSource | RestSource):
        return
    _check_unit_fields(job, source)
    _check_cells_differ(job, source)
    if not isinstance(target, Landing):
        return
    if isinstance(source, SqlSource) and source.nulls == "read" and target.mode != "merge":
        raise invalid_option(
            "source.nulls",
            f"Rows without a watermark are read in each run, and the target's mode is {target.mode!r}.",
            "Rows that are read in each run must be merged by key, or they would be duplicated.",
            'Set nulls = "skip", set fallback to another column, or set mode = "merge".',
        )
    if target.mode == "merge" and target.newest_by is None and watermark_column(source) is None:
        raise invalid_option(
            "target.newest_by",
            "It is undefined which of two rows with the same key is newer.",
            "Without a watermark column, the mode merge needs newest_by.",
            'Add newest_by = "COLUMN" to [target].',
        )
    if target.mode == "replace" and target.range_column is None and watermark_column(source) is None:
        raise invalid_option(
            "target.range_column",
            "It is undefined by which column the rows of a range are replaced.",
            "Without a watermark column, the mode replace needs range_column.",
            'Add range_column = "COLUMN" to [target].',
        )


def unit_fields(job: Job) -> tuple[str, ...]:
    """Return the field names of a job's units.

    >>> unit_fields(Job("a", "UTC", TimeWatermark("t", Bound.parse("2020-01-01", "UTC"), Bound.parse("-", "UTC"))))
    ()
    """
    if job.units is None:
        return ()
    if isinstance(job.units.secondary, SecondaryInput):
        return job.units.secondary.fields
    return tuple(job.units.units[0].fields) if job.units.units else ()


def _check_unit_fields(job: Job, source: SqlSource | FilesSource | RestSource) -> None:
    fields = unit_fields(job)
    names = [name.removeprefix("unit.") for name in _variables_in(plain_values(source)) if name.startswith("unit.")]
    if isinstance(source, SqlSource):
        names += list(source.units)
    for name in names:
        if name not in fields:
            raise invalid_option(
                "source",
                f"The source uses the field {name!r} of a unit.",
                f"The units of the job have the fields {', '.join(fields)}." if fields else "The job has no units.",
                did_you_mean(name, fields, otherwise="Remove it, or add the field to [units]."),
            )


def _check_cells_differ(job: Job, source: SqlSource | FilesSource | RestSource) -> None:
    """Require that the source depends on the range and the unit, or every cell would read the same rows."""
    names = set(_variables_in(plain_values(source)))
    is_cut = not job.time.grid.is_plain or job.time.grid.parts[0].period != "none"
    if isinstance(source, RestSource) and is_cut and not names & {"range.from", "range.to"}:
        raise invalid_option(
            "source",
            "The source uses neither {{range.from}} nor {{range.to}}, and the grid has several cells.",
            "The request must depend on the range, or every cell would read all rows.",
            'Set for example params = { since = "{{range.from}}" }, or grid = "none".',
        )
    by_column = isinstance(source, SqlSource)  # SQL selects units by the column with the name of the field
    if unit_fields(job) and not by_column and not any(name.startswith("unit.") for name in names):
        raise invalid_option(
            "source",
            "The source uses no field of the units.",
            "The source must depend on the unit, or every unit would read the same rows.",
            f"Use {{{{unit.{unit_fields(job)[0]}}}}} in [source], or remove [units].",
        )


def _variables_in(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield from variable_names(value)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _variables_in(item)
    elif isinstance(value, list):
        for item in value:
            yield from _variables_in(item)
