"""Ingestion by watermark: what a job has to read, what it has read, and what is missing.

| name | is |
|---|---|
| `Job` | what is read, when, and where it goes |
| `TimeWatermark`, `Bound`, `Grid` | from when to when, and how that is cut into cells |
| `UnitWatermark`, `Unit` | what else is read cell by cell, such as ids |
| `Limits` | how much a run may do |
| `plan`, `Plan`, `Row` | what is to be read now, and why |
| `UnitCoverage` | what is known of a unit: what was read, what has failed |
| `Ingestion` | the jobs of a home: it keeps what is known, and starts runs |
| `Run` | records what became of each row |
| `complete_through` | the time before which nothing is missing |
| `load_job`, `read_job`, `job_text` | a job from a file, TOML or properties of DIL, and as such a file |
| `SecondaryInput`, `Secret` | where units come from, and what proves who asks |
| `SqlSource`, `FilesSource`, `RestSource`, `Landing` | where rows come from, and where they go |
| `run_job`, `Executor` | a run from its plan to its end, and who extracts and lands |

A cell is a period of the grid x a unit. All times are microseconds since the epoch, all ranges half-open.
"""

from floodmark.ingest._bound import Bound
from floodmark.ingest._coverage import Coverage, Failure, Success, UnitCoverage
from floodmark.ingest._executor import Executor, Landed
from floodmark.ingest._frozen import Frozen
from floodmark.ingest._grid import Cells, Grid, Part
from floodmark.ingest._ingestion import Ingestion
from floodmark.ingest._job import Job, Limits, TimeWatermark
from floodmark.ingest._job_file import JobFile, load_job, read_job
from floodmark.ingest._job_text import job_text
from floodmark.ingest._plan import Expired, Plan, complete_through, largest_end, plan, recommended_grace
from floodmark.ingest._properties import read_properties_job
from floodmark.ingest._ranges import Range
from floodmark.ingest._records import Attempt, Event, Gap, JobInfo, RunInfo, Status, Typical
from floodmark.ingest._rest_spec import Auth, Pagination, RestSource
from floodmark.ingest._row import Reason, Row
from floodmark.ingest._run import Outcome, Run
from floodmark.ingest._running import RunResult, run_job
from floodmark.ingest._secrets import Secret
from floodmark.ingest._source_spec import FilesSource, SqlSource
from floodmark.ingest._target_spec import Landing
from floodmark.ingest._unit import Unit, UnitWatermark
from floodmark.ingest._units import SecondaryInput, listed_units, read_units, with_units

__all__ = [
    "Attempt",
    "Auth",
    "Bound",
    "Cells",
    "Coverage",
    "Event",
    "Executor",
    "Expired",
    "Failure",
    "FilesSource",
    "Frozen",
    "Gap",
    "Grid",
    "Ingestion",
    "Job",
    "JobFile",
    "JobInfo",
    "Landed",
    "Landing",
    "Limits",
    "Outcome",
    "Pagination",
    "Part",
    "Plan",
    "Range",
    "Reason",
    "RestSource",
    "Row",
    "Run",
    "RunInfo",
    "RunResult",
    "SecondaryInput",
    "Secret",
    "SqlSource",
    "Status",
    "Success",
    "TimeWatermark",
    "Typical",
    "Unit",
    "UnitCoverage",
    "UnitWatermark",
    "complete_through",
    "job_text",
    "largest_end",
    "listed_units",
    "load_job",
    "plan",
    "read_job",
    "read_properties_job",
    "read_units",
    "recommended_grace",
    "run_job",
    "with_units",
]
