"""Errors of sinks that write exactly once."""

from floodmark.errors._tree import Conflict, InvalidValue, StateError, UnknownName


class UnknownSink(UnknownName):
    """There is no sink of that name."""

    code = "unknown-sink"


class SinkExists(Conflict):
    """The name belongs to a sink that writes elsewhere, or in another way."""

    code = "sink-exists"


class SinkFenced(Conflict):
    """Another process writes for this sink now. This one has ended for good."""

    code = "sink-fenced"


class SinkVersionOld(StateError):
    """A newer version of the sink has written."""

    code = "sink-version-old"


class SinkProgressInvalid(StateError):
    """The record of what a sink has written cannot be read, or goes back."""

    code = "sink-progress-invalid"


class SinkProgressMissing(StateError):
    """A topic has records, and nothing says how far this sink has written."""

    code = "sink-progress-missing"


class SinkTopicMissing(StateError):
    """A sink has written to a topic that is not there any more."""

    code = "sink-topic-missing"


class SinkTopicUnfit(StateError):
    """A topic does not have the shape that a sink needs."""

    code = "sink-topic-unfit"


class SinkBindingsMissing(StateError):
    """The timestamps are gone by which a sink knows what it has written."""

    code = "sink-bindings-missing"


class SinkInputUnbound(StateError):
    """A batch has rows of a source that has no bindings."""

    code = "sink-input-unbound"


class SinkSourcesChanged(StateError):
    """A batch has other sources than those that a sink has written."""

    code = "sink-sources-changed"


class SinkBatchInvalid(InvalidValue):
    """A batch goes back or goes nowhere, or its offsets cannot be compared."""

    code = "sink-batch-invalid"


class SinkGap(StateError):
    """A batch begins beyond what was written: what lies between would be lost."""

    code = "sink-gap"


class SinkBatchMisaligned(StateError):
    """A batch of a query with state does not end where the written ones have ended."""

    code = "sink-batch-misaligned"


class SinkStateUnknown(StateError):
    """A query goes on behind what another one has written, and has not built the state for it."""

    code = "sink-state-unknown"


class SinkTimedOut(StateError):
    """Kafka has given a transaction up because it took too long."""

    code = "sink-timed-out"


class SinkLayoutChanged(StateError):
    """Rows would go to other groups than before, while not all groups are equally far."""

    code = "sink-layout-changed"


class SinkGroupsUnequal(StateError):
    """Groups are not where they should be: some have written what others have not."""

    code = "sink-groups-unequal"


class SinkCheckpointInvalid(StateError):
    """The checkpoint of a query is not one of a query that writes to this sink."""

    code = "sink-checkpoint-invalid"


class SinkRowRefused(InvalidValue):
    """A row cannot be written in the sink's mode; nothing of its batch is seen."""

    code = "sink-row-refused"
