"""Errors of what the rows of a cell are read from."""

from floodmark.errors._tree import InvalidValue, StateError, UnknownName


class SourceAway(StateError):
    """A source does not answer, or has gone in the middle of an answer. The cell stays due."""

    code = "source-away"


class SourceRefused(StateError):
    """A source does not do what it is asked: a password, a permission, a request that it does not take."""

    code = "source-refused"


class SourceFailed(StateError):
    """A source answers, and cannot do what it is asked."""

    code = "source-failed"


class UnknownTable(UnknownName):
    """A source has no table of that name, or no database."""

    code = "unknown-table"


class SourceValueUnfit(InvalidValue):
    """A row of a source has a value that is none of its column's type; the field `column` says which."""

    code = "source-value-unfit"


class WatermarkMissing(StateError):
    """A row of a source has no watermark, so that no range would ever read it."""

    code = "watermark-missing"
