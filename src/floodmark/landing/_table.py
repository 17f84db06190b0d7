"""A table of Delta Lake as the target of a job: a cell is staged, committed with what it replaces, and then recorded.

The commit says which cell it is. If the process dies before the home knows, the next run finds that out from the
table, records it, and does not land it again.
"""

import json
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock
from typing import Any, Final

import pyarrow as pa
from deltalake import Schema

from floodmark.control import Home
from floodmark.delta import DeltaCommits
from floodmark.delta.staging import Staging
from floodmark.errors import TableConflict, TableFailed
from floodmark.ingest import Ingestion, Job, Landed, Landing, Range, Row, Run
from floodmark.ingest._calendar import day_number, zone_of
from floodmark.ingest._fit import watermark_of
from floodmark.ingest._ranges import Ranges, merged, subtract
from floodmark.ingest._source_spec import WATERMARK_TYPES, WatermarkType
from floodmark.landing._claim import Claim, LandedCell, app_of, unrecorded
from floodmark.landing._live import LiveFile, live_files, may_meet
from floodmark.landing._scope import Scope
from floodmark.landing._tasks import Destination, Merge, Staged, Tasks

BEGUN: Final = "begun"
STAGED: Final = "staged"
COMMITTED: Final = "committed"
FAILPOINTS: Final = (BEGUN, STAGED, COMMITTED)
"""Where a test may let a process die."""

_TRIES: Final = 5
_ASKED: Final = ("backfill", "edit")
"""What people do to have something read again."""


@dataclass(slots=True)
class _Change:
    """What a commit is to do, and the directories that it leaves behind."""

    staged: list[Staged]
    gone: tuple[str, ...] = ()
    rows: int = 0
    rows_before: int | None = None
    spare: list[str] = field(default_factory=list)


