"""What all targets of sinks share: the protocol, options, failpoints for tests, and errors."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol, TypeVar

from floodmark.bindings.offsets import QueryPosition
from floodmark.errors import InvalidOption, SinkFenced, SinkTimedOut, StateError
from floodmark.sinks.gate import Batch, Drop, Write, WriteFrom
from floodmark.sinks.progress import Progress
from floodmark.sinks.startup import BoundsLookup, OnMissingBindings, Start

SinkMode = Literal["atomic", "parallel", "staged"]


@dataclass(frozen=True, slots=True)
class TargetOptions:
    """How a sink writes. Durations are in seconds."""

    version: int = 1
    """That of the program: a process with a lower one than was recorded does not start."""
    partitions: int = 1
    """How many a topic gets that is made."""
    progress_topic: str | None = None
    """Where progress is recorded, if not in `<topic>.progress`."""
    marks: bool = True
    """Whether `<topic>.marks` tells how far time has come. One sink tells that of a topic."""
    stamp: bool = True
    """Whether each row has its timestamp in a header."""
    headers: bool = True
    """Whether rows may have headers. Without them, and without timestamps in them, rows are written much faster."""
    append: bool = False
    """Whether the sink may begin in a topic that has records."""
    on_missing_bindings: OnMissingBindings = "error"
    timeout: float = 60.0
    """After which Kafka gives up a transaction. Until then readers wait for what comes after it."""
    linger: float = 0.01
    max_rows: int | None = None
    max_bytes: int | None = None
    """After so many a transaction ends, where a timestamp does."""

    def __post_init__(self) -> None:
        """Refuse what makes no sense."""
        for name in ("version", "partitions", "timeout", "max_rows", "max_bytes"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise InvalidOption(
                    f"The option {name} of a sink is {value}.",
                    rule="It is above 0.",
                    remedy="Leave it out, or give a number above 0.",
                    option=name,
                    value=value,
                )


@dataclass(frozen=True, slots=True)
class CommitPoint:
    """A place between two timestamps of a batch, at which a transaction may end, and how far time has come there."""

    place: QueryPosition
    watermarks: Mapping[str, int] = field(default_factory=dict)


R_contra = TypeVar("R_contra", contravariant=True)


class TargetIdentity(Protocol):
    """What a home must know of a target."""

    @property
    def sink(self) -> str:
        """The name of the sink."""

    @property
    def mode(self) -> SinkMode:
        """How its rows appear."""

    @property
    def address(self) -> str:
        """What names the target."""

    @property
    def version(self) -> int:
        """The version of the program that writes."""

    @property
    def progress(self) -> Progress | None:
        """What was written."""

    def close(self) -> None:
        """Let go."""


class SinkTarget(TargetIdentity, Protocol[R_contra]):
    """Where a sink writes: rows and the record of them become visible together, or not at all."""

    def start(self, bounds: BoundsLookup) -> Start:
        """Fence, read progress, decide."""

    def write(
        self,
        rows: R_contra | tuple[()],
        batch: Batch,
        decision: Write | WriteFrom | Drop,
        *,
        watermarks: Mapping[str, int] | None = None,
        split: Callable[[int], CommitPoint] | None = None,
    ) -> Progress:
        """Write, and return the record."""


Failpoint = Callable[[str], None]
"""Called with the name of each place when it is reached."""

FAILPOINTS: Final = (
    "sink: fenced",
    "sink: progress scanned in part",
    "sink: started",
    "sink: before the transaction",
    "sink: some rows sent",
    "sink: rows flushed",
    "sink: progress flushed",
    "sink: committed",
    "sink: hold advanced",
)
"""In the order in which they are reached."""
(
    FENCED,
    SCANNED_IN_PART,
    STARTED,
    BEFORE_BEGIN,
    SOME_ROWS_SENT,
    ROWS_FLUSHED,
    PROGRESS_FLUSHED,
    COMMITTED,
    HOLD_ADVANCED,
) = FAILPOINTS


def no_failpoint(place: str) -> None:
    """Do nothing at a failpoint."""


MAX_TIMEOUTS_IN_A_ROW: Final = 2
"""So often transactions may take too long, one after the other, before a sink ends."""


def fenced_error(sink: str, doing: str, **fields: Any) -> SinkFenced:
    """Return the error for a process whose place another one has taken."""
    return SinkFenced(
        f"The sink {sink!r} was fenced off while {doing}: another process writes for it now.",
        rule="One process writes for a sink; whoever started last.",
        remedy="Stop the other one and start this one again, or let it be.",
        sink=sink,
        **fields,
    )


def timeout_error(
    sink: str,
    rows: int,
    seconds: float,
    timeout: float,
    *,
    again: bool,
    more: str = "",
    rule: str = "A transaction that takes longer is given up: nothing of it is seen.",
    **fields: Any,
) -> SinkTimedOut:
    """Return the error for a transaction that took too long; `more` is added to the fact."""
    return SinkTimedOut(
        f"A transaction of the sink {sink!r} had {rows} rows after {seconds:.1f} s, and its timeout is {timeout:g} s"
        f"{more}.",
        rule=rule,
        remedy="Raise the sink's timeout, or make batches smaller"
        + ("." if again else "; it was tried twice, and is not tried again."),
        sink=sink,
        rows=rows,
        seconds=seconds,
        timeout=timeout,
        again=again,
        **fields,
    )


def not_started_error(sink: str) -> StateError:
    """Return the error for a sink that is to write before it has started."""
    return StateError(
        f"The sink {sink!r} is not started.",
        rule="It knows what it has written only after it has fenced those before it and read their progress.",
        remedy="Call start() first, and again after an error.",
        sink=sink,
    )
