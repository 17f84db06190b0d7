"""Errors of homes, and of what processes that share one tell each other."""

from floodmark.errors._tree import StateError, UnknownName


class HomeMissing(UnknownName):
    """There is no home where one was expected."""

    code = "home-missing"


class HomeNewer(StateError):
    """A home was written by a newer release than this one."""

    code = "home-newer"


class HomeUnusable(StateError):
    """A home cannot be read or written."""

    code = "home-unusable"


class HomeBusy(StateError):
    """Another process is writing to the home, and does not end."""

    code = "home-busy"


class HomeClosed(StateError):
    """A home was used after it had been closed."""

    code = "home-closed"


class LeaseLost(StateError):
    """A lease belongs to somebody else by now, or to nobody: what was to be done under it must not be done."""

    code = "lease-lost"


class UnknownMember(UnknownName):
    """A member has left, was forgotten, or has joined again elsewhere."""

    code = "unknown-member"


class UnknownIncarnation(UnknownName):
    """An incarnation of a computed watermark is not known."""

    code = "unknown-incarnation"


class UnknownStep(UnknownName):
    """A step of a computed watermark is not known, or is kept no more."""

    code = "unknown-step"


class UnknownQuery(UnknownName):
    """A streaming query is not known."""

    code = "unknown-query"


class AmbiguousQuery(UnknownName):
    """Several streaming queries answer to one name."""

    code = "ambiguous-query"


class ServerNotStarted(StateError):
    """A server for tests did not start, or was used while it did not run."""

    code = "server-not-started"
