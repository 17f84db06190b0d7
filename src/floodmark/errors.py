"""Every error of Floodmark: one tree, each leaf with a stable code.

An error states three things, in this order: the fact (what was found), the rule (what must hold) and the
remedy (the way out). The values it speaks of are in `fields`, so that a program never has to parse the text.

>>> from floodmark.progress import Coalescer
>>> try:
...     Coalescer(["p0"]).watermark("p1", "order_time", 10)
... except FloodmarkError as error:
...     print(error.code, error.fields)
unknown-input {'input': 'p1'}
"""

from typing import ClassVar

__all__ = [
    "AmbiguousQuery",
    "AutomaticTime",
    "BatchInvalid",
    "ChunkConflict",
    "Conflict",
    "CutInvalid",
    "DuplicateName",
    "EventInvalid",
    "FloodmarkError",
    "ForeignSegment",
    "HomeBusy",
    "HomeClosed",
    "HomeMissing",
    "HomeNewer",
    "HomeUnusable",
    "InputFinished",
    "InvalidName",
    "InvalidOption",
    "InvalidValue",
    "KeyOutOfSpace",
    "LeaseLost",
    "MissingPackage",
    "NaiveTime",
    "NoLateRows",
    "NotInt64",
    "NotJson",
    "NumberOutOfRange",
    "OffsetOutOfRange",
    "OriginClosed",
    "PendingLimitReached",
    "PositionInvalid",
    "RangeOutOfSpace",
    "RangesMissing",
    "RangesOverlap",
    "ReservedTime",
    "SchemaInvalid",
    "SegmentSealed",
    "ServerNotStarted",
    "SnapshotInvalid",
    "SnapshotVersionUnknown",
    "StateError",
    "StreamDeleted",
    "StreamExists",
    "StreamSealed",
    "TooManyOrigins",
    "TransactionNotOpen",
    "UnknownColumn",
    "UnknownIncarnation",
    "UnknownInput",
    "UnknownKey",
    "UnknownMember",
    "UnknownName",
    "UnknownOrigin",
    "UnknownQuery",
    "UnknownSegment",
    "UnknownStep",
    "UnknownStream",
    "UnknownTransaction",
    "UnknownWriter",
    "UnsupportedFrame",
    "UnsupportedSpark",
    "WatermarkNotRising",
    "WriterClosed",
    "WriterSuperseded",
    "WriterWithoutId",
]


