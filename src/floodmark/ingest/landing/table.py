"""A Delta table as the target of a job: a cell is staged, committed with what it replaces, and then recorded.

The commits of a job are numbered, and each run begins with an empty commit. That fences earlier runs: their next commit
finds its number taken. The metadata of each commit names the cell that it landed. If the process dies before the cell
is recorded in the home, the next run finds it in the table's log, records it, and does not land it again.
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
from floodmark.ingest.calendar.ranges import Range, Ranges, merge_ranges, subtract
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
"""The points at which a test can kill the process."""

_MOST_ATTEMPTS: Final = 5
_REREAD_EVENTS: Final = ("backfill", "edit")
"""The manual events after which ranges are read again."""


@dataclass(slots=True)
class _TableChange:
    """What one commit adds and removes."""

    staged: list[StagedRows]
    removed: tuple[str, ...] = ()
    rows: int = 0
    rows_before: int | None = None
    """How many rows the cell had in the table before; None if it was not counted."""
    rewrites: list[str] = field(default_factory=list)
    """The staging attempts that hold rows of the table that were written again."""


@dataclass(frozen=True, slots=True)
class CommittedRange:
    """A cell that a commit has landed."""

    run: int
    unit: Unit
    range: Range
    rows: int
    attempt: str


class TableClaim:
    """A run's right to land in a table. For one thread at a time."""

    def __init__(self, table: DeltaCommits, run: Run, home: str) -> None:
        """Claim an open table for a run; `home` is the address of the home. Nothing is written.

        Call `fence_earlier_runs` next, unless this run has created the table.
        """
        self.table = table
        self._run = run
        self._home = _digest(home)
        self._owner = int(_digest(run.job.name), 16)
        self._last = 0

    def check_owner(self) -> None:
        """Refuse a table in which another job lands."""
        owner = self.table.last_number(OWNER)
        if owner is None or owner == self._owner:
            return
        jobs = (metadata.get(_JOB) for metadata in self.table.commit_metadata())
        other = next((name for name in jobs if name and name != self._run.job.name), "another job")
        raise TargetTaken(
            f"The job {other!r} lands in the table {self.table.path}.",
            rule="Only one job lands in a table: replacing a cell would delete rows of the other job.",
            remedy="Name another path in [target].",
            table=str(self.table.path),
            job=self._run.job.name,
        )

    def fence_earlier_runs(self) -> None:
        """Make an empty commit, so that earlier runs cannot commit any more."""
        newest = self.table.newest_commit()
        metadata = {} if newest is None else newest.metadata
        if metadata.get(_HOME) == self._home and int(metadata.get(_TOKEN, 0)) > self._run.token:
            raise self._overtaken()
        self._last = self.table.number
        self.commit((), {}, ())

    def recently_landed(self, ended: Mapping[int, int]) -> Iterator[CommittedRange]:
        """Yield the cells that runs of this home have landed and may not have recorded, the newest first.

        `ended` maps the runs that ended to their number of failed cells. An ended run had adopted all cells landed
        before it began, so the search stops there. If some of its cells failed, its own cells are still included: a
        cell can be committed and fail before it is recorded.
        """
        first = 0
        for metadata in self.table.commit_metadata():
            if metadata.get(_JOB) != self._run.job.name or metadata.get(_HOME) != self._home:
                continue
            number = int(metadata[_RUN])
            if number < first:
                return
            if number in ended:
                if not ended[number]:
                    return
                first = number
            if _CELL in metadata:
                cell = json.loads(metadata[_CELL])
                yield CommittedRange(
                    number,
                    Unit.load(cell["unit"]),
                    Range(cell["lo"], cell["hi"]),
                    int(metadata[_ROWS]),
                    metadata[_ATTEMPT],
                )

    def commit_cell(
        self, cell: CommittedRange, files: Iterable[StagedFile], remove: Iterable[str], *, next_version: bool
    ) -> None:
        """Land a cell; with `next_version` only if no other writer has committed since the table was loaded."""
        key = {"unit": cell.unit.key, "lo": cell.range.lo, "hi": cell.range.hi}
        self.commit(
            files, {_CELL: json.dumps(key), _ROWS: str(cell.rows), _ATTEMPT: cell.attempt}, remove, next_version
        )

    def commit(
        self, files: Iterable[StagedFile], metadata: dict[str, str], remove: Iterable[str], next_version: bool = False
    ) -> None:
        """Commit under the job's next number; raise LandingOvertaken if another run has taken that number.

        After a TableConflict, another writer has changed the table: load it again and plan the change again.
        """
        if self.table.number != self._last:
            raise self._overtaken()
        run, number = self._run, self._last + 1
        about = {_JOB: run.job.name, _RUN: str(run.number), _TOKEN: str(run.token), _HOME: self._home}
        try:
            also = {OWNER: self._owner}
            self.table.commit(files, number, {**about, **metadata}, remove=remove, also=also, next_version=next_version)
        except (TableConflict, TableFailed):
            # The commit may have succeeded and only its reply been lost.
            self.table.reload()
            newest = self.table.newest_commit() if self.table.number == number else None
            is_ours = newest is not None and newest.metadata.get(_TOKEN) == str(run.token)
            if not (is_ours and newest is not None and newest.metadata.get(_ATTEMPT) == metadata.get(_ATTEMPT)):
                self.check_owner()
                if self.table.number != self._last:
                    raise self._overtaken() from None
                raise
        self._last = number

    def _overtaken(self) -> LandingOvertaken:
        return LandingOvertaken(
            f"Another run has begun to land in {self.table.path} after run {self._run.number} began.",
            rule="Only the run of a job that began last may land.",
            remedy="Wait for the other run to end. If none is running, run the job again: landed cells are kept.",
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
        """Prepare to land the cells of a job. Nothing is written before `prepare`.

        Args:
            home: The home of the job.
            job: A job whose target is a table.
            tasks: Reads and writes the rows.
            unit_columns: The column of each unit field, where it differs from the field's name.
            zone: The time zone of timestamps without a zone.
            failpoint: Called with each of FAILPOINTS as it is reached; for tests.
        """
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
        """The schema and the partition columns of the table; None before it exists."""
        self._already_landed: dict[str, Ranges] = {}
        self._commit_lock = Lock()
        self._create_lock = Lock()

    def prepare(self, run: Run) -> None:
        """Check the table, fence earlier runs, and record the cells that they landed but did not record."""
        if not run.plan.rows:
            return
        table = DeltaCommits.find(self._path, self._app)
        if table is None:
            return
        self._claim = TableClaim(table, run, self._home.address)
        self._check_table(self._claim)
        run.renew()
        # List the staging attempts before fencing: a run that begins later stages its own, which must not be removed.
        attempts = self._staging.open_attempts()
        self._claim.fence_earlier_runs()
        self._failpoint(BEGUN)
        self._adopt_landed_cells(run, self._claim)
        table.sweep(attempts)
        self._shape = table.arrow_schema, table.partition_by

    def land(self, run: Run, row: PlannedRange) -> LandingResult:
        """Extract and land a planned range, except the parts that are landed already and must not be landed twice."""
        rows, late = 0, 0
        for rest in subtract([row.range], merge_ranges(self._already_landed.get(row.unit.key, ()))):
            change = self._land_range(run, replace(row, range=rest))
            rows += change.rows
            if change.rows_before is not None:
                late += change.rows - change.rows_before
        if row.reason != "grace" or late <= 0:
            return LandingResult(rows)
        zone = zone_of(self._job.zone)
        return LandingResult(rows, {day_number(self._home.now(), zone) - day_number(row.range.lo, zone): late})

    def _land_range(self, run: Run, row: PlannedRange) -> _TableChange:
        with self._one_at_a_time_until_created():
            for _ in range(_MOST_ATTEMPTS):
                attempt = secrets.token_hex(8)
                to = self._destination(row, attempt)
                try:
                    staged = self._tasks.extract(row, to)
                except BaseException:
                    self._staging.remove([attempt])
                    raise
                self._failpoint(STAGED)
                # After an error the outcome of the commit is unknown, so the files stay: the next run adopts or
                # removes them.
                with self._commit_lock:
                    change = self._commit(run, row, staged, to, attempt)
                if change is not None:
                    self._failpoint(COMMITTED)
                    self._remove_leftovers(attempt, change)
                    return change
                self._staging.remove([attempt])
        raise TableFailed(
            f"Other writers changed the table {self._path} {_MOST_ATTEMPTS} times while a cell was landed.",
            rule="A cell is replaced only if the table has not changed since it was read.",
            remedy="Pause the other writers and run the job again: the cell stays due.",
            table=str(self._path),
        )

    def _commit(
        self, run: Run, row: PlannedRange, staged: StagedRows, to: Destination, attempt: str
    ) -> _TableChange | None:
        """Commit a cell; return None if the table's columns have changed, so that its rows must be written again."""
        claim = self._claim_or_create(run, staged)
        if claim is None:
            return _TableChange([staged])
        for _ in range(_MOST_ATTEMPTS):
            fits = self._add_columns(claim.table, staged)
            self._shape = claim.table.arrow_schema, claim.table.partition_by
            if not fits:
                return None
            change = self._plan_change(staged, replace(to, schema=self._shape[0]), claim.table)
            files = [file for part in change.staged for file in part.files]
            cell = CommittedRange(run.number, row.unit, row.range, change.rows, attempt)
            # Rows that other writers have added since may belong to those that this commit replaces.
            is_replacing = self._target.mode != "append"
            try:
                claim.commit_cell(cell, files, change.removed, next_version=is_replacing)
            except TableConflict:
                self._staging.remove(change.rewrites)
            else:
                return change
        return None

    def _plan_change(self, staged: StagedRows, to: Destination, table: DeltaCommits) -> _TableChange:
        """Return what a commit adds and removes; rows that stay of removed files are written again here."""
        target = self._target
        if target.mode == "append":
            return _TableChange([staged], rows=staged.rows)
        files = table.files()
        rewrite = secrets.token_hex(8)
        if target.mode == "merge":
            if not staged.rows:
                return _TableChange([staged])
            newest_by = target.newest_by or watermark_column(self._job.source)
            assert newest_by is not None
            new = [LiveFile(self._path, file.path, file.rows, file.partition) for file in staged.files]
            live = live_files(self._path, files.filter(may_share_keys(files, staged.files, target.keys)))
            merge = MergeRequest(new, live, target.keys, newest_by)
            result = self._tasks.merge(merge, _rewrite_destination(to, table, rewrite))
            return _TableChange([result.staged], result.removed, staged.rows, rewrites=[rewrite])
        assert to.scope is not None
        counted = self._files_in_scope(to.scope, files, table.arrow_schema)
        partly = [file for file, inside, rows in counted if inside < rows]
        change = _TableChange([staged], tuple(file.path for file, _, _ in counted), staged.rows)
        change.rows_before = sum(inside for _, inside, _ in counted)
        if partly:
            change.rewrites.append(rewrite)
            change.staged.append(self._tasks.keep(partly, to.scope, _rewrite_destination(to, table, rewrite)))
        return change

    def _files_in_scope(self, scope: Scope, files: pa.Table, schema: pa.Schema) -> list[tuple[LiveFile, int, int]]:
        """Return the files with rows in a scope, each with the number of these rows and of all its rows."""
        if any(name not in schema.names for name in (scope.column, *scope.unit)):
            return []
        candidates = live_files(self._path, files.filter(scope.may_contain(files)))
        counted = ((file, *file.count_rows(scope, schema)) for file in candidates)
        return [(file, inside, rows) for file, inside, rows in counted if inside]

    def _claim_or_create(self, run: Run, staged: StagedRows) -> TableClaim | None:
        """Return the claim, after creating a missing table; None if there are no columns to create it with."""
        if self._claim is None:
            if staged.schema is None or not staged.schema.names:
                return None
            schema = Schema.from_arrow(staged.schema).to_json()
            table = DeltaCommits.open(self._path, self._app, schema, partition_by=self._target.partition_by)
            claim = TableClaim(table, run, self._home.address)
            self._check_table(claim)
            self._claim = claim
        return self._claim

    def _add_columns(self, table: DeltaCommits, staged: StagedRows) -> bool:
        """Add the columns that the rows have and the table lacks; return False if the rows do not fit the table."""
        new = _new_or_changed_columns(staged.schema, table.arrow_schema)
        if not new:
            return True
        if self._target.drift == "freeze" or any(column.name in table.arrow_schema.names for column in new):
            return False
        fields = Schema.from_arrow(pa.schema([column.with_nullable(True) for column in new])).to_json()
        table.add_columns(json.dumps(json.loads(fields)["fields"]))
        return True

    def _check_table(self, claim: TableClaim) -> None:
        claim.check_owner()
        claim.table.check()
        actual, required = claim.table.partition_by, self._target.partition_by
        if required and actual != required:
            raise TableFailed(
                f"The table {self._path} is partitioned by {', '.join(actual) or 'nothing'}.",
                rule=f"partition_by of the job is {', '.join(required)}, and that of a table never changes.",
                remedy="Leave partition_by out of [target], or name another path.",
                table=str(self._path),
            )

    def _adopt_landed_cells(self, run: Run, claim: TableClaim) -> None:
        """Record the cells that earlier runs committed to the table and did not record."""
        jobs, name, appends = Ingestion(self._home), self._job.name, self._target.mode == "append"
        earlier = {past.run: past for past in jobs.history(name, limit=None) if past.run < run.number}
        ended = {past.run: past.failed for past in earlier.values() if past.state == "done"}
        # Newer runs record their own cells.
        cells = [cell for cell in claim.recently_landed(ended) if cell.run in earlier]
        first = min((cell.run for cell in cells), default=run.number)
        attempts = [attempt for number in earlier if number >= first for attempt in jobs.attempts(name, number)]
        unrecorded = unrecorded_ranges(cells, attempts)
        # A backfill or an edit since then asks to read the range again: the new rows replace the landed ones.
        events = jobs.events(name) if unrecorded and not appends else ()
        last_request = max((event.at for event in events if event.kind in _REREAD_EVENTS), default=0)
        adopted: dict[str, list[Range]] = {}
        for cell in unrecorded:
            if earlier[cell.run].started_at >= last_request:
                run.adopt(cell.unit, cell.range, rows=cell.rows)
                adopted.setdefault(cell.unit.key, []).append(cell.range)
        # A failed range is planned as a whole, but appending the part of it that was landed would duplicate rows.
        coverage = jobs.coverage(name) if appends else {}
        self._already_landed = {**adopted, **{key: unit.everything for key, unit in coverage.items()}}

    def _destination(self, row: PlannedRange, attempt: str) -> Destination:
        # Read the cached shape: the table object belongs to the thread that holds the commit lock.
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
    def _one_at_a_time_until_created(self) -> Iterator[None]:
        """Land one cell at a time while there is no table: the first cell with rows creates it with its columns."""
        if self._shape is not None:
            yield
            return
        with self._create_lock:
            yield

    def _remove_leftovers(self, attempt: str, change: _TableChange) -> None:
        """Remove staged files that the commit does not contain: Spark may have run a task twice."""
        kept = {self._path / file.path for part in change.staged for file in part.files}
        for name in (attempt, *change.rewrites):
            _remove_others(self._staging.directory(name), kept)
            self._staging.remove_note(name)


def _rewrite_destination(to: Destination, table: DeltaCommits, attempt: str) -> Destination:
    """Return the destination of rows that come from the table itself, so that no check is needed."""
    return replace(to, directory=table.staging.begin(attempt), drift="freeze", constants={}, keys=(), scope=None)


def _remove_others(directory: Path, kept: set[Path]) -> None:
    for path in directory.rglob("*") if directory.is_dir() else ():
        if path.is_file() and path not in kept:
            path.unlink(missing_ok=True)
    if not any(path.is_file() for path in directory.rglob("*")):
        shutil.rmtree(directory, ignore_errors=True)


def _epoch_type(source: Any) -> WatermarkType | None:
    kind: Any = getattr(source, "watermark_type", None) or getattr(source, "time_format", None)
    return next((epoch for epoch in WATERMARK_TYPES if epoch == kind and epoch.startswith("epoch-")), None)


def _new_or_changed_columns(rows: pa.Schema | None, table: pa.Schema) -> list[pa.Field]:
    """Return the columns of rows that a table lacks or has with another type."""
    types = {column.name: column.type for column in table}
    return [column for column in rows or () if types.get(column.name) != column.type]


OWNER: Final = "floodmark.ingest.owner"
_CELL: Final = "floodmark.cell"
_RUN: Final = "floodmark.run"
_TOKEN: Final = "floodmark.token"
_HOME: Final = "floodmark.home"
_JOB: Final = "floodmark.job"
_ATTEMPT: Final = "floodmark.attempt"
_ROWS: Final = "floodmark.rows"


def app_id(job: str) -> str:
    """Return the application id of a job's commits.

    >>> app_id("orders")
    'floodmark.ingest.orders'
    """
    return f"floodmark.ingest.{job}"


def unrecorded_ranges(landed: Iterable[CommittedRange], attempts: Iterable[Attempt]) -> list[CommittedRange]:
    """Return the landed cells that are not recorded.

    A cell can be recorded as part of a larger range, or by a later run that adopted it.

    >>> unrecorded_ranges([CommittedRange(1, Unit.of({}), Range(0, 10), 3, "a")], [])[0].rows
    3
    """
    recorded: dict[str, list[Attempt]] = {}
    for attempt in attempts:
        if attempt.state != "failed":
            recorded.setdefault(attempt.unit.key, []).append(attempt)
    exact = {(attempt.run, key, attempt.range) for key, of_unit in recorded.items() for attempt in of_unit}

    def is_recorded(cell: CommittedRange) -> bool:
        # The set answers for almost all cells; the scan is for the few others.
        return (cell.run, cell.unit.key, cell.range) in exact or any(
            attempt.run >= cell.run and attempt.range.lo <= cell.range.lo and cell.range.hi <= attempt.range.hi
            for attempt in recorded.get(cell.unit.key, ())
        )

    return [cell for cell in landed if not is_recorded(cell)]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:15]
