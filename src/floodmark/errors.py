"""All errors of Floodmark: one tree of exceptions, each with a stable code.

An error message has three parts: the fact (what happened), the rule (what must hold) and the remedy (what to do). The
values in the message are also in `fields`, so that programs need not parse the text. The root and its branches come
first, then the errors of each room.

>>> from floodmark.progress import Coalescer
>>> try:
...     Coalescer(["p0"]).watermark("p1", "order_time", 10)
... except FloodmarkError as error:
...     print(error.code, error.fields)
unknown-input {'input': 'p1'}
"""

import re
from typing import ClassVar


class FloodmarkError(Exception):
    """The base class of all errors that Floodmark raises."""

    code: ClassVar[str] = "floodmark"

    def __init_subclass__(cls) -> None:
        """Derive the code from the name of the class: `UnknownWriter` has the code `unknown-writer`."""
        if "code" not in vars(cls):
            cls.code = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", cls.__name__).lower()

    def __init__(self, fact: str, *, rule: str, remedy: str, **fields: object) -> None:
        """Set the three parts of the message, and the values in it as `fields`."""
        super().__init__(fact, rule, remedy)
        self.fact = fact
        self.rule = rule
        self.remedy = remedy
        self.fields = fields

    def __str__(self) -> str:
        """Return the three parts of the message and the code."""
        return f"{self.fact} {self.rule} {self.remedy} [{self.code}]"

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle with the fields, so that an error from another process keeps them."""
        return _rebuild, (type(self), self.fact, self.rule, self.remedy, self.fields)


def _rebuild(
    kind: type[FloodmarkError], fact: str, rule: str, remedy: str, fields: dict[str, object]
) -> FloodmarkError:
    return kind(fact, rule=rule, remedy=remedy, **fields)


# Branches of the tree, and errors of several rooms.


class InvalidValue(FloodmarkError, ValueError):
    """An argument is not valid, whatever the state."""


class NotInt64(InvalidValue):
    """A time, sequence or chunk number is not an int64."""


class InvalidOption(InvalidValue):
    """An option has a value that is not valid, such as a negative duration."""


class DuplicateName(InvalidValue):
    """The name of an input, group or origin exists already."""


class NotJson(InvalidValue):
    """A value to be stored cannot be written as JSON."""


class SnapshotInvalid(InvalidValue):
    """A snapshot does not have the format that this release reads."""


class SnapshotVersionUnknown(SnapshotInvalid):
    """A snapshot was written by another version."""


class UnknownName(FloodmarkError, LookupError):
    """A named object does not exist."""


class StateError(FloodmarkError, RuntimeError):
    """The call is valid, but not in the current state."""

    code = "state"


class Conflict(StateError):
    """Another process was first: the update is based on an outdated state."""


class MissingPackage(StateError, ImportError):
    """An optional package that this feature needs is not installed."""


# Errors of `progress`.


class ReservedTime(InvalidValue):
    """A watermark is int64 MAX, which is reserved."""


class NumberOutOfRange(InvalidValue):
    """A sequence or chunk number is below the first one."""


class BatchInvalid(InvalidValue):
    """The columns of a batch do not fit together."""


class ChunkConflict(InvalidValue):
    """Two reports of one sequence contradict each other."""


class UnknownInput(UnknownName):
    """An input or a group of inputs does not exist."""


class UnknownKey(UnknownName):
    """A watermark key does not exist."""


class UnknownOrigin(UnknownName):
    """An origin does not exist."""


class WatermarkNotRising(StateError):
    """An input sent a watermark that is not above its previous one."""


class InputFinished(StateError):
    """A finished input was used again."""


class OriginClosed(StateError):
    """A closed origin was used again."""


class PendingLimitReached(StateError):
    """More reports wait behind a gap than the tracker may keep."""


# Errors of `control`.


class HomeMissing(UnknownName):
    """There is no home at this location."""


class HomeNewer(StateError):
    """The home was written by a newer release than this one."""


class HomeUnusable(StateError):
    """The home cannot be read or written."""


class HomeBusy(StateError):
    """Another process holds the home's write lock for too long."""


class HomeClosed(StateError):
    """The home was used after it was closed."""


class LeaseLost(StateError):
    """The lease has expired or belongs to another holder: the work under it must stop."""


class UnknownMember(UnknownName):
    """The member has left, was removed, or has joined again elsewhere."""


class UnknownIncarnation(UnknownName):
    """The incarnation of a computed watermark does not exist."""


class UnknownStep(UnknownName):
    """The step of a computed watermark does not exist, or was deleted."""


class UnknownQuery(UnknownName):
    """The streaming query does not exist."""


