"""Whose a table is, which run may land in it, and what an earlier run has landed and could not say any more.

Each commit of a job has the next number of the job, and a run begins with a commit of its own. Whoever began earlier
finds that its number is taken, and lands nothing more: that is what fences a run that was thought dead. Each commit
says which cell it landed, so what is in the table and not in the home is found, and not landed again.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from floodmark.delta import DeltaCommits, StagedFile
from floodmark.errors import LandingOvertaken, TableConflict, TableFailed, TargetTaken
from floodmark.ingest import Attempt, Range, Run, Unit

OWNER: Final = "floodmark.ingest.owner"
_CELL: Final = "floodmark.cell"
_RUN: Final = "floodmark.run"
_TOKEN: Final = "floodmark.token"
_HOME: Final = "floodmark.home"
_JOB: Final = "floodmark.job"
_ATTEMPT: Final = "floodmark.attempt"
_ROWS: Final = "floodmark.rows"


def app_of(job: str) -> str:
    """Return the name under which a job commits.

    >>> app_of("orders")
    'floodmark.ingest.orders'
    """
    return f"floodmark.ingest.{job}"


@dataclass(frozen=True, slots=True)
class LandedCell:
    """A cell that a commit has landed."""

    run: int
    unit: Unit
    range: Range
    rows: int
    attempt: str


class Claim:
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

    def landed_since(self, ended: Mapping[int, int]) -> Iterator[LandedCell]:
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
                yield LandedCell(
                    number,
                    Unit.load(cell["unit"]),
                    Range(cell["lo"], cell["hi"]),
                    int(one[_ROWS]),
                    one[_ATTEMPT],
                )

    def commit_cell(
        self, cell: LandedCell, files: Iterable[StagedFile], remove: Iterable[str], *, next_version: bool
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


def unrecorded(landed: Iterable[LandedCell], attempts: Iterable[Attempt]) -> list[LandedCell]:
    """Return the cells that were landed and are not recorded.

    A cell may be recorded as a part of its row, or by a later run that has found it.

    >>> unrecorded([LandedCell(1, Unit.of({}), Range(0, 10), 3, "a")], [])[0].rows
    3
    """
    known: dict[str, list[Attempt]] = {}
    for attempt in attempts:
        if attempt.state != "failed":
            known.setdefault(attempt.unit.key, []).append(attempt)
    exact = {(one.run, key, one.range) for key, some in known.items() for one in some}

    def is_recorded(cell: LandedCell) -> bool:
        # Most are recorded as they are; the others are few.
        return (cell.run, cell.unit.key, cell.range) in exact or any(
            one.run >= cell.run and one.range.lo <= cell.range.lo and cell.range.hi <= one.range.hi
            for one in known.get(cell.unit.key, ())
        )

    return [cell for cell in landed if not is_recorded(cell)]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:15]
