"""A Delta table as the target of a job: a range is staged, committed with what it replaces, and then recorded.

Each commit of a job has the next number of the job, and a run begins with a commit of its own: that fences earlier
runs, which find their number taken. Each commit says which range it landed. If the process dies before the home knows,
the next run finds that out from the table, records it, and does not land it again.
"""

import hashlib
import json
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock
from typing import Any, Final

import pyarrow as pa
from deltalake import Schema

from floodmark.control import Home
from floodmark.delta import DeltaCommits, StagedFile
from floodmark.delta.staging import Staging
from floodmark.errors import LandingOvertaken, TableConflict, TableFailed, TargetTaken
from floodmark.ingest.calendar.clock import day_number, zone_of
from floodmark.ingest.calendar.ranges import Range, Ranges, merged, subtract
from floodmark.ingest.ingestion import Ingestion
from floodmark.ingest.job.job import Job, Landing
from floodmark.ingest.job.source import WATERMARK_TYPES, WatermarkType, watermark_column
from floodmark.ingest.job.unit import Unit
from floodmark.ingest.landing.tasks import (
    Destination,
    LiveFile,
    MergeRequest,
    Scope,
    StagedRows,
    TableTasks,
    live_files,
    may_share_keys,
)
from floodmark.ingest.planning.plan import PlannedRange
from floodmark.ingest.run import LandingResult, Run
from floodmark.ingest.store.jobs import Attempt

BEGUN: Final = "begun"
STAGED: Final = "staged"
COMMITTED: Final = "committed"
FAILPOINTS: Final = (BEGUN, STAGED, COMMITTED)
"""Where a test may let a process die."""

_TRIES: Final = 5
_REREAD_EVENTS: Final = ("backfill", "edit")
"""What people do to have something read again."""


@dataclass(slots=True)
class _TableChange:
    """What a commit is to do, and the directories that it leaves behind."""

    staged: list[StagedRows]
    gone: tuple[str, ...] = ()
    rows: int = 0
    rows_before: int | None = None
    spare: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class CommittedRange:
    """A cell that a commit has landed."""

    run: int
    unit: Unit
    range: Range
    rows: int
    attempt: str