class AmbiguousQuery(UnknownName):
    """Several streaming queries match one name."""


class AmbiguousOrigin(UnknownName):
    """Several origins of a query have one name."""


# Errors of `testing`.


class ServerNotStarted(StateError):
    """A test server did not start, or was used while it was not running."""


# Errors of `kafka`.


class KafkaAway(StateError):
    """No broker answered within the timeout. The request can be retried."""


class KafkaRefused(StateError):
    """A broker refused the request: authentication or authorization failed."""


class KafkaFailed(StateError):
    """A broker or the Kafka client reported an error that is not temporary."""


class UnknownTopic(UnknownName):
    """The topic does not exist."""


class TopicTrimmed(StateError):
    """The topic has already deleted the records to be read."""


class TopicCompacted(StateError):
    """Kafka compacts the topic: it deletes older records of a key, also such as were read."""


class TopicRecreated(StateError):
    """The topic was deleted and created again, so its offsets refer to other records."""


class SchemaMismatch(InvalidValue):
    """The values do not have the requested columns, or have them with other types."""


class ValueUndecodable(InvalidValue):
    """The value of a record does not have its format or schema; the fields `place` and `reason` say which and why."""


# Errors of `delta`.


class TableUnfit(StateError):
    """The table's schema or features do not allow this write."""


class TableConflict(Conflict):
    """Another commit to the table excludes this one. Nothing of this commit is in the table."""


class TableFailed(StateError):
    """The table could not be read or written."""


# Errors of `streams`.


class RangeOutOfSpace(InvalidValue):
    """A key range is empty, or leaves the key space."""


class RangesOverlap(InvalidValue):
    """A key range would belong to two segments."""


class RangesMissing(InvalidValue):
    """A key range would belong to no segment."""


class KeyOutOfSpace(InvalidValue):
    """A key is outside the key space."""


class UnknownSegment(UnknownName):
    """The stream has no segment with this id."""


class SegmentSealed(StateError):
    """The segment to be sealed is sealed already."""


class ForeignSegment(UnknownName):
    """A position names a segment of another stream."""


class PositionInvalid(InvalidValue):
    """A position is not a map from segments to offsets."""


class CutInvalid(InvalidValue):
    """A position that must be a cut does not cover the key space exactly once."""


class UnknownWriter(UnknownName):
    """The stream has no writer with this id."""


class StreamDiffers(StateError):
    """The existing stream that create_stream(if_exists="open") found has another definition."""


class MarkRefused(StateError):
    """A mark of a writer that was opened with refused_marks="raise" was refused: its time or position went back."""


class WriterClosed(StateError):
    """A closed writer was used again."""


class WriterSuperseded(StateError):
    """The writer was opened again elsewhere: this instance is fenced."""


class InvalidName(InvalidValue):
    """The name of a stream or writer is not valid."""


class SchemaInvalid(InvalidValue):
    """A schema cannot be parsed, or has an unsupported type."""


class SchemaChangeRefused(InvalidValue):
    """A schema can only get new nullable columns; the change asks for more."""


class EventInvalid(InvalidValue):
    """An event does not fit the schema of its stream."""


class NaiveTime(InvalidValue):
    """A datetime has no time zone."""


class OffsetOutOfRange(InvalidValue):
    """An offset is outside its segment."""


class EventsDamaged(StateError):
    """Stored events are not as they were written: the disk, or another program, has changed them."""


class EventsRemoved(StateError):
    """A query continues at events that the stream's retention has removed."""


class UnknownStream(UnknownName):
    """The stream does not exist."""


class StreamExists(StateError):
    """A stream with this name exists already."""


class StreamDeleted(StateError):
    """The stream was deleted, and perhaps created again, since it was looked up."""


class StreamSealed(StateError):
    """The stream is sealed: it cannot be written or scaled."""


class WriterWithoutId(StateError):
    """Only a writer with an id can note the time."""


class AutomaticTime(StateError):
    """The writer notes the time automatically, so it cannot be noted by hand."""


class UnknownTransaction(UnknownName):
    """The transaction does not exist, or was deleted."""


class TransactionNotOpen(StateError):
    """The transaction is committed, aborted, or about to be."""


class UnknownGroup(UnknownName):
    """The reader group does not exist."""


class GroupExists(StateError):
    """A reader group with this name exists already."""


class GroupDeleted(StateError):
    """The reader group was deleted, and perhaps created again, since it was looked up."""


class GroupReset(StateError):
    """The reader group was reset: its readers and checkpoints from before are no longer valid."""


class StreamNotInGroup(UnknownName):
    """The reader group does not read this stream."""


