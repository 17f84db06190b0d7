"""Errors of tables of Delta Lake."""

from floodmark.errors._tree import Conflict, StateError


class TableUnfit(StateError):
    """A table does not have the shape that is needed to write to it."""

    code = "table-unfit"


class TableConflict(Conflict):
    """Somebody else has committed to a table what rules out this commit. Nothing of it is in the table."""

    code = "table-conflict"


class TableFailed(StateError):
    """A table could not be read or written."""

    code = "table-failed"