class TableClaim:
    """A run's right to land in a table. One thread at a time."""

    def __init__(self, table: DeltaCommits, run: Run, home: str) -> None:
        """Claim a table that is open, and that this run has made unless it calls `begin`. `home` is where the home is.

        Nothing is written here.
        """
        self.table = table
        self._run = run
        self._home = _digest(home)
        self._owner = int(_digest(run.job.name), 16)
        self._last = 0

    def check_owner(self) -> None:
        """Refuse a table in which another job lands."""
        found = self.table.last_number(OWNER)
        if found is None or found == self._owner:
            return
        said = (one.get(_JOB) for one in self.table.said_by_all())
        other = next((name for name in said if name and name != self._run.job.name), "another job")
        raise TargetTaken(
            f"The table {self.table.path} is where {other!r} lands.",
            rule="One job lands in a table: what a cell stands for is replaced as a whole, also what others put there.",
            remedy="Name another path, or read what that job lands.",
            table=str(self.table.path),
            job=self._run.job.name,
        )

    def begin(self) -> None:
        """Let nobody land any more who began earlier."""
        newest = self.table.newest()
        said = {} if newest is None else newest.metadata
        if said.get(_HOME) == self._home and int(said.get(_TOKEN, 0)) > self._run.token:
            raise self._overtaken()
        self._last = self.table.number
        self.commit((), {}, ())

    def landed_since(self, ended: Mapping[int, int]) -> Iterator[CommittedRange]:
        """Give the cells that runs of the same home have landed and may not have recorded, the newest first.

        `ended` are the runs that came to their end, and how many cells of each have failed. The last of them that is
        seen here has looked at all that was landed before it began. A cell may be landed, and fail all the same.
        """
        first = 0
        for one in self.table.said_by_all():
            if one.get(_JOB) != self._run.job.name or one.get(_HOME) != self._home:
                continue
            number = int(one[_RUN])
            if number < first:
                return
            if number in ended:
                if not ended[number]:
                    return
                first = number
            if _CELL in one:
                cell = json.loads(one[_CELL])
                yield CommittedRange(
                    number,
                    Unit.load(cell["unit"]),
                    Range(cell["lo"], cell["hi"]),
                    int(one[_ROWS]),
                    one[_ATTEMPT],
                )

    def commit_cell(
        self, cell: CommittedRange, files: Iterable[StagedFile], remove: Iterable[str], *, next_version: bool
    ) -> None:
        """Land a cell; with `next_version` only if nobody at all has committed since the table was looked at."""
        told = {"unit": cell.unit.key, "lo": cell.range.lo, "hi": cell.range.hi}
        self.commit(
            files, {_CELL: json.dumps(told), _ROWS: str(cell.rows), _ATTEMPT: cell.attempt}, remove, next_version
        )

    def commit(
        self, files: Iterable[StagedFile], said: dict[str, str], remove: Iterable[str], next_version: bool = False
    ) -> None:
        """Commit under the next number, or raise what says that another run has taken it.

        A TableConflict is raised where somebody else has changed what was looked at: look again, and decide again.
        """
        if self.table.number != self._last:
            raise self._overtaken()
        run, number = self._run, self._last + 1
        about = {_JOB: run.job.name, _RUN: str(run.number), _TOKEN: str(run.token), _HOME: self._home}
        try:
            also = {OWNER: self._owner}
            self.table.commit(files, number, {**about, **said}, remove=remove, also=also, next_version=next_version)
        except (TableConflict, TableFailed):
            # The answer may be lost, and the commit made.
            self.table.reload()
            newest = self.table.newest() if self.table.number == number else None
            is_ours = newest is not None and newest.metadata.get(_TOKEN) == str(run.token)
            if not (is_ours and newest is not None and newest.metadata.get(_ATTEMPT) == said.get(_ATTEMPT)):
                self.check_owner()
                if self.table.number != self._last:
                    raise self._overtaken() from None
                raise
        self._last = number

    def _overtaken(self) -> LandingOvertaken:
        return LandingOvertaken(
            f"Another run has begun to land in {self.table.path} since the run {self._run.number} has.",
            rule="One run of a job lands at a time, the one that began last.",
            remedy="Let the other run end. If there is none, start again: what was landed stays.",
            job=self._run.job.name,
            run=self._run.number,
        )