class ReaderExists(StateError):
    """The group has a live reader with this id."""


class UnknownReader(UnknownName):
    """The reader group has no reader with this id."""


class ReaderExpelled(StateError):
    """The reader missed its heartbeats or was expelled: other readers have its segments."""


class ReaderClosed(StateError):
    """A closed reader was used again."""


class ForeignCheckpoint(InvalidValue):
    """The checkpoint belongs to another reader group."""


class ForeignCut(InvalidValue):
    """The cut belongs to another stream, or to other streams than the group reads."""


class BoundsReversed(InvalidValue):
    """The end of what a group reads lies before its start."""


class TimeNotReached(StateError):
    """The marks log has not reached this time yet."""


class CheckpointPending(StateError):
    """Another checkpoint of the group is in progress."""


class CheckpointFailed(StateError):
    """Not all readers confirmed the checkpoint in time, or the group was reset meanwhile."""


# Errors of `bindings`.


class UnknownSource(UnknownName):
    """The source does not exist."""


class UnknownHold(UnknownName):
    """The hold does not exist, or was released."""


class BindingInvalid(InvalidValue):
    """A binding would go back in time, or an end would go back in its partition."""


class MintLost(Conflict):
    """Another process has closed the open timestamp first."""


class ClockJumped(StateError):
    """The store's clock is far ahead of the last timestamp and of this process's own clock."""


class SourceRecreated(StateError):
    """The topic or stream of a source was deleted and created again under its name."""


class SourceTruncated(StateError):
    """A partition of a source ends before what is bound of it."""


class OffsetNotBound(StateError):
    """The offset has no timestamp yet."""


class TimestampNotValid(StateError):
    """The timestamp is outside the readable range [since, upper)."""


# Errors of `sinks`.


class UnknownSink(UnknownName):
    """The sink does not exist."""


class SinkExists(Conflict):
    """The sink's name belongs to another target or mode."""


class SinkFenced(Conflict):
    """Another process has started for this sink: this one can write nothing more."""


class SinkVersionOld(StateError):
    """A newer version of the program has written to the sink."""


class SinkProgressInvalid(StateError):
    """The progress record of a sink cannot be read, or goes back."""


class SinkProgressMissing(StateError):
    """The target has records, but no progress of this sink is recorded."""


class SinkTopicMissing(StateError):
    """The topic that a sink has written to no longer exists."""


class SinkTopicUnfit(StateError):
    """The topic does not have the settings or columns that the sink needs."""


class SinkBindingsMissing(StateError):
    """The bindings by which a sink knows what it has written are gone."""


class SinkInputUnbound(StateError):
    """A batch has rows of an input without bindings."""


class SinkSourcesChanged(StateError):
    """A batch has other sources than the sink has written."""


class SinkBatchInvalid(InvalidValue):
    """A batch is empty or reversed, or its offsets cannot be compared."""


class SinkGap(StateError):
    """A batch begins after the end of what was written, so rows would be lost."""


class SinkBatchMisaligned(StateError):
    """A batch of a stateful query does not end where the written batches ended."""


class SinkStateUnknown(StateError):
    """A query resumes after batches of another query without having rebuilt its state."""


class SinkTimedOut(StateError):
    """A transaction of a sink exceeded its timeout and was aborted."""


class SinkLayoutChanged(StateError):
    """The group layout of a sink would change while its groups are at different positions."""


class SinkGroupsUnequal(StateError):
    """The groups of a sink are at different positions."""


class SinkCheckpointInvalid(StateError):
    """The checkpoint does not belong to a query that writes to this sink."""


class SinkRowRefused(InvalidValue):
    """A row cannot be written in the sink's mode; nothing of its batch is written."""


# Errors of `ingest`.


class ZoneUnknown(InvalidValue):
    """There is no time zone with this name."""


class BoundInvalid(InvalidValue):
    """A `from` or `to` is not valid, or is ambiguous."""


class RangeInvalid(InvalidValue):
    """A time range is empty or reversed."""


class GridInvalid(InvalidValue):
    """Periods leave gaps between them, or do not cover what the job reads."""


class JobInvalid(InvalidOption):
    """The settings of a job do not fit together."""


class UnknownJob(UnknownName):
    """The home has no such job."""


class UnknownUnit(UnknownName):
    """The job has no such unit."""


class UnknownRun(UnknownName):
    """The job has no such run, or the run has ended."""


class JobRunning(Conflict):
    """The job is running."""


class NotPlanned(StateError):
    """A recorded range is not in the plan of its run."""


class StreamUnfit(StateError):
    """The stream does not fit the rows of a job, or lacks rows that the job has landed."""


