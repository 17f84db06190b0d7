"""Errors of landing: rows that do not belong where they would go, and targets that are somebody else's."""

from floodmark.errors._tree import Conflict, InvalidValue, StateError


class OutOfScope(InvalidValue):
    """A row was read for a cell and is not of it."""

    code = "out-of-scope"


class KeyMissing(InvalidValue):
    """A row has no value in a column that names rows."""

    code = "key-missing"


class TargetTaken(StateError):
    """Another job lands in the same target."""

    code = "target-taken"


class LandingOvertaken(Conflict):
    """Another run lands for the same job; nothing of what was being landed is in the table."""

    code = "landing-overtaken"


class SourceChanged(Conflict):
    """A source was changed while a cell was read. What was read is not landed."""

    code = "source-changed"
