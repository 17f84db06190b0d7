"""Errors of files that rows are read from."""

from floodmark.errors._tree import StateError, UnknownName


class FileMissing(UnknownName):
    """A path is named, and nothing is there."""

    code = "file-missing"


class FileTimeUnknown(StateError):
    """The name of a file does not say its time, so that no range would ever read it."""

    code = "file-time-unknown"