class RangeLate(StateError):
    """The rows of a range would be late: the stream's watermark has passed them."""


class JobFileInvalid(InvalidValue):
    """A job file is not valid; the fields `file` and `line` say where."""


class JobFileMissing(UnknownName):
    """The job file does not exist, or cannot be read."""


class UnknownVariable(UnknownName):
    """A text names a variable without a value."""


class SecretExposed(InvalidValue):
    """A secret is written in plain text where a reference to it is required."""


class SecretMissing(StateError):
    """A referenced secret does not exist."""


class UnitsInvalid(InvalidValue):
    """A list of units, or the input for one, cannot be used."""


class DuplicateUnit(DuplicateName):
    """A unit is listed twice."""


class SecondaryInputFailed(StateError):
    """The input from which a job reads its units is missing or cannot be read."""


class CellsFailed(StateError):
    """A run has ended with failed cells. They remain due."""


class SourceAway(StateError):
    """The source does not answer, or the connection broke. The cell remains due."""


class SourceRefused(StateError):
    """The source refused the request: wrong password, missing permission, or unsupported request."""


class SourceFailed(StateError):
    """The source answered that it cannot process the request."""


class UnknownTable(UnknownName):
    """The source has no such table or database."""


class SourceValueUnfit(InvalidValue):
    """A source row has a value that does not fit its column's type; the field `column` says which."""


class WatermarkMissing(StateError):
    """A source row has no watermark value, so no range would ever read it."""


class FileMissing(UnknownName):
    """The path does not exist."""


class FileTimeUnknown(StateError):
    """The name of a file does not contain its time, so no range would ever read it."""


class RestRequestInvalid(InvalidValue):
    """The request for a cell cannot be built from the source's settings."""


class RestAnswerInvalid(StateError):
    """The answer of a REST service does not match the source's settings."""


class RestPagingEndless(StateError):
    """The pages of a REST service form a loop, or do not end."""


class OutOfScope(InvalidValue):
    """A row that was read for a cell does not belong to it."""


class KeyMissing(InvalidValue):
    """A row has no value in a key column."""


class TargetTaken(StateError):
    """Another job lands in the same target."""


class LandingOvertaken(Conflict):
    """Another run of the same job has taken over; nothing of this landing is in the table."""


class SourceChanged(Conflict):
    """The source changed while a cell was read. The rows read are not landed."""


# Errors of `spark`.


class UnknownColumn(UnknownName):
    """The DataFrame has no such column."""


class UnsupportedFrame(InvalidValue):
    """The operation does not support this kind of DataFrame."""


class UnsupportedSpark(StateError):
    """The running Spark lacks a required feature."""


class TooManyOrigins(StateError):
    """There are more origins than can be distinguished."""


class NoLateRows(UnknownName):
    """The query does not keep late rows, or keeps them on several columns."""


class ExecutorUnfit(StateError):
    """An executor of Spark cannot run Floodmark: it lacks the package, or has another version or Python."""


class FallingMark(StateError):
    """The largest mark of a batch lies below that of an earlier one."""


class HomeOutOfReach(StateError):
    """A Spark task cannot reach the home."""


# Errors of `service`.


class RequestInvalid(InvalidValue):
    """A request does not have the format that the service reads."""


class RequestTooLarge(InvalidValue):
    """A request is larger than the service accepts."""


class RequestTimedOut(StateError):
    """A request took too long to arrive."""


class TokenRefused(StateError):
    """Authentication failed: the token does not exist, was revoked, or is malformed."""


class TokenMissing(TokenRefused):
    """Authentication failed: the request has no token."""


class TokenExpired(TokenRefused):
    """Authentication failed: the token has expired."""


class NotAllowed(StateError):
    """The token does not authorize this request."""


class HostRefused(StateError):
    """A request without a token was not addressed to this machine, or came from a page of another site."""


class UnknownToken(UnknownName):
    """There is no token with this id."""


class TokensNeeded(StateError):
    """A service that listens beyond its own machine needs at least one token."""


class ServiceNotStarted(StateError):
    """The service could not listen at its address."""


class ServiceBusy(StateError):
    """The service has too many pending requests."""


class ServiceFailed(StateError):
    """The service hit an unexpected error."""


class ServiceUnavailable(StateError):
    """None of the services of a home answered."""


class ServiceUntrusted(StateError):
    """The certificate of the service is not trusted."""


class AnswerInvalid(StateError):
    """The server is not a Floodmark service, or speaks a version that this release does not understand."""


__all__ = [
    name for name, value in list(vars().items()) if isinstance(value, type) and issubclass(value, FloodmarkError)
]
