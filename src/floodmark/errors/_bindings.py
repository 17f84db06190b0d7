"""Errors of timestamp bindings, their sources and holds."""

from floodmark.errors._tree import Conflict, InvalidValue, StateError, UnknownName


class UnknownSource(UnknownName):
    """There is no source of that id."""

    code = "unknown-source"


class UnknownHold(UnknownName):
    """A hold was never taken, or has been released."""

    code = "unknown-hold"


class BindingInvalid(InvalidValue):
    """A binding goes back in time, or an end goes back in its partition."""

    code = "binding-invalid"


class MintLost(Conflict):
    """Another process has bound the next timestamp first."""

    code = "mint-lost"


class ClockJumped(StateError):
    """The clock of the store is far ahead of what it was, and of this process's own."""

    code = "clock-jumped"


class SourceRecreated(StateError):
    """What a source reads is not what it was: a topic or stream was deleted and made anew under its name."""

    code = "source-recreated"


class SourceTruncated(StateError):
    """A source has less than what was bound of it."""

    code = "source-truncated"


class OffsetNotBound(StateError):
    """An offset has no timestamp yet."""

    code = "offset-not-bound"


class TimestampNotValid(StateError):
    """A timestamp lies outside of what can be read: [since, upper)."""

    code = "timestamp-not-valid"
