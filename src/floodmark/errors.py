"""Every error of Floodmark: one tree, each leaf with a stable code.

An error states three things, in this order: the fact (what was found), the rule (what must hold) and the
remedy (the way out). The values it speaks of are in `fields`, so that a program never has to parse the text.
The root and its branches come first, then the errors of each room.

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
    """The root of the tree: catch this to catch everything that Floodmark raises on purpose."""

    code: ClassVar[str] = "floodmark"

    def __init_subclass__(cls) -> None:
        """Derive the code from the name of the class: `UnknownWriter` has the code `unknown-writer`."""
        if "code" not in vars(cls):
            cls.code = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", cls.__name__).lower()

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


class NotInt64(InvalidValue):
    """A time, sequence or chunk number is not a whole number of 64 bits."""


class InvalidOption(InvalidValue):
    """A setting has a value that makes no sense, such as a negative duration."""


class DuplicateName(InvalidValue):
    """The same input, group or origin was named twice."""


class NotJson(InvalidValue):
    """A value to be kept is none that JSON can write and give back."""


class SnapshotInvalid(InvalidValue):
    """A snapshot is not of the form that this version writes."""


class SnapshotVersionUnknown(SnapshotInvalid):
    """A snapshot was written by another version."""


class UnknownName(FloodmarkError, LookupError):
    """Something was named that is not there."""


class StateError(FloodmarkError, RuntimeError):
    """The call is right in itself, but not in the state things are in."""

    code = "state"


class Conflict(StateError):
    """Somebody else was first: what the update was built on is not the newest any more."""


class MissingPackage(StateError, ImportError):
    """A package is not installed that only some uses of Floodmark need."""


class ReservedTime(InvalidValue):
    """A watermark of int64 MAX: it would end time for good."""


class NumberOutOfRange(InvalidValue):
    """A sequence or chunk number lies below the first one."""


class BatchInvalid(InvalidValue):
    """The columns of a batch do not fit together."""


class ChunkConflict(InvalidValue):
    """Two reports of one sequence cannot both be true."""


class UnknownInput(UnknownName):
    """An input or a group of inputs is not known."""


class UnknownKey(UnknownName):
    """A watermark key is not known."""


class UnknownOrigin(UnknownName):
    """An origin is not known."""


class WatermarkNotRising(StateError):
    """An input sent a watermark that is not above its previous one."""


class InputFinished(StateError):
    """An input that had finished was used again."""


class OriginClosed(StateError):
    """An origin that had been closed was used again."""


class PendingLimitReached(StateError):
    """There is more behind a gap than the tracker may keep."""


class HomeMissing(UnknownName):
    """There is no home where one was expected."""


class HomeNewer(StateError):
    """A home was written by a newer release than this one."""


class HomeUnusable(StateError):
    """A home cannot be read or written."""


class HomeBusy(StateError):
    """Another process is writing to the home, and does not end."""


class HomeClosed(StateError):
    """A home was used after it had been closed."""


class LeaseLost(StateError):
    """A lease belongs to somebody else by now, or to nobody: what was to be done under it must not be done."""


class UnknownMember(UnknownName):
    """A member has left, was forgotten, or has joined again elsewhere."""


class UnknownIncarnation(UnknownName):
    """An incarnation of a computed watermark is not known."""


class UnknownStep(UnknownName):
    """A step of a computed watermark is not known, or is kept no more."""


class UnknownQuery(UnknownName):
    """A streaming query is not known."""


class AmbiguousQuery(UnknownName):
    """Several streaming queries answer to one name."""


class ServerNotStarted(StateError):
    """A server for tests did not start, or was used while it did not run."""


class KafkaAway(StateError):
    """No broker has answered in time. What was asked for may be tried again."""


class KafkaRefused(StateError):
    """A broker does not allow it, or does not know who asks."""


class KafkaFailed(StateError):
    """A broker, or Kafka's client, has said that something cannot be done."""


class UnknownTopic(UnknownName):
    """There is no such topic."""


class TopicTrimmed(StateError):
    """Records were to be read that the topic does not keep any more."""


class TopicRecreated(StateError):
    """A topic was deleted and made anew: its offsets mean other records now."""


