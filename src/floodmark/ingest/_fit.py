"""Whether the source, the units and the target of a job fit each other."""

from collections.abc import Iterator
from typing import Any, Final

from floodmark._util.text import did_you_mean
from floodmark.ingest._job import Job
from floodmark.ingest._rest_spec import RestSource
from floodmark.ingest._source_spec import FilesSource, SqlSource
from floodmark.ingest._spec_checks import plain, refused
from floodmark.ingest._target_spec import Landing
from floodmark.ingest._units import SecondaryInput
from floodmark.ingest._variables import names_in

FILE_TIME: Final = "_file_time"
"""The column that rows of files get: the time of their file, where a file has one."""


def check_fit(job: Job) -> None:
    """Refuse a job whose parts contradict each other."""
    source, target = job.source, job.target
    if not isinstance(source, SqlSource | FilesSource | RestSource):
        return
    _check_fields(job, source)
    _check_used(job, source)
    if not isinstance(target, Landing):
        return
    if isinstance(source, SqlSource) and source.nulls == "read" and target.mode != "merge":
        raise refused(
            "source.nulls",
            f"Rows without a watermark are read in each run, and the target's mode is {target.mode!r}.",
            "What is read again and again must be merged by its key; else it is there again and again.",
            'Write nulls = "skip", name a fallback column, or merge.',
        )
    if target.mode == "merge" and target.newest_by is None and watermark_of(source) is None:
        raise refused(
            "target.newest_by",
            "Nothing says which of two rows with the same key is newer.",
            "Merging keeps the newest; without a watermark column a column must be named.",
            'Add newest_by = "COLUMN" to [target].',
        )
    if target.mode == "replace" and target.range_column is None and watermark_of(source) is None:
        raise refused(
            "target.range_column",
            "Nothing says which column of the table has the range that is replaced.",
            "Rows of the range that was read are replaced; without a watermark column a column must be named.",
            'Add range_column = "COLUMN" to [target].',
        )


def watermark_of(source: Any) -> str | None:
    """Return the column of a source's rows that places them in time, if there is one.

    Files that have a time themselves give it to their rows, in a column of its own.

    >>> watermark_of(FilesSource(paths=("x/*.csv",), format="csv"))
    '_file_time'
    >>> watermark_of(FilesSource(paths=("x/*.csv",), format="csv", time="column", column="at"))
    'at'
    """
    if isinstance(source, SqlSource):
        return source.watermark
    if isinstance(source, FilesSource):
        return source.column if source.time == "column" else FILE_TIME
    return None


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
    named = [name.removeprefix("unit.") for name in _names(plain(source)) if name.startswith("unit.")]
    if isinstance(source, SqlSource):
        named += list(source.units)
    for name in named:
        if name not in known:
            raise refused(
                "source",
                f"The source names the field {name!r} of a unit.",
                f"A unit has the fields {', '.join(known)}." if known else "The job has no units.",
                did_you_mean(name, known, otherwise="Leave it out, or add the field to the units."),
            )


def _check_used(job: Job, source: SqlSource | FilesSource | RestSource) -> None:
    """Refuse a source that would read the same for every cell."""
    named = set(_names(plain(source)))
    is_cut = not job.time.grid.is_plain or job.time.grid.parts[0].period != "none"
    if isinstance(source, RestSource) and is_cut and not named & {"range.from", "range.to"}:
        raise refused(
            "source",
            "The source names neither {{range.from}} nor {{range.to}}, and time is cut into cells.",
            "Each cell reads its own range; else each would read everything.",
            'Write for example params = { since = "{{range.from}}" }, or grid = "none".',
        )
    by_column = isinstance(source, SqlSource)  # a field that is not named in a query is a column of its rows
    if unit_fields(job) and not by_column and not any(name.startswith("unit.") for name in named):
        raise refused(
            "source",
            "The source names no field of a unit, and there are units.",
            "Each unit reads its own rows; else each would read the same.",
            f"Write {{{{unit.{unit_fields(job)[0]}}}}} where the unit belongs, or take [units] out.",
        )


def _names(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield from names_in(value)
    elif isinstance(value, dict):
        for one in value.values():
            yield from _names(one)
    elif isinstance(value, list):
        for one in value:
            yield from _names(one)
