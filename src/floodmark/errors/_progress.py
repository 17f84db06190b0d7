"""Errors of the rules of progress."""

from floodmark.errors._tree import InvalidValue, StateError, UnknownName


class ReservedTime(InvalidValue):
    """A watermark of int64 MAX: it would end time for good."""

    code = "reserved-time"


class NumberOutOfRange(InvalidValue):
    """A sequence or chunk number lies below the first one."""

    code = "number-out-of-range"


class BatchInvalid(InvalidValue):
    """The columns of a batch do not fit together."""

    code = "batch-invalid"


class ChunkConflict(InvalidValue):
    """Two reports of one sequence cannot both be true."""

    code = "chunk-conflict"


class UnknownInput(UnknownName):
    """An input or a group of inputs is not known."""

    code = "unknown-input"


class UnknownKey(UnknownName):
    """A watermark key is not known."""

    code = "unknown-key"


class UnknownOrigin(UnknownName):
    """An origin is not known."""

    code = "unknown-origin"


class WatermarkNotRising(StateError):
    """An input sent a watermark that is not above its previous one."""

    code = "watermark-not-rising"


class InputFinished(StateError):
    """An input that had finished was used again."""

    code = "input-finished"


class OriginClosed(StateError):
    """An origin that had been closed was used again."""

    code = "origin-closed"


class PendingLimitReached(StateError):
    """There is more behind a gap than the tracker may keep."""

    code = "pending-limit-reached"
