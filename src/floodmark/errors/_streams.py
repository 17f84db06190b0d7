"""Errors of streams, their segments, writers and transactions."""

from floodmark.errors._tree import InvalidValue, StateError, UnknownName


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
