"""Errors of what a job says: its file, its variables, its secrets, its units."""

from floodmark.errors._tree import DuplicateName, InvalidValue, StateError, UnknownName


class JobFileInvalid(InvalidValue):
    """A job file says what no job can; the fields `file` and `line` say where."""

    code = "job-file-invalid"


class JobFileMissing(UnknownName):
    """A job file is not there, or cannot be read."""

    code = "job-file-missing"


class UnknownVariable(UnknownName):
    """A text names a variable that nobody has given."""

    code = "unknown-variable"


class SecretExposed(InvalidValue):
    """A secret stands in plain words where a reference to it must stand."""

    code = "secret-exposed"


class SecretMissing(StateError):
    """A secret is referred to and is not there."""

    code = "secret-missing"


class UnitsInvalid(InvalidValue):
    """A list of units, or what is to become one, cannot be used."""

    code = "units-invalid"


class DuplicateUnit(DuplicateName):
    """The same unit is listed twice."""

    code = "duplicate-unit"


class SecondaryInputFailed(StateError):
    """What the units of a job are read from is not there, or cannot be read."""

    code = "secondary-input-failed"


class CellsFailed(StateError):
    """A run has ended, and some of its cells have failed. They stay due."""

    code = "cells-failed"