class TableLanding:
    """Lands the cells of a job in its table, for one run. Several threads may land at once."""

    def __init__(
        self,
        home: Home,
        job: Job,
        tasks: Tasks,
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
        self._app = app_of(job.name)
        self._staging = Staging(self._path, self._app)
        self._tasks = tasks
        self._unit_columns = unit_columns
        self._zone = zone
        self._failpoint = failpoint
        self._claim: Claim | None = None
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
        self._claim = Claim(table, run, self._home.location)
        self._check(self._claim)
        run.renew()
        # Whoever begins later stages more, and that is not for this run to remove.
        noted = self._staging.open()
        self._claim.begin()
        self._failpoint(BEGUN)
        self._adopt(run, self._claim)
        table.sweep(noted)
        self._shape = table.arrow_schema, table.partition_by

    def land(self, run: Run, row: Row) -> Landed:
        """Extract and land what a row of the plan is about, but for what is landed and must not be twice."""
        rows, late = 0, 0
        for left in subtract([row.range], merged(self._left_out.get(row.unit.key, ()))):
            change = self._landed(run, replace(row, range=left))
            rows += change.rows
            if change.rows_before is not None:
                late += change.rows - change.rows_before
        if row.reason != "grace" or late <= 0:
            return Landed(rows)
        zone = zone_of(self._job.zone)
        return Landed(rows, {day_number(self._home.now(), zone) - day_number(row.range.lo, zone): late})

    def _landed(self, run: Run, row: Row) -> _Change:
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

    def _commit(self, run: Run, row: Row, staged: Staged, to: Destination, attempt: str) -> _Change | None:
        """Commit a cell; return None if the table's columns have changed since, so that it must be written again."""
        claim = self._claimed(run, staged)
        if claim is None:
            return _Change([staged])
        for _ in range(_TRIES):
            fits = self._take_columns(claim.table, staged)
            self._shape = claim.table.arrow_schema, claim.table.partition_by
            if not fits:
                return None
            change = self._changed(staged, replace(to, schema=self._shape[0]), claim.table)
            files = [file for one in change.staged for file in one.files]
            cell = LandedCell(run.number, row.unit, row.range, change.rows, attempt)
            # What others have added since may be what is to be replaced.
            is_alone = self._target.mode != "append"
            try:
                claim.commit_cell(cell, files, change.gone, next_version=is_alone)
            except TableConflict:
                self._staging.remove(change.spare)
            else:
                return change
        return None

    def _changed(self, staged: Staged, to: Destination, table: DeltaCommits) -> _Change:
        target = self._target
        if target.mode == "append":
            return _Change([staged], rows=staged.rows)
        known = table.files()
        beside = secrets.token_hex(8)
        if target.mode == "merge":
            if not staged.rows:
                return _Change([staged])
            newest_by = target.newest_by or watermark_of(self._job.source)
            assert newest_by is not None
            new = [LiveFile(self._path, file.path, file.rows, file.partition) for file in staged.files]
            live = live_files(self._path, known.filter(may_meet(known, staged.files, target.keys)))
            merge = Merge(new, live, target.keys, newest_by)
            merged_rows = self._tasks.merge(merge, _anew(to, table, beside))
            return _Change([merged_rows.staged], merged_rows.gone, staged.rows, spare=[beside])
        assert to.scope is not None
        touched = self._touched(to.scope, known, table.arrow_schema)
        partly = [file for file, held, rows in touched if held < rows]
        change = _Change([staged], tuple(file.path for file, _, _ in touched), staged.rows)
        change.rows_before = sum(held for _, held, _ in touched)
        if partly:
            change.spare.append(beside)
            change.staged.append(self._tasks.keep(partly, to.scope, _anew(to, table, beside)))
        return change

    def _touched(self, scope: Scope, known: pa.Table, schema: pa.Schema) -> list[tuple[LiveFile, int, int]]:
        """Return the files with rows in a scope, how many these are, and how many each has."""
        if any(name not in schema.names for name in (scope.column, *scope.unit)):
            return []
        found = (
            (file, *file.held(scope, schema)) for file in live_files(self._path, known.filter(scope.may_hold(known)))
        )
        return [(file, held, rows) for file, held, rows in found if held]

    def _claimed(self, run: Run, staged: Staged) -> Claim | None:
        if self._claim is None:
            if staged.schema is None or not staged.schema.names:
                return None
            schema = Schema.from_arrow(staged.schema).to_json()
            table = DeltaCommits.open(self._path, self._app, schema, partition_by=self._target.partition_by)
            claim = Claim(table, run, self._home.location)
            self._check(claim)
            self._claim = claim
        return self._claim

    def _take_columns(self, table: DeltaCommits, staged: Staged) -> bool:
        """Give the table the columns that rows have brought; return False if they do not fit it as it is now."""
        new = _unlike(staged.schema, table.arrow_schema)
        if not new:
            return True
        if self._target.drift == "freeze" or any(one.name in table.arrow_schema.names for one in new):
            return False
        fields = Schema.from_arrow(pa.schema([one.with_nullable(True) for one in new])).to_json()
        table.add_columns(json.dumps(json.loads(fields)["fields"]))
        return True

    def _check(self, claim: Claim) -> None:
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

    def _adopt(self, run: Run, claim: Claim) -> None:
        jobs, name, appends = Ingestion(self._home), self._job.name, self._target.mode == "append"
        earlier = {one.run: one for one in jobs.history(name, limit=None) if one.run < run.number}
        ended = {one.run: one.failed for one in earlier.values() if one.state == "done"}
        # Whoever has begun since records for itself.
        cells = [cell for cell in claim.landed_since(ended) if cell.run in earlier]
        first = min((cell.run for cell in cells), default=run.number)
        attempts = [one for number in earlier if number >= first for one in jobs.attempts(name, number)]
        unknown = unrecorded(cells, attempts)
        # What somebody has wanted to be read since then is read: it takes the place of what is there.
        events = jobs.events(name) if unknown and not appends else ()
        asked = max((one.at for one in events if one.kind in _ASKED), default=0)
        found: dict[str, list[Range]] = {}
        for cell in unknown:
            if earlier[cell.run].started_at >= asked:
                run.adopt(cell.unit, cell.range, rows=cell.rows)
                found.setdefault(cell.unit.key, []).append(cell.range)
        # A row that has failed is due as a whole, also what was landed of it.
        known = jobs.coverage(name) if appends else {}
        self._left_out = {**found, **{key: one.everything for key, one in known.items()}}

    def _destination(self, row: Row, attempt: str) -> Destination:
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

    def _scope(self, row: Row) -> Scope:
        source = self._job.source
        column = self._target.range_column or watermark_of(source)
        assert column is not None
        pattern = getattr(source, "pattern", None) if column == watermark_of(source) else None
        return Scope(column, row.range, self._zone, self._unit_values(row), _numbers(source), pattern)

    def _unit_values(self, row: Row) -> dict[str, Any]:
        return {self._unit_columns.get(name, name): value for name, value in row.unit.fields.items()}

    @contextmanager
    def _until_made(self) -> Iterator[None]:
        """Let one cell at a time be landed while there is no table: the first one says what columns it has."""
        if self._shape is not None:
            yield
            return
        with self._making:
            yield

    def _tidy(self, attempt: str, change: _Change) -> None:
        """Remove what was written for a commit, and it does not name: tasks may have been tried twice."""
        kept = {self._path / file.path for one in change.staged for file in one.files}
        for name in (attempt, *change.spare):
            _remove_others(self._staging.directory(name), kept)
            self._staging.over(name)


def _anew(to: Destination, table: DeltaCommits, attempt: str) -> Destination:
    """Return where rows go that were in the table before: they fit it."""
    return replace(to, directory=table.staging.begin(attempt), drift="freeze", constants={}, keys=(), scope=None)


def _remove_others(directory: Path, kept: set[Path]) -> None:
    for path in directory.rglob("*") if directory.is_dir() else ():
        if path.is_file() and path not in kept:
            path.unlink(missing_ok=True)
    if not any(path.is_file() for path in directory.rglob("*")):
        shutil.rmtree(directory, ignore_errors=True)


def _numbers(source: Any) -> WatermarkType | None:
    kind: Any = getattr(source, "watermark_type", None) or getattr(source, "time_format", None)
    return next((one for one in WATERMARK_TYPES if one == kind and one.startswith("epoch-")), None)


def _unlike(rows: pa.Schema | None, table: pa.Schema) -> list[pa.Field]:
    """Return the columns of rows that a table does not have, or has with another type."""
    kinds = {one.name: one.type for one in table}
    return [one for one in rows or () if kinds.get(one.name) != one.type]