class SchemaMismatch(InvalidValue):
    """Columns were asked for that values of the given schema do not have, or have as another type."""


class ValueUndecodable(InvalidValue):
    """The value of a record is none of its format and schema; the fields `place` and `reason` say which and why."""


class TableUnfit(StateError):
    """A table does not have the shape that is needed to write to it."""


class TableConflict(Conflict):
    """Somebody else has committed to a table what rules out this commit. Nothing of it is in the table."""


class TableFailed(StateError):
    """A table could not be read or written."""


class RangeOutOfSpace(InvalidValue):
    """A range of keys is empty, or leaves the key space."""


class RangesOverlap(InvalidValue):
    """A range of keys would belong to two segments at once."""


class RangesMissing(InvalidValue):
    """A range of keys would belong to no segment."""


class KeyOutOfSpace(InvalidValue):
    """A key has no place in the key space."""


class UnknownSegment(UnknownName):
    """A stream has no segment of that id."""


class SegmentSealed(StateError):
    """A segment was to be sealed that had been sealed before."""


class ForeignSegment(UnknownName):
    """A position names a segment that is not of its stream."""


class PositionInvalid(InvalidValue):
    """A position is no map from segments to offsets."""


class CutInvalid(InvalidValue):
    """A position that should be a cut does not cover the key space once."""


class UnknownWriter(UnknownName):
    """A writer is not known to the stream."""


class WriterClosed(StateError):
    """A writer that had been closed was used again."""


class WriterSuperseded(StateError):
    """A writer was opened again elsewhere: this instance of it is the older one."""


class InvalidName(InvalidValue):
    """A stream or a writer has a name that none may have."""


class SchemaInvalid(InvalidValue):
    """A schema cannot be read, or has a type that no stream can keep."""


class EventInvalid(InvalidValue):
    """An event does not fit the schema of its stream."""


class NaiveTime(InvalidValue):
    """A datetime has no zone, so nobody knows which moment it is."""


class OffsetOutOfRange(InvalidValue):
    """An offset lies outside the segment."""


class UnknownStream(UnknownName):
    """There is no stream of that name."""


class StreamExists(StateError):
    """A stream was to be created under a name that another one has."""


class StreamDeleted(StateError):
    """A stream was deleted, and perhaps created anew, since it was looked up."""


class StreamSealed(StateError):
    """A stream that takes no more events was to be written or scaled."""


class WriterWithoutId(StateError):
    """A writer without an id was to note the time."""


class AutomaticTime(StateError):
    """A writer that notes the time by itself was to note it by hand."""


class UnknownTransaction(UnknownName):
    """A transaction is not known, or is kept no more."""


class TransactionNotOpen(StateError):
    """A transaction that is committed, aborted or on the way there was used again."""


class UnknownGroup(UnknownName):
    """There is no reader group of that name."""


class GroupExists(StateError):
    """A reader group was to be created under a name that another one has."""


class GroupDeleted(StateError):
    """A reader group was deleted, and perhaps created anew, since it was looked up."""


class GroupReset(StateError):
    """A reader group was reset to another place: what was opened before does not go on."""


class StreamNotInGroup(UnknownName):
    """A stream was named that a reader group does not read."""


class ReaderExists(StateError):
    """A reader was to be opened under an id that a living reader of the group has."""


class UnknownReader(UnknownName):
    """A reader group has no reader of that id."""


class ReaderExpelled(StateError):
    """A reader was silent for too long, or was expelled: others read its segments."""


class ReaderClosed(StateError):
    """A reader that had been closed was used again."""


class ForeignCheckpoint(InvalidValue):
    """A checkpoint is of another reader group."""


class ForeignCut(InvalidValue):
    """A cut is of another stream, or of other streams than the group reads."""


class BoundsReversed(InvalidValue):
    """The end of what a group reads lies before its start."""


class TimeNotReached(StateError):
    """A time was to be found in a marks log that has not come there yet."""


class CheckpointPending(StateError):
    """A checkpoint was to be begun while another one is under way."""


class CheckpointFailed(StateError):
    """A checkpoint was not confirmed by all readers in time, or was given up because the group was reset."""