class TableLanding:
    """Lands the cells of a job in its table, for one run. Several threads may land at once."""

    def __init__(
        self,
        home: Home,
        job: Job,
        tasks: TableTasks,
        *,
        unit_columns: Mapping[str, str],
        zone: str,
        failpoint: Callable[[str], None] = lambda place: None,
    ) -> None:
        """Land for a job. `unit_columns` says which column a field of a unit is, `zone` where wall times count."""
        assert isinstance(job.target, Landing)
        assert job.target.path is not None
        self._home = home
        self._job = job
        self._target = job.target
        self._path = Path(job.target.path).absolute()
        self._app = app_id(job.name)
        self._staging = Staging(self._path, self._app)
        self._tasks = tasks
        self._unit_columns = unit_columns
        self._zone = zone
        self._failpoint = failpoint
        self._claim: TableClaim | None = None
        self._shape: tuple[pa.Schema, tuple[str, ...]] | None = None
        self._left_out: dict[str, Ranges] = {}
        self._committing = Lock()
        self._making = Lock()

    def prepare(self, run: Run) -> None:
        """Look what is there, take over from earlier runs, and record what they have landed and could not say."""
        if not run.plan.rows:
            return
        table = DeltaCommits.find(self._path, self._app)
        if table is None:
            return
        self._claim = TableClaim(table, run, self._home.location)
        self._check(self._claim)
        run.renew()
        # Whoever begins later stages more, and that is not for this run to remove.
        noted = self._staging.open()
        self._claim.begin()
        self._failpoint(BEGUN)
        self._adopt(run, self._claim)
        table.sweep(noted)
        self._shape = table.arrow_schema, table.partition_by

    def land(self, run: Run, row: PlannedRange) -> LandingResult:
        """Extract and land what a row of the plan is about, but for what is landed and must not be twice."""
        rows, late = 0, 0
        for left in subtract([row.range], merged(self._left_out.get(row.unit.key, ()))):
            change = self._landed(run, replace(row, range=left))
            rows += change.rows
            if change.rows_before is not None:
                late += change.rows - change.rows_before
        if row.reason != "grace" or late <= 0:
            return LandingResult(rows)
        zone = zone_of(self._job.zone)
        return LandingResult(rows, {day_number(self._home.now(), zone) - day_number(row.range.lo, zone): late})

    def _landed(self, run: Run, row: PlannedRange) -> _TableChange:
        with self._until_made():
            for _ in range(_TRIES):
                attempt = secrets.token_hex(8)
                to = self._destination(row, attempt)
                try:
                    staged = self._tasks.extract(row, to)
                except BaseException:
                    self._staging.remove([attempt])
                    raise
                self._failpoint(STAGED)
                # If the commit ends in an error, it may have been made: the next run looks, and removes what is left.
                with self._committing:
                    change = self._commit(run, row, staged, to, attempt)
                if change is not None:
                    self._failpoint(COMMITTED)
                    self._tidy(attempt, change)
                    return change
                self._staging.remove([attempt])
        raise TableFailed(
            f"The table {self._path} was changed by others {_TRIES} times while a cell was landed.",
            rule="What a cell replaces is looked at and replaced at once.",
            remedy="Let others write to it less often; the cell stays due.",
            table=str(self._path),
        )

    def _commit(
        self, run: Run, row: PlannedRange, staged: StagedRows, to: Destination, attempt: str
    ) -> _TableChange | None:
        """Commit a cell; return None if the table's columns have changed since, so that it must be written again."""
        claim = self._claimed(run, staged)
        if claim is None:
            return _TableChange([staged])
        for _ in range(_TRIES):
            fits = self._take_columns(claim.table, staged)
            self._shape = claim.table.arrow_schema, claim.table.partition_by
            if not fits:
                return None
            change = self._changed(staged, replace(to, schema=self._shape[0]), claim.table)
            files = [file for one in change.staged for file in one.files]
            cell = CommittedRange(run.number, row.unit, row.range, change.rows, attempt)
            # What others have added since may be what is to be replaced.
            is_alone = self._target.mode != "append"
            try:
                claim.commit_cell(cell, files, change.gone, next_version=is_alone)
            except TableConflict:
                self._staging.remove(change.spare)
            else:
                return change
        return None

    def _changed(self, staged: StagedRows, to: Destination, table: DeltaCommits) -> _TableChange:
        target = self._target
        if target.mode == "append":
            return _TableChange([staged], rows=staged.rows)
        known = table.files()
        beside = secrets.token_hex(8)
        if target.mode == "merge":
            if not staged.rows:
                return _TableChange([staged])
            newest_by = target.newest_by or watermark_column(self._job.source)
            assert newest_by is not None
            new = [LiveFile(self._path, file.path, file.rows, file.partition) for file in staged.files]
            live = live_files(self._path, known.filter(may_share_keys(known, staged.files, target.keys)))
            merge = MergeRequest(new, live, target.keys, newest_by)
            merged_rows = self._tasks.merge(merge, _rewrite_destination(to, table, beside))
            return _TableChange([merged_rows.staged], merged_rows.gone, staged.rows, spare=[beside])
        assert to.scope is not None
        touched = self._touched(to.scope, known, table.arrow_schema)
        partly = [file for file, held, rows in touched if held < rows]
        change = _TableChange([staged], tuple(file.path for file, _, _ in touched), staged.rows)
        change.rows_before = sum(held for _, held, _ in touched)
        if partly:
            change.spare.append(beside)
            change.staged.append(self._tasks.keep(partly, to.scope, _rewrite_destination(to, table, beside)))
        return change

    def _touched(self, scope: Scope, known: pa.Table, schema: pa.Schema) -> list[tuple[LiveFile, int, int]]:
        """Return the files with rows in a scope, how many these are, and how many each has."""
        if any(name not in schema.names for name in (scope.column, *scope.unit)):
            return []
        found = (
            (file, *file.held(scope, schema)) for file in live_files(self._path, known.filter(scope.may_hold(known)))
        )
        return [(file, held, rows) for file, held, rows in found if held]

    def _claimed(self, run: Run, staged: StagedRows) -> TableClaim | None:
        if self._claim is None:
            if staged.schema is None or not staged.schema.names:
                return None
            schema = Schema.from_arrow(staged.schema).to_json()
            table = DeltaCommits.open(self._path, self._app, schema, partition_by=self._target.partition_by)
            claim = TableClaim(table, run, self._home.location)
            self._check(claim)
            self._claim = claim
        return self._claim

    def _take_columns(self, table: DeltaCommits, staged: StagedRows) -> bool:
        """Give the table the columns that rows have brought; return False if they do not fit it as it is now."""
        new = _new_or_changed_columns(staged.schema, table.arrow_schema)
        if not new:
            return True
        if self._target.drift == "freeze" or any(one.name in table.arrow_schema.names for one in new):
            return False
        fields = Schema.from_arrow(pa.schema([one.with_nullable(True) for one in new])).to_json()
        table.add_columns(json.dumps(json.loads(fields)["fields"]))
        return True

    def _check(self, claim: TableClaim) -> None:
        claim.check_owner()
        claim.table.check()
        have, asked = claim.table.partition_by, self._target.partition_by
        if asked and have != asked:
            raise TableFailed(
                f"The table {self._path} is partitioned by {', '.join(have) or 'nothing'}.",
                rule=f"The job lands in a table that is partitioned by {', '.join(asked)}.",
                remedy="Leave partition_by out, or name another path.",
                table=str(self._path),
            )

    def _adopt(self, run: Run, claim: TableClaim) -> None:
        jobs, name, appends = Ingestion(self._home), self._job.name, self._target.mode == "append"
        earlier = {one.run: one for one in jobs.history(name, limit=None) if one.run < run.number}
        ended = {one.run: one.failed for one in earlier.values() if one.state == "done"}
        # Whoever has begun since records for itself.
        cells = [cell for cell in claim.landed_since(ended) if cell.run in earlier]
        first = min((cell.run for cell in cells), default=run.number)
        attempts = [one for number in earlier if number >= first for one in jobs.attempts(name, number)]
        unknown = unrecorded_ranges(cells, attempts)
        # What somebody has wanted to be read since then is read: it takes the place of what is there.
        events = jobs.events(name) if unknown and not appends else ()
        asked = max((one.at for one in events if one.kind in _REREAD_EVENTS), default=0)
        found: dict[str, list[Range]] = {}
        for cell in unknown:
            if earlier[cell.run].started_at >= asked:
                run.adopt(cell.unit, cell.range, rows=cell.rows)
                found.setdefault(cell.unit.key, []).append(cell.range)
        # A row that has failed is due as a whole, also what was landed of it.
        known = jobs.coverage(name) if appends else {}
        self._left_out = {**found, **{key: one.everything for key, one in known.items()}}

    def _destination(self, row: PlannedRange, attempt: str) -> Destination:
        # The table itself is for whoever commits.
        schema, partition_by = self._shape or (None, self._target.partition_by)
        return Destination(
            self._path,
            self._staging.begin(attempt),
            schema,
            self._target.drift,
            self._unit_values(row),
            self._target.keys,
            self._scope(row) if self._target.mode == "replace" else None,
            partition_by,
        )

    def _scope(self, row: PlannedRange) -> Scope:
        source = self._job.source
        column = self._target.range_column or watermark_column(source)
        assert column is not None
        pattern = getattr(source, "pattern", None) if column == watermark_column(source) else None
        return Scope(column, row.range, self._zone, self._unit_values(row), _epoch_type(source), pattern)

    def _unit_values(self, row: PlannedRange) -> dict[str, Any]:
        return {self._unit_columns.get(name, name): value for name, value in row.unit.fields.items()}

    @contextmanager
    def _until_made(self) -> Iterator[None]:
        """Let one cell at a time be landed while there is no table: the first one says what columns it has."""
        if self._shape is not None:
            yield
            return
        with self._making:
            yield

    def _tidy(self, attempt: str, change: _TableChange) -> None:
        """Remove what was written for a commit, and it does not name: tasks may have been tried twice."""
        kept = {self._path / file.path for one in change.staged for file in one.files}
        for name in (attempt, *change.spare):
            _remove_others(self._staging.directory(name), kept)
            self._staging.over(name)


