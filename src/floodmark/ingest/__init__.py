"""Ingestion jobs: load a source by time and unit, record what was read, and plan what is missing.

Start with `job` (what a user writes), then `planning.plan` (what is due, and why), `ingestion` (`Ingestion` and
`run_job`: a run from plan to end), `extract` (source to Arrow) and `landing` (Arrow to table or stream). Imports go one
way: calendar <- job <- planning <- store <- run <- ingestion; none of these imports `extract` or `landing`.
`floodmark.spark` and `floodmark.cli` import this room.

| name | meaning |
|---|---|
| `Job` | what is read, when, and where it goes |
| `TimeWatermark`, `Bound`, `Grid` | the time range of a job, and how it is cut into periods |
| `UnitWatermark`, `Unit`, `SecondaryInput` | the units of a job, such as customer ids, and where they are read from |
| `Limits` | how many cells a run may read, and how often a cell may fail |
| `SqlSource`, `FilesSource`, `RestSource`, `Landing`, `Secret` | source and target; secrets are only references |
| `load_job`, `read_job`, `job_text` | a job from a file or text (TOML or DIL properties), and as TOML |
| `plan`, `Plan`, `PlannedRange` | the ranges to read now, and why |
| `UnitCoverage`, `complete_through` | the ranges read of a unit; the time before which nothing is missing |
| `Ingestion` | the jobs of a home: their coverage, history and runs |
| `run_job`, `Executor`, `Run` | runs a job; extracts and lands its ranges; records their outcomes |

A cell is one period of the grid of one unit. All times are microseconds since the epoch, all ranges half-open.
"""

from floodmark.ingest.calendar.bound import Bound
from floodmark.ingest.calendar.grid import Grid
from floodmark.ingest.calendar.ranges import Range
from floodmark.ingest.ingestion import Ingestion, RunResult, run_job
from floodmark.ingest.job.job import Job, Landing, Limits, TimeWatermark
from floodmark.ingest.job.options import Secret
from floodmark.ingest.job.source import Auth, FilesSource, Pagination, RestSource, SqlSource
from floodmark.ingest.job.unit import SecondaryInput, Unit, UnitWatermark
from floodmark.ingest.jobfile.job_file import JobFile, job_text, load_job, read_job
from floodmark.ingest.planning.coverage import Coverage, Gap, UnitCoverage, complete_through
from floodmark.ingest.planning.plan import Expired, Plan, PlannedRange, Reason, plan
from floodmark.ingest.run import Executor, LandingResult, RangeOutcome, Run
from floodmark.ingest.secondary_input import with_units
from floodmark.ingest.store.jobs import Attempt, JobEvent, JobInfo, RunInfo, Status, TypicalCell

__all__ = [
    "Attempt",
    "Auth",
    "Bound",
    "Coverage",
    "Executor",
    "Expired",
    "FilesSource",
    "Gap",
    "Grid",
    "Ingestion",
    "Job",
    "JobEvent",
    "JobFile",
    "JobInfo",
    "Landing",
    "LandingResult",
    "Limits",
    "Pagination",
    "Plan",
    "PlannedRange",
    "Range",
    "RangeOutcome",
    "Reason",
    "RestSource",
    "Run",
    "RunInfo",
    "RunResult",
    "SecondaryInput",
    "Secret",
    "SqlSource",
    "Status",
    "TimeWatermark",
    "TypicalCell",
    "Unit",
    "UnitCoverage",
    "UnitWatermark",
    "complete_through",
    "job_text",
    "load_job",
    "plan",
    "read_job",
    "run_job",
    "with_units",
]