class UnknownSource(UnknownName):
    """There is no source of that id."""


class UnknownHold(UnknownName):
    """A hold was never taken, or has been released."""


class BindingInvalid(InvalidValue):
    """A binding goes back in time, or an end goes back in its partition."""


class MintLost(Conflict):
    """Another process has bound the next timestamp first."""


class ClockJumped(StateError):
    """The clock of the store is far ahead of what it was, and of this process's own."""


class SourceRecreated(StateError):
    """What a source reads is not what it was: a topic or stream was deleted and made anew under its name."""


class SourceTruncated(StateError):
    """A source has less than what was bound of it."""


class OffsetNotBound(StateError):
    """An offset has no timestamp yet."""


class TimestampNotValid(StateError):
    """A timestamp lies outside of what can be read: [since, upper)."""


class UnknownSink(UnknownName):
    """There is no sink of that name."""


class SinkExists(Conflict):
    """The name belongs to a sink that writes elsewhere, or in another way."""


class SinkFenced(Conflict):
    """Another process writes for this sink now. This one has ended for good."""


class SinkVersionOld(StateError):
    """A newer version of the sink has written."""


class SinkProgressInvalid(StateError):
    """The record of what a sink has written cannot be read, or goes back."""


class SinkProgressMissing(StateError):
    """A topic has records, and nothing says how far this sink has written."""


class SinkTopicMissing(StateError):
    """A sink has written to a topic that is not there any more."""


class SinkTopicUnfit(StateError):
    """A topic does not have the shape that a sink needs."""


class SinkBindingsMissing(StateError):
    """The timestamps are gone by which a sink knows what it has written."""


class SinkInputUnbound(StateError):
    """A batch has rows of a source that has no bindings."""


class SinkSourcesChanged(StateError):
    """A batch has other sources than those that a sink has written."""


class SinkBatchInvalid(InvalidValue):
    """A batch goes back or goes nowhere, or its offsets cannot be compared."""


class SinkGap(StateError):
    """A batch begins beyond what was written: what lies between would be lost."""


class SinkBatchMisaligned(StateError):
    """A batch of a query with state does not end where the written ones have ended."""


class SinkStateUnknown(StateError):
    """A query goes on behind what another one has written, and has not built the state for it."""


class SinkTimedOut(StateError):
    """Kafka has given a transaction up because it took too long."""


class SinkLayoutChanged(StateError):
    """Rows would go to other groups than before, while not all groups are equally far."""


class SinkGroupsUnequal(StateError):
    """Groups are not where they should be: some have written what others have not."""


class SinkCheckpointInvalid(StateError):
    """The checkpoint of a query is not one of a query that writes to this sink."""


class SinkRowRefused(InvalidValue):
    """A row cannot be written in the sink's mode; nothing of its batch is seen."""


class ZoneUnknown(InvalidValue):
    """There is no time zone of that name."""


class BoundInvalid(InvalidValue):
    """A `from` or `to` is none, or one that could be read in two ways."""


class RangeInvalid(InvalidValue):
    """A range of time is empty or reversed, and can never be anything else."""


class GridInvalid(InvalidValue):
    """Periods do not follow each other without holes, or do not reach over what a job reads."""


class JobInvalid(InvalidOption):
    """The parts of a job do not fit together."""


class UnknownJob(UnknownName):
    """A home does not know the job."""


class UnknownUnit(UnknownName):
    """A job has no such unit."""


class UnknownRun(UnknownName):
    """A job has had no such run, or it has ended."""


class JobRunning(Conflict):
    """A run of the job goes on."""


class NotPlanned(StateError):
    """A range was recorded that the run was not to read."""


class StreamUnfit(StateError):
    """A stream does not have the shape that the rows of a job need, or does not have what the job has read."""


class RangeLate(StateError):
    """Rows of a range would come to a stream whose watermark has gone beyond them."""


class JobFileInvalid(InvalidValue):
    """A job file says what no job can; the fields `file` and `line` say where."""


class JobFileMissing(UnknownName):
    """A job file is not there, or cannot be read."""


class UnknownVariable(UnknownName):
    """A text names a variable that nobody has given."""