def _rewrite_destination(to: Destination, table: DeltaCommits, attempt: str) -> Destination:
    """Return where rows go that were in the table before: they fit it."""
    return replace(to, directory=table.staging.begin(attempt), drift="freeze", constants={}, keys=(), scope=None)


def _remove_others(directory: Path, kept: set[Path]) -> None:
    for path in directory.rglob("*") if directory.is_dir() else ():
        if path.is_file() and path not in kept:
            path.unlink(missing_ok=True)
    if not any(path.is_file() for path in directory.rglob("*")):
        shutil.rmtree(directory, ignore_errors=True)


def _epoch_type(source: Any) -> WatermarkType | None:
    kind: Any = getattr(source, "watermark_type", None) or getattr(source, "time_format", None)
    return next((one for one in WATERMARK_TYPES if one == kind and one.startswith("epoch-")), None)


def _new_or_changed_columns(rows: pa.Schema | None, table: pa.Schema) -> list[pa.Field]:
    """Return the columns of rows that a table does not have, or has with another type."""
    kinds = {one.name: one.type for one in table}
    return [one for one in rows or () if kinds.get(one.name) != one.type]


OWNER: Final = "floodmark.ingest.owner"
_CELL: Final = "floodmark.cell"
_RUN: Final = "floodmark.run"
_TOKEN: Final = "floodmark.token"
_HOME: Final = "floodmark.home"
_JOB: Final = "floodmark.job"
_ATTEMPT: Final = "floodmark.attempt"
_ROWS: Final = "floodmark.rows"


def app_id(job: str) -> str:
    """Return the name under which a job commits.

    >>> app_id("orders")
    'floodmark.ingest.orders'
    """
    return f"floodmark.ingest.{job}"


def unrecorded_ranges(landed: Iterable[CommittedRange], attempts: Iterable[Attempt]) -> list[CommittedRange]:
    """Return the cells that were landed and are not recorded.

    A cell may be recorded as a part of its row, or by a later run that has found it.

    >>> unrecorded_ranges([CommittedRange(1, Unit.of({}), Range(0, 10), 3, "a")], [])[0].rows
    3
    """
    known: dict[str, list[Attempt]] = {}
    for attempt in attempts:
        if attempt.state != "failed":
            known.setdefault(attempt.unit.key, []).append(attempt)
    exact = {(one.run, key, one.range) for key, some in known.items() for one in some}

    def is_recorded(cell: CommittedRange) -> bool:
        # Most are recorded as they are; the others are few.
        return (cell.run, cell.unit.key, cell.range) in exact or any(
            one.run >= cell.run and one.range.lo <= cell.range.lo and cell.range.hi <= one.range.hi
            for one in known.get(cell.unit.key, ())
        )

    return [cell for cell in landed if not is_recorded(cell)]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:15]