class FloodmarkError(Exception):
    """The root of the tree: catch this to catch everything that Floodmark raises on purpose."""

    code: ClassVar[str] = "floodmark"

    def __init__(self, fact: str, *, rule: str, remedy: str, **fields: object) -> None:
        """Build the message from its three parts and keep them, and `fields`, as attributes."""
        super().__init__(fact, rule, remedy)
        self.fact = fact
        self.rule = rule
        self.remedy = remedy
        self.fields = fields

    def __str__(self) -> str:
        """Return the three parts and the code, for a person to read."""
        return f"{self.fact} {self.rule} {self.remedy} [{self.code}]"

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle with the fields, so that an error raised in another process arrives whole."""
        return _rebuild, (type(self), self.fact, self.rule, self.remedy, self.fields)


def _rebuild(
    kind: type[FloodmarkError], fact: str, rule: str, remedy: str, fields: dict[str, object]
) -> FloodmarkError:
    return kind(fact, rule=rule, remedy=remedy, **fields)


class InvalidValue(FloodmarkError, ValueError):
    """A value handed in can never be right, whatever the state."""

    code = "invalid-value"


class NotInt64(InvalidValue):
    """A time, sequence or chunk number is not a whole number of 64 bits."""

    code = "not-int64"


class ReservedTime(InvalidValue):
    """A watermark of int64 MAX: it would end time for good."""

    code = "reserved-time"


class NumberOutOfRange(InvalidValue):
    """A sequence or chunk number lies below the first one."""

    code = "number-out-of-range"


class InvalidOption(InvalidValue):
    """A setting has a value that makes no sense, such as a negative duration."""

    code = "invalid-option"


class DuplicateName(InvalidValue):
    """The same input, group or origin was named twice."""

    code = "duplicate-name"


class BatchInvalid(InvalidValue):
    """The columns of a batch do not fit together."""

    code = "batch-invalid"


class ChunkConflict(InvalidValue):
    """Two reports of one sequence cannot both be true."""

    code = "chunk-conflict"


class SnapshotInvalid(InvalidValue):
    """A snapshot is not of the form that this version writes."""

    code = "snapshot-invalid"


class SnapshotVersionUnknown(SnapshotInvalid):
    """A snapshot was written by another version."""

    code = "snapshot-version-unknown"


class UnknownName(FloodmarkError, LookupError):
    """Something was named that is not there."""

    code = "unknown-name"


class UnknownInput(UnknownName):
    """An input or a group of inputs is not known."""

    code = "unknown-input"


class UnknownKey(UnknownName):
    """A watermark key is not known."""

    code = "unknown-key"


class UnknownOrigin(UnknownName):
    """An origin is not known."""

    code = "unknown-origin"


class StateError(FloodmarkError, RuntimeError):
    """The call is right in itself, but not in the state things are in."""

    code = "state"


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


class NotJson(InvalidValue):
    """A value to be kept is none that JSON can write and give back."""

    code = "not-json"


class Conflict(StateError):
    """Somebody else was first: what the update was built on is not the newest any more."""

    code = "conflict"


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


class MissingPackage(StateError, ImportError):
    """A package is not installed that only some uses of Floodmark need."""

    code = "missing-package"


class ServerNotStarted(StateError):
    """A server for tests did not start, or was used while it did not run."""

    code = "server-not-started"


class RangeOutOfSpace(InvalidValue):
    """A range of keys is empty, or leaves the key space."""

    code = "range-out-of-space"


class RangesOverlap(InvalidValue):
    """A range of keys would belong to two segments at once."""

    code = "ranges-overlap"


class RangesMissing(InvalidValue):
    """A range of keys would belong to no segment."""

    code = "ranges-missing"


class KeyOutOfSpace(InvalidValue):
    """A key has no place in the key space."""

    code = "key-out-of-space"


class UnknownSegment(UnknownName):
    """A stream has no segment of that id."""

    code = "unknown-segment"


class SegmentSealed(StateError):
    """A segment was to be sealed that had been sealed before."""

    code = "segment-sealed"


class ForeignSegment(UnknownName):
    """A position names a segment that is not of its stream."""

    code = "foreign-segment"


class PositionInvalid(InvalidValue):
    """A position is no map from segments to offsets."""

    code = "position-invalid"


class CutInvalid(InvalidValue):
    """A position that should be a cut does not cover the key space once."""

    code = "cut-invalid"


class UnknownWriter(UnknownName):
    """A writer is not known to the stream."""

    code = "unknown-writer"


class WriterClosed(StateError):
    """A writer that had been closed was used again."""

    code = "writer-closed"


class WriterSuperseded(StateError):
    """A writer was opened again elsewhere: this instance of it is the older one."""

    code = "writer-superseded"


class InvalidName(InvalidValue):
    """A stream or a writer has a name that none may have."""

    code = "invalid-name"


class SchemaInvalid(InvalidValue):
    """A schema cannot be read, or has a type that no stream can keep."""

    code = "schema-invalid"


class EventInvalid(InvalidValue):
    """An event does not fit the schema of its stream."""

    code = "event-invalid"


class NaiveTime(InvalidValue):
    """A datetime has no zone, so nobody knows which moment it is."""

    code = "naive-time"


class OffsetOutOfRange(InvalidValue):
    """An offset lies outside the segment."""

    code = "offset-out-of-range"


class UnknownStream(UnknownName):
    """There is no stream of that name."""

    code = "unknown-stream"


class StreamExists(StateError):
    """A stream was to be created under a name that another one has."""

    code = "stream-exists"


class StreamDeleted(StateError):
    """A stream was deleted, and perhaps created anew, since it was looked up."""

    code = "stream-deleted"


class StreamSealed(StateError):
    """A stream that takes no more events was to be written or scaled."""

    code = "stream-sealed"


class WriterWithoutId(StateError):
    """A writer without an id was to note the time."""

    code = "writer-without-id"


class AutomaticTime(StateError):
    """A writer that notes the time by itself was to note it by hand."""

    code = "automatic-time"


class UnknownTransaction(UnknownName):
    """A transaction is not known, or is kept no more."""

    code = "unknown-transaction"


class TransactionNotOpen(StateError):
    """A transaction that is committed, aborted or on the way there was used again."""

    code = "transaction-not-open"