class SecretExposed(InvalidValue):
    """A secret stands in plain words where a reference to it must stand."""


class SecretMissing(StateError):
    """A secret is referred to and is not there."""


class UnitsInvalid(InvalidValue):
    """A list of units, or what is to become one, cannot be used."""


class DuplicateUnit(DuplicateName):
    """The same unit is listed twice."""


class SecondaryInputFailed(StateError):
    """What the units of a job are read from is not there, or cannot be read."""


class CellsFailed(StateError):
    """A run has ended, and some of its cells have failed. They stay due."""


class SourceAway(StateError):
    """A source does not answer, or has gone in the middle of an answer. The cell stays due."""


class SourceRefused(StateError):
    """A source does not do what it is asked: a password, a permission, a request that it does not take."""


class SourceFailed(StateError):
    """A source answers, and cannot do what it is asked."""


class UnknownTable(UnknownName):
    """A source has no table of that name, or no database."""


class SourceValueUnfit(InvalidValue):
    """A row of a source has a value that is none of its column's type; the field `column` says which."""


class WatermarkMissing(StateError):
    """A row of a source has no watermark, so that no range would ever read it."""


class FileMissing(UnknownName):
    """A path is named, and nothing is there."""


class FileTimeUnknown(StateError):
    """The name of a file does not say its time, so that no range would ever read it."""


class RestRequestInvalid(InvalidValue):
    """What a source asks for cannot be written as a request, for this cell."""


class RestAnswerInvalid(StateError):
    """A REST service answers what cannot be read as the source describes it."""


class RestPagingEndless(StateError):
    """The pages of a REST service lead in a circle, or on and on."""


class OutOfScope(InvalidValue):
    """A row was read for a cell and is not of it."""


class KeyMissing(InvalidValue):
    """A row has no value in a column that names rows."""


class TargetTaken(StateError):
    """Another job lands in the same target."""


class LandingOvertaken(Conflict):
    """Another run lands for the same job; nothing of what was being landed is in the table."""


class SourceChanged(Conflict):
    """A source was changed while a cell was read. What was read is not landed."""


class UnknownColumn(UnknownName):
    """A DataFrame has no column of that name."""


class UnsupportedFrame(InvalidValue):
    """A DataFrame is not of the kind that the operation works on."""


class UnsupportedSpark(StateError):
    """The Spark that runs lacks something that is needed."""


class TooManyOrigins(StateError):
    """There are more origins than can be told apart."""


class NoLateRows(UnknownName):
    """A query does not keep late rows apart, or on several columns."""


class HomeOutOfReach(StateError):
    """A task of Spark cannot see the home that it should read."""


class RequestInvalid(InvalidValue):
    """A request is not of the form that the service reads."""


class RequestTooLarge(InvalidValue):
    """A request is larger than the service takes."""


class RequestTimedOut(StateError):
    """A request came so slowly that the service gave up on it."""


class TokenRefused(StateError):
    """A token opens nothing here: it is not known, was revoked, or is none."""


class TokenMissing(TokenRefused):
    """A request came without a token where one is needed."""


class TokenExpired(TokenRefused):
    """The time of a token has run out."""


class NotAllowed(StateError):
    """A token is good, but not for this."""


class HostRefused(StateError):
    """A request without a token did not come for this machine, or came from a page of another."""


class UnknownToken(UnknownName):
    """There is no token of that id."""


class TokensNeeded(StateError):
    """A service was to listen beyond its own machine, with no token to tell who may use it."""


class ServiceNotStarted(StateError):
    """A service could not listen where it was to."""


class ServiceBusy(StateError):
    """A service has more to do than it may put off."""


class ServiceFailed(StateError):
    """A service met with something that it did not expect."""


class ServiceUnavailable(StateError):
    """None of the services of a home has answered."""


class ServiceUntrusted(StateError):
    """The certificate of a service is not one to trust."""


class AnswerInvalid(StateError):
    """What has answered is no service of Floodmark's, or one that this release does not understand."""


__all__ = [
    name for name, value in list(vars().items()) if isinstance(value, type) and issubclass(value, FloodmarkError)
]
