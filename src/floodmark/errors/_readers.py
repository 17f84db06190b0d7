"""Errors of reader groups, their readers, checkpoints and bounds."""

from floodmark.errors._tree import InvalidValue, StateError, UnknownName


class UnknownGroup(UnknownName):
    """There is no reader group of that name."""

    code = "unknown-group"


class GroupExists(StateError):
    """A reader group was to be created under a name that another one has."""

    code = "group-exists"


class GroupDeleted(StateError):
    """A reader group was deleted, and perhaps created anew, since it was looked up."""

    code = "group-deleted"


class GroupReset(StateError):
    """A reader group was reset to another place: what was opened before does not go on."""

    code = "group-reset"


class StreamNotInGroup(UnknownName):
    """A stream was named that a reader group does not read."""

    code = "stream-not-in-group"


class ReaderExists(StateError):
    """A reader was to be opened under an id that a living reader of the group has."""

    code = "reader-exists"


class UnknownReader(UnknownName):
    """A reader group has no reader of that id."""

    code = "unknown-reader"


class ReaderExpelled(StateError):
    """A reader was silent for too long, or was expelled: others read its segments."""

    code = "reader-expelled"


class ReaderClosed(StateError):
    """A reader that had been closed was used again."""

    code = "reader-closed"


class ForeignCheckpoint(InvalidValue):
    """A checkpoint is of another reader group."""

    code = "foreign-checkpoint"


class ForeignCut(InvalidValue):
    """A cut is of another stream, or of other streams than the group reads."""

    code = "foreign-cut"


class BoundsReversed(InvalidValue):
    """The end of what a group reads lies before its start."""

    code = "bounds-reversed"


class TimeNotReached(StateError):
    """A time was to be found in a marks log that has not come there yet."""

    code = "time-not-reached"


class CheckpointPending(StateError):
    """A checkpoint was to be begun while another one is under way."""

    code = "checkpoint-pending"


class CheckpointFailed(StateError):
    """A checkpoint was not confirmed by all readers in time, or was given up because the group was reset."""

    code = "checkpoint-failed"
