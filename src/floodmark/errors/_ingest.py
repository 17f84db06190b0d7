"""Errors of ingestion: when a job reads what, and what was read."""

from floodmark.errors._tree import Conflict, InvalidOption, InvalidValue, StateError, UnknownName


class ZoneUnknown(InvalidValue):
    """There is no time zone of that name."""

    code = "zone-unknown"


class BoundInvalid(InvalidValue):
    """A `from` or `to` is none, or one that could be read in two ways."""

    code = "bound-invalid"


class RangeInvalid(InvalidValue):
    """A range of time is empty or reversed, and can never be anything else."""

    code = "range-invalid"


class GridInvalid(InvalidValue):
    """Periods do not follow each other without holes, or do not reach over what a job reads."""

    code = "grid-invalid"


class JobInvalid(InvalidOption):
    """The parts of a job do not fit together."""

    code = "job-invalid"


class UnknownJob(UnknownName):
    """A home does not know the job."""

    code = "unknown-job"


class UnknownUnit(UnknownName):
    """A job has no such unit."""

    code = "unknown-unit"


class UnknownRun(UnknownName):
    """A job has had no such run, or it has ended."""

    code = "unknown-run"


class JobRunning(Conflict):
    """A run of the job goes on."""

    code = "job-running"


class NotPlanned(StateError):
    """A range was recorded that the run was not to read."""

    code = "not-planned"


class StreamUnfit(StateError):
    """A stream does not have the shape that the rows of a job need, or does not have what the job has read."""

    code = "stream-unfit"


class RangeLate(StateError):
    """Rows of a range would come to a stream whose watermark has gone beyond them."""

    code = "range-late"
