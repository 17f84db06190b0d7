"""Ingestion by watermark: what a job has to read, what it has read, what is missing; and how it is read and landed.

Start with `job` (what a user writes), then `planning.plan` (what is due, and why), `ingestion` (`Ingestion` and
`run_job`: a run from its plan to its end), `extract` (source -> Arrow) and `landing` (Arrow -> table or stream).
Imports go one way: calendar <- job <- planning <- store <- run <- ingestion, and nothing of these imports `extract` or
`landing`. `floodmark.spark` and `floodmark.cli` import this room.

| name | is |
|---|---|
| `Job` | what is read, when, and where it goes |
| `TimeWatermark`, `Bound`, `Grid` | from when to when, and how that is cut into cells |
| `UnitWatermark`, `Unit`, `SecondaryInput` | what else is read cell by cell, such as ids, and where these come from |
| `Limits` | how much a run may do |
| `SqlSource`, `FilesSource`, `RestSource`, `Landing`, `Secret` | where rows come from and go; secrets are referred to |
| `load_job`, `read_job`, `job_text` | a job from a file, TOML or properties of DIL, and as such a file |
| `plan`, `Plan`, `PlannedRange` | what is to be read now, and why |
| `UnitCoverage`, `complete_through` | what was read of a unit; the time before which nothing is missing |
| `Ingestion` | the jobs of a home: their coverage, history and runs |
| `run_job`, `Executor`, `Run` | a run from its plan to its end, what extracts and lands, what records each outcome |

A cell is a period of the grid x a unit. All times are microseconds since the epoch, all ranges half-open.
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
