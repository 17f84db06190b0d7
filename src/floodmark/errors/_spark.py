"""Errors of what works on DataFrames."""

from floodmark.errors._tree import InvalidValue, StateError, UnknownName


class UnknownColumn(UnknownName):
    """A DataFrame has no column of that name."""

    code = "unknown-column"


class UnsupportedFrame(InvalidValue):
    """A DataFrame is not of the kind that the operation works on."""

    code = "unsupported-frame"


class UnsupportedSpark(StateError):
    """The Spark that runs lacks something that is needed."""

    code = "unsupported-spark"


class TooManyOrigins(StateError):
    """There are more origins than can be told apart."""

    code = "too-many-origins"


class NoLateRows(UnknownName):
    """A query does not keep late rows apart, or on several columns."""

    code = "no-late-rows"


class HomeOutOfReach(StateError):
    """A task of Spark cannot see the home that it should read."""

    code = "home-out-of-reach"
